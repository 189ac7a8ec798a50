"""Resources is an immutable bag of named quantities in exact fixed point (1/10000, as Ray).

Explicit zeros are kept, because "0 free" and "not reported" mean different things to Ray's scoring rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

SCALE = 10_000
MAX_QUANTITY = 9.0e14  # keeps every quantity, and sums of thousands of them, inside 64 bits
IMPLICIT_PREFIX = "node:__internal_implicit_resource_"  # counts as 1.0 on a node that does not list it

ItemKey = tuple[tuple[str, int], ...]


def to_units(name: str, quantity: float) -> int:
    """Return a quantity in 1/10000; raise ValueError for anything that is not a sane amount."""
    try:
        value = float(quantity)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"resource {name!r}: {quantity!r} is not a number") from None
    if not math.isfinite(value) or value < 0 or value > MAX_QUANTITY:
        raise ValueError(f"resource {name!r}: {quantity!r} is not between 0 and {MAX_QUANTITY:g}")
    units = int(value) * SCALE if value.is_integer() else round(value * SCALE)
    return max(units, 1) if value > 0 else 0


class Resources(Mapping[str, int]):
    """Maps resource names to integer units of 1/10000; hashable, compared by content."""

    __slots__ = ("_hash", "_key", "_units")

    def __init__(self, units: Mapping[str, int] | None = None) -> None:
        self._units: dict[str, int] = dict(units or {})
        self._key: ItemKey | None = None
        self._hash: int | None = None

    @classmethod
    def of(cls, quantities: Mapping[str, float] | None = None, **more: float) -> Resources:
        """Return resources from quantities as users write them: `Resources.of(CPU=4, memory=2**30)`."""
        merged = {**(quantities or {}), **more}
        return cls({str(name): to_units(str(name), value) for name, value in merged.items()})

    def __getitem__(self, name: str) -> int:
        return self._units[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._units)

    def __len__(self) -> int:
        return len(self._units)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.key)
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resources) and self._units == other._units

    def __repr__(self) -> str:
        return f"Resources({self})"

    def __str__(self) -> str:
        return ", ".join(shown(name, value / SCALE) for name, value in self.key)

    @property
    def key(self) -> ItemKey:
        """Return sorted (name, units) pairs: a total order and a dictionary key."""
        if self._key is None:
            self._key = tuple(sorted(self._units.items()))
        return self._key

    def units(self, name: str) -> int:
        """Return units of one resource, 0 when absent."""
        return self._units.get(name, 0)

    def to_floats(self) -> dict[str, float]:
        """Return quantities as users write them."""
        return {name: value / SCALE for name, value in self._units.items()}

    def positive(self) -> Resources:
        """Return the resources without the zero entries."""
        return Resources({name: value for name, value in self._units.items() if value > 0})

    def times(self, count: int) -> Resources:
        return Resources({name: value * count for name, value in self._units.items()})

    def plus(self, other: Resources) -> Resources:
        merged = dict(self._units)
        for name, value in other._units.items():
            merged[name] = merged.get(name, 0) + value
        return Resources(merged)

    def minus(self, other: Resources) -> Resources:
        """Subtract resources that fit, as the caller has checked; implicit ones appear when first used."""
        left = dict(self._units)
        for name, value in other._units.items():
            if value:
                left[name] = left.get(name, implicit_units(name)) - value
        return Resources(left)

    def lacks(self, need: Resources) -> dict[str, int]:
        """Return what is missing to hold `need`, by resource; empty when it fits."""
        missing = {}
        for name, value in need._units.items():
            have = self._units.get(name)
            short = value - (implicit_units(name) if have is None else have)
            if short > 0:
                missing[name] = short
        return missing

    def holds(self, need: Resources) -> bool:
        """Return whether `need` fits."""
        have = self._units
        for name, value in need._units.items():
            if value > have.get(name, 0) and (name in have or value > implicit_units(name)):
                return False
        return True


EMPTY = Resources()

_IN_BYTES = frozenset({"memory", "object_store_memory"})


def shown(name: str, quantity: float) -> str:
    """Return one quantity as text: `CPU: 4`, `memory: 2.5 GB`."""
    if name in _IN_BYTES and quantity >= 1e6:
        return f"{name}: {round(quantity / 1e9, 3):g} GB"
    return f"{name}: {quantity:g}"


def implicit_units(name: str) -> int:
    """Return what a node that does not list this resource has of it."""
    return SCALE if name.startswith(IMPLICIT_PREFIX) else 0
