"""Define the resources of a trial as bundles, also made from a dict; a plain value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.base.resources import to_units
from muster.errors import public

_NAMED = ("cpu", "CPU", "gpu", "GPU", "memory", "custom_resources")
_MISNAMED = {
    f"{before}{kind}s": kind.lower() for before in ("", "num_") for kind in ("cpu", "gpu", "CPU", "GPU")
}
_SELECTORS = "bundle_label_selector"


@public
class PlacementGroupFactory:
    """The bundles that one trial needs together; the first is for the trainable.

    Args:
        bundles: Resources per bundle; an empty first one reserves nothing for the trainable.
        strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
        args: Passed on to Ray's placement group.
        kwargs: Passed on to Ray's placement group.

    Example:
        >>> PlacementGroupFactory([{"CPU": 1, "GPU": 0.5}, {"CPU": 2}]).required_resources
        {'CPU': 3.0, 'GPU': 0.5}
    """

    __slots__ = ("_args", "_bundles", "_head_is_empty", "_identity", "_kwargs", "_strategy")

    def __init__(
        self,
        bundles: Sequence[Mapping[str, float]],
        strategy: str = "PACK",
        *args: Any,  # noqa: ANN401 - kept for the engine, as Ray does
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        if not bundles:
            raise ValueError("a PlacementGroupFactory needs at least one bundle, e.g. [{'CPU': 1}]")
        if isinstance(bundles, Mapping) or not all(isinstance(bundle, Mapping) for bundle in bundles):
            raise ValueError(
                f"PlacementGroupFactory({bundles!r}): must be a list of dicts, e.g. [{{'CPU': 1}}]"
            )
        cleaned = [{k: float(v) for k, v in bundle.items() if v and to_units(k, v)} for bundle in bundles]
        self._head_is_empty = not cleaned[0]
        if self._head_is_empty:
            cleaned = cleaned[1:]
        if not cleaned or not any(cleaned):
            raise ValueError(
                f"no bundle of {list(bundles)} requests a resource: give at least one, e.g. {{'CPU': 1}}"
            )
        self._bundles, self._strategy = cleaned, strategy
        self._args, self._kwargs = args, kwargs
        self._identity = self._key()

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The bundles, without an empty first one."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def strategy(self) -> str:
        """How bundles are spread over nodes."""
        return self._strategy

    @property
    def options(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The remaining arguments, for the engine: positional and named, e.g. `bundle_label_selector`."""
        return self._args, dict(self._kwargs)

    @property
    def head_bundle_is_empty(self) -> bool:
        """Whether the first bundle was empty."""
        return self._head_is_empty

    @property
    def head_cpus(self) -> float:
        """The CPUs of the trainable's bundle."""
        return 0.0 if self._head_is_empty else self._bundles[0].get("CPU", 0.0)

    @property
    def required_resources(self) -> dict[str, float]:
        """The sum over all bundles."""
        total: dict[str, float] = {}
        for bundle in self._bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total

    def _key(self) -> tuple[Any, ...]:
        bundles = tuple(tuple(sorted(bundle.items())) for bundle in self._bundles)
        return (
            bundles,
            self._strategy,
            self._head_is_empty,
            repr(self._args),
            repr(sorted(self._kwargs.items())),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroupFactory) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def described(self) -> tuple[list[dict[str, float]], str]:
        """Return the bundles, including an empty first one, and the strategy, to make an equal one."""
        head: list[dict[str, float]] = [{}] if self._head_is_empty else []
        return head + self.bundles, self._strategy

    def saved(self) -> list[Any] | None:
        """Return the arguments that make an equal one; None for one CPU, which most trials have."""
        if self._identity == _ONE_CPU:
            return None
        bundles, strategy = self.described()
        return [bundles, strategy, list(self._args), dict(self._kwargs)]

    @classmethod
    def from_saved(cls, saved: Sequence[Any] | None) -> PlacementGroupFactory:
        """Return the placement group that `saved` describes."""
        if saved is None:
            return cls([{"CPU": 1}])
        bundles, strategy, args, kwargs = saved
        return cls(bundles, strategy, *args, **kwargs)

    def resized(self, bundles: Sequence[Mapping[str, float]]) -> PlacementGroupFactory:
        """Return a copy with other bundles; bundles that are added are placed like the last one."""
        options = dict(self._kwargs)
        selectors = list(options.get(_SELECTORS) or ())
        if selectors:
            missing = max(0, len(bundles) - len(selectors))
            options[_SELECTORS] = [*selectors, *[selectors[-1]] * missing][: len(bundles)]
        return PlacementGroupFactory(bundles, self._strategy, *self._args, **options)

    def __repr__(self) -> str:
        bundles, strategy = self.described()
        return f"PlacementGroupFactory({bundles!r}, strategy={strategy!r})"


_ONE_CPU = PlacementGroupFactory([{"CPU": 1}])._identity


def resource_dict_to_bundles(resources: Mapping[str, Any] | None) -> PlacementGroupFactory:
    """Return one bundle; `{}` and None mean 1 CPU. ValueError when no resource is requested.

    Example:
        >>> resource_dict_to_bundles({"cpu": 2, "gpu": 0.5, "licence": 1})
        PlacementGroupFactory([{'CPU': 2.0, 'GPU': 0.5, 'licence': 1.0}], strategy='PACK')
    """
    if not resources:
        return PlacementGroupFactory([{"CPU": 1}])
    for name in resources:
        if name in _MISNAMED:  # it would be a separate resource, which no machine has
            right = _MISNAMED[name]
            raise ValueError(
                f"resources {dict(resources)}: there is no {name!r}; write {{{right!r}: {resources[name]!r}}}"
            )
    custom = resources.get("custom_resources")
    if custom is None:
        custom = {name: amount for name, amount in resources.items() if name not in _NAMED}
    bundle = {
        "CPU": resources.get("cpu", resources.get("CPU")),
        "GPU": resources.get("gpu", resources.get("GPU")),
        "memory": resources.get("memory"),
        **custom,
    }
    try:
        return PlacementGroupFactory([{name: amount or 0 for name, amount in bundle.items()}])
    except (TypeError, ValueError) as error:
        raise ValueError(f"resources {dict(resources)}: {error}; example: {{'cpu': 2, 'gpu': 0.5}}") from None
