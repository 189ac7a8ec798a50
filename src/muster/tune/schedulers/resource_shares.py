"""How many units of resources a trial may have beyond its base: exact arithmetic on plain values.

Called by the allocation functions of ResourceChangingScheduler; knows neither trials nor a controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from muster.base.resources import SCALE, Resources, to_units
from muster.trials.placement_group import PlacementGroupFactory


def fitting(free: Resources, unit: Resources) -> int:
    """How many units fit into `free`, which may be negative: then none does.

    Example:
        >>> fitting(Resources.of(CPU=5, GPU=1), Resources.of(CPU=2))
        2
    """
    return max(0, min(free.units(name) // amount for name, amount in unit.items()))


def shortage(free: Resources, unit: Resources) -> int:
    """How many units have to be given back until nothing that a unit consists of is negative."""
    return max(0, *(-(free.units(name) // amount) for name, amount in unit.items()))


def even_share(whole: Resources, base: Resources, unit: Resources, sharers: int) -> int:
    """The most units that one of `sharers` gets when they take turns until nothing is left of `whole`.

    Example:
        >>> even_share(Resources.of(CPU=8), Resources.of(CPU=1), Resources.of(CPU=1), 3)
        2
    """
    units = fitting(whole.minus(base.times(sharers)), unit)
    return -(-units // max(1, sharers))


def units_above(base: Resources, now: Resources, unit: Resources) -> int:
    """How many whole units more than `base` this is."""
    return fitting(now.minus(base), unit)


def enlarged(
    base: PlacementGroupFactory, unit: Resources, count: int, add_bundles: bool
) -> PlacementGroupFactory:
    """`base` and `count` units: as bundles of their own, or inside of its only one."""
    if count == 0:
        return base
    bundles, _ = base.described()
    if add_bundles:
        return base.resized([*bundles, *[unit.to_floats()] * count])
    only = Resources.of(bundles[-1]).plus(unit.times(count))
    return base.resized([*bundles[:-1], only.to_floats()])


@lru_cache(maxsize=256)  # the same few are asked for at every result
def size_of(factory: PlacementGroupFactory) -> Resources:
    """All its bundles together."""
    return Resources.of(factory.required_resources)


def can_be_placed(factory: PlacementGroupFactory, capacity: Resources) -> bool:
    """Whether so much can start at all: fractions of a GPU do not cut across GPUs."""
    if not capacity.holds(size_of(factory)):
        return False
    amounts = [to_units("GPU", bundle["GPU"]) for bundle in factory.bundles if bundle.get("GPU")]
    return _gpus_needed(amounts) <= -(-capacity.units("GPU") // SCALE)


def _gpus_needed(amounts: Iterable[int]) -> int:
    """Whole ones apart; of the fractions, the largest first into the first GPU that holds it."""
    count, left = 0, list[int]()
    for amount in sorted(amounts, reverse=True):
        whole, part = divmod(amount, SCALE)
        count += whole
        if not part:
            continue
        place = next((index for index, free in enumerate(left) if free >= part), None)
        if place is None:
            left.append(SCALE - part)
        else:
            left[place] -= part
    return count + len(left)


def as_units(amounts: Mapping[str, float] | None, owner: str, name: str) -> Resources:
    """What a user wrote, without zeros; "cpu" and "gpu" are what they look like. ValueError says whose."""
    spelled = {"cpu": "CPU", "gpu": "GPU"}
    try:
        return Resources.of(
            {spelled.get(key, key): amount for key, amount in (amounts or {}).items()}
        ).positive()
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{owner}: {name}={amounts!r}: {error}; pass amounts by name, e.g. {{'CPU': 1}}"
        ) from None
