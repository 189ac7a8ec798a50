"""Decide which trials get idle CPUs and GPUs: DistributeResources and DistributeResourcesToTopJob.

ResourceChangingScheduler calls them after a result and carries out what they return.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from muster.base.resources import SCALE, Resources, to_units
from muster.trials.checkpoints import metric as named
from muster.trials.model import Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.plugins import ControllerView
from muster.trials.states import TrialState
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.trial_scheduler import check_mode, need_goal

if TYPE_CHECKING:
    from muster.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler


def fitting(free: Resources, unit: Resources) -> int:
    """Return how many units fit into `free`, which may be negative: then none does.

    Example:
        >>> fitting(Resources.of(CPU=5, GPU=1), Resources.of(CPU=2))
        2
    """
    return max(0, min(free.units(name) // amount for name, amount in unit.items()))


def shortage(free: Resources, unit: Resources) -> int:
    """Return how many units have to be released until nothing that a unit consists of is negative."""
    return max(0, *(-(free.units(name) // amount) for name, amount in unit.items()))


def even_share(whole: Resources, base: Resources, unit: Resources, sharers: int) -> int:
    """Return the most units that one of `sharers` gets when all of `whole` is dealt out in turns.

    Example:
        >>> even_share(Resources.of(CPU=8), Resources.of(CPU=1), Resources.of(CPU=1), 3)
        2
    """
    units = fitting(whole.minus(base.times(sharers)), unit)
    return -(-units // max(1, sharers))


def units_above(base: Resources, now: Resources, unit: Resources) -> int:
    """Return how many whole units more than `base` this is."""
    return fitting(now.minus(base), unit)


def enlarged(
    base: PlacementGroupFactory, unit: Resources, count: int, add_bundles: bool
) -> PlacementGroupFactory:
    """Return `base` and `count` units: as separate bundles, or inside of its only one."""
    if count == 0:
        return base
    bundles, _ = base.described()
    if add_bundles:
        return base.resized([*bundles, *[unit.to_floats()] * count])
    only = Resources.of(bundles[-1]).plus(unit.times(count))
    return base.resized([*bundles[:-1], only.to_floats()])


@lru_cache(maxsize=256)  # the same few are asked for at every result
def size_of(factory: PlacementGroupFactory) -> Resources:
    """Return all bundles together."""
    return Resources.of(factory.required_resources)


def can_be_placed(factory: PlacementGroupFactory, capacity: Resources) -> bool:
    """Return whether so much can start at all: fractions of a GPU do not span GPUs."""
    if not capacity.holds(size_of(factory)):
        return False
    amounts = [to_units("GPU", bundle["GPU"]) for bundle in factory.bundles if bundle.get("GPU")]
    return _gpus_needed(amounts) <= -(-capacity.units("GPU") // SCALE)


def _gpus_needed(amounts: Iterable[int]) -> int:
    """Return the GPUs needed; fractions are packed, largest first, into the first GPU that holds them."""
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
    """Return a user's amounts without zeros; "cpu" and "gpu" are accepted. ValueError names the owner."""
    spelled = {"cpu": "CPU", "gpu": "GPU"}
    try:
        return Resources.of(
            {spelled.get(key, key): amount for key, amount in (amounts or {}).items()}
        ).positive()
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{owner}: {name}={amounts!r}: {error}; pass amounts by name, e.g. {{'CPU': 1}}"
        ) from None


