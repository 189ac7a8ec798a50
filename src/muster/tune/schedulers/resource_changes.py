"""Changes: which trials are to have other resources, and what is claimed and free because of that.

Kept by ResourceChangingScheduler; a plain value that is asked with the controller's view at hand.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.base.resources import Resources
from muster.trials.controller_view import ControllerView
from muster.trials.model import Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.states import TrialState
from muster.tune.execution.plugin_state import Plain
from muster.tune.schedulers.resource_allocation import size_of

AT_REST = (TrialState.PENDING, TrialState.PAUSED)


class Changes:
    """By trial id, from the decision until the trial reports with its new resources."""

    def __init__(self) -> None:
        self.sizes: dict[str, PlacementGroupFactory] = {}

    def __contains__(self, trial: Trial) -> bool:
        return trial.trial_id in self.sizes

    def at_rest(self, tune_controller: ControllerView) -> list[Trial]:
        """Those whose process has ended: they can be changed now."""
        return [trial for trial in self._trials(tune_controller) if trial.state in AT_REST]

    def claims(
        self, tune_controller: ControllerView, base: PlacementGroupFactory | None, wanted: int
    ) -> tuple[Resources, int]:
        """What trials hold, were promised or wait for, and how many those trials are.

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
        """Whether a running trial could have `new` at once, with all promises to others kept."""
        now = tune_controller.occupancy()
        total = now.used.minus(size_of(trial.placement_group_factory)).plus(size_of(new))
        for other in self._trials(tune_controller):
            promised = size_of(self.sizes[other.trial_id])
            if other.state not in AT_REST:  # it still holds what it had
                promised = Resources(size_of(other.placement_group_factory).lacks(promised))
            total = total.plus(promised)
        return now.capacity.holds(total)

    def others_paused(self, tune_controller: ControllerView) -> int:
        """How many trials are paused for another reason."""
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
    """Each further try waits for twice as many reports; one that brings a checkpoint is always used."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[int, int]] = {}  # reports to let pass; how many those were at first
        self._is_known = False  # that this happens

    def note(self, trial_id: str) -> bool:
        """A try was in vain; True for the first one of all."""
        _, last = self._waits.get(trial_id, (0, 0))
        wait = min(_LONGEST, max(1, 2 * last))
        self._waits[trial_id] = (wait, wait)
        is_first, self._is_known = not self._is_known, True
        return is_first

    def may_try(self, trial_id: str, has_checkpoint: bool) -> bool:
        """Asked at each report at which there is something to change."""
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