class DistributeResources:
    """Gives every trial an even share of free resources, never less than its base.

    A trial above its base gives units back when trials that wait need them.

    Args:
        add_bundles: What a trial gains comes as additional bundles, for workers that it starts; if False, its
            only bundle grows.
        increase_by: One unit, e.g. {"CPU": 2, "GPU": 1}; by default the last bundle (with `add_bundles`),
            else 1 GPU for trials that have one, else 1 CPU.
        increase_by_times: The most units that a trial gains; -1: as many as there are.
        reserve_resources: What is never distributed, e.g. {"CPU": 1}.

    Example:
        >>> DistributeResources(increase_by={"CPU": 2}, increase_by_times=3).increase_by
        {'CPU': 2.0}
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
    ) -> None:
        name = type(self).__name__
        self.add_bundles = add_bundles
        self.increase_by = as_units(increase_by, name, "increase_by").to_floats()
        self.increase_by_times = increase_by_times
        self.reserve_resources = as_units(reserve_resources, name, "reserve_resources").to_floats()
        if increase_by and not self.increase_by:
            raise ValueError(
                f"{name}: increase_by={dict(increase_by)!r} adds nothing; e.g. {{'CPU': 1}} does"
            )
        if not isinstance(increase_by_times, int):
            raise ValueError(f"{name}: increase_by_times={increase_by_times!r} must be a whole number, or -1")

    def __call__(
        self,
        tune_controller: ControllerView,
        trial: Trial,
        result: dict[str, Any],
        scheduler: ResourceChangingScheduler,
    ) -> PlacementGroupFactory | None:
        """Return what the trial should have from now on; None: what it has."""
        if result.get("training_iteration", 0) < 1:
            return None
        base = scheduler.base_trial_resources or trial.placement_group_factory
        if not self.add_bundles and len(base.bundles) != 1:
            raise ValueError(
                f"{type(self).__name__}: trials have {len(base.bundles)} bundles ({base}), and which "
                "of them grows is unknown: pass add_bundles=True to add bundles, or give trials one"
            )
        unit, capacity = self._unit(base), tune_controller.occupancy().capacity
        reserved = Resources.of(self.reserve_resources)
        # Never below 0: whoever reserves more than there is keeps trials at their base.
        whole = Resources({name: max(0, units - reserved.units(name)) for name, units in capacity.items()})
        claimed, sharers = scheduler.claims(tune_controller)
        free = whole.minus(claimed)
        have = units_above(size_of(base), size_of(trial.placement_group_factory), unit)
        lacking, spare = shortage(free, unit), fitting(free, unit)
        target = max(0, have - lacking)
        if spare:
            even = even_share(whole, size_of(base), unit, sharers)
            most = self._most(tune_controller, trial, result, scheduler, even)
            target = have + min(max(0, most - have), spare)
        return self._sized(trial, (have, target), unit, base, capacity)

    def _most(
        self,
        tune_controller: ControllerView,
        trial: Trial,
        result: dict[str, Any],
        scheduler: ResourceChangingScheduler,
        even: int,
    ) -> int:
        """Return the most units that this trial may have."""
        return min(even, self._limit)

    @property
    def _limit(self) -> int:
        return self.increase_by_times if self.increase_by_times > 0 else 1 << 62

    def _sized(
        self,
        trial: Trial,
        change: tuple[int, int],
        unit: Resources,
        base: PlacementGroupFactory,
        capacity: Resources,
    ) -> PlacementGroupFactory:
        """Return the size nearest to the target that can start at all."""
        have, target = change
        while target > have:
            larger = enlarged(base, unit, target, self.add_bundles)
            if can_be_placed(larger, capacity):
                return larger
            target -= 1
        if target == have:
            return trial.placement_group_factory
        return enlarged(base, unit, target, self.add_bundles)

    def _unit(self, base: PlacementGroupFactory) -> Resources:
        if self.increase_by:
            return Resources.of(self.increase_by)
        if self.add_bundles and base.bundles[-1]:
            return Resources.of(base.bundles[-1])
        return Resources.of(GPU=1) if base.required_resources.get("GPU") else Resources.of(CPU=1)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class DistributeResourcesToTopJob(DistributeResources):
    """Gives all free resources to the best trial; others keep what they have.

    A trial that is no longer the best gives units back only when trials that wait need them. When the best
    has `increase_by_times` units, the next one gains. Other parameters are those of DistributeResources.

    Args:
        metric: The result key to compare; None: the experiment's.
        mode: "min" or "max"; None: the experiment's.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        check_mode(self, mode)
        self.metric = metric
        self.mode = mode

    @property
    def refuses_several(self) -> str:
        """Return why it cannot be used with several metrics; "" when it has its own."""
        if self.metric and self.mode:
            return ""
        return f"{type(self).__name__} compares trials by one metric: pass metric=... and mode=... to it"

    def _most(
        self,
        tune_controller: ControllerView,
        trial: Trial,
        result: dict[str, Any],
        scheduler: ResourceChangingScheduler,
        even: int,
    ) -> int:
        """Return the limit for the best trial below it; 0 for the others."""
        mode = self.mode or scheduler.mode
        metric, sign = need_goal(self, self.metric or scheduler.metric, mode), 1.0 if mode == "max" else -1.0
        base = scheduler.base_trial_resources or trial.placement_group_factory
        unit, smallest = self._unit(base), size_of(base)

        def rank(one: Trial) -> tuple[float, int]:
            return (_score(result if one is trial else one.last_result, metric, sign), -one.number)

        def is_below(one: Trial) -> bool:
            now = size_of(scheduler.promised(one))
            return units_above(smallest, now, unit) < self._limit

        growing = [one for one in scheduler.trials_at_work(tune_controller) if is_below(one)]
        best = max(growing, key=rank, default=None)
        return self._limit if best is trial else 0


def _score(result: Mapping[str, Any], metric: str, sign: float) -> float:
    """Return a score: larger is better; whatever is not a number is worst."""
    try:
        score = sign * float(named(result, metric))
    except (TypeError, ValueError):
        return -math.inf
    return -math.inf if math.isnan(score) else score


AT_REST = (TrialState.PENDING, TrialState.PAUSED)


class Changes:
    """Holds decided changes by trial id, until the trial reports with its new resources."""

    def __init__(self) -> None:
        self.sizes: dict[str, PlacementGroupFactory] = {}

    def __contains__(self, trial: Trial) -> bool:
        return trial.trial_id in self.sizes

    def at_rest(self, tune_controller: ControllerView) -> list[Trial]:
        """Return the trials whose process has ended: they can be changed now."""
        return [trial for trial in self._trials(tune_controller) if trial.state in AT_REST]

    def claims(
        self, tune_controller: ControllerView, base: PlacementGroupFactory | None, wanted: int
    ) -> tuple[Resources, int]:
        """Return what trials hold, were promised or wait for, and how many those trials are.

        Of the trials that are paused for another reason only `wanted` count.
        """
        now = tune_controller.occupancy()
        total, own = now.used, dict.fromkeys(AT_REST, 0)
        for trial in self._trials(tune_controller):
            if trial.state in own:
                own[trial.state] += 1
            else:
                total = total.minus(size_of(trial.placement_group_factory))
            total = total.plus(size_of(self.sizes[trial.trial_id]))
        waiting = now.pending - own[TrialState.PENDING] + wanted
        if base is not None:
            total = total.plus(size_of(base).times(waiting))
        return total, now.live - (now.paused - own[TrialState.PAUSED] - wanted)

    def leave_room(self, tune_controller: ControllerView, trial: Trial, new: PlacementGroupFactory) -> bool:
        """Return whether a running trial could have `new` at once, with all promises to others kept."""
        now = tune_controller.occupancy()
        total = now.used.minus(size_of(trial.placement_group_factory)).plus(size_of(new))
        for other in self._trials(tune_controller):
            promised = size_of(self.sizes[other.trial_id])
            if other.state not in AT_REST:  # it still holds what it had
                promised = Resources(size_of(other.placement_group_factory).lacks(promised))
            total = total.plus(promised)
        return now.capacity.holds(total)

    def others_paused(self, tune_controller: ControllerView) -> int:
        """Return how many trials are paused for another reason."""
        own = sum(trial.state is TrialState.PAUSED for trial in self._trials(tune_controller))
        return tune_controller.occupancy().paused - own

    def to_plain(self) -> Plain:
        return {one: size.described() for one, size in self.sizes.items()}

    @staticmethod
    def from_plain(state: Plain) -> Changes:
        changes = Changes()
        changes.sizes = {one: PlacementGroupFactory(*size) for one, size in state.items()}
        return changes

    def _trials(self, tune_controller: ControllerView) -> Iterable[Trial]:
        for trial_id in self.sizes:
            trial = tune_controller.get_trial(trial_id)
            if trial is not None:
                yield trial


_LONGEST = 64  # reports


class Unsaved:
    """Makes each further attempt wait for twice as many reports, or for a checkpoint."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[int, int]] = {}  # reports to let pass; how many those were at first
        self._is_known = False  # that this happens

    def note(self, trial_id: str) -> bool:
        """Note an attempt in vain; return True for the first one of all."""
        _, last = self._waits.get(trial_id, (0, 0))
        wait = min(_LONGEST, max(1, 2 * last))
        self._waits[trial_id] = (wait, wait)
        is_first, self._is_known = not self._is_known, True
        return is_first

    def may_try(self, trial_id: str, has_checkpoint: bool) -> bool:
        """Return whether to try; called at each report at which there is something to change."""
        left, last = self._waits.get(trial_id, (0, 0))
        if has_checkpoint or left == 0:
            return True
        self._waits[trial_id] = (left - 1, last)
        return False

    def forget(self, trial_id: str) -> None:
        self._waits.pop(trial_id, None)

    def to_plain(self) -> Plain:
        return {"waits": self._waits, "is_known": self._is_known}

    @staticmethod
    def from_plain(state: Plain) -> Unsaved:
        unsaved = Unsaved()
        unsaved._waits = {one: (left, last) for one, (left, last) in state["waits"].items()}
        unsaved._is_known = state["is_known"]
        return unsaved
