"""Grow running trials onto idle resources, and shrinks them when others need those.

A trial changes at a report: it is saved and paused, and starts again at once with its new resources. So that
no step after the first is lost and no trial waits forever, a trial is paused only with a checkpoint of its
last step and when the new resources are free now; if others take them first, it continues with its old ones,
or with its base.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from muster.base.resources import Resources
from muster.errors import TuneError
from muster.trials.model import Trial
from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles
from muster.trials.plugins import PAUSED, ControllerView
from muster.trials.states import TrialState
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.resource_allocation import (
    AT_REST,
    Changes,
    DistributeResources,
    DistributeResourcesToTopJob,
    Unsaved,
    size_of,
)
from muster.tune.schedulers.trial_scheduler import (
    FIFOScheduler,
    TrialScheduler,
    explain,
    offer_search_properties,
    scheduler_goal,
)

__all__ = ["DistributeResources", "DistributeResourcesToTopJob", "ResourceChangingScheduler"]

logger = logging.getLogger(__name__)

Allocation = Callable[[Any, Trial, dict[str, Any], Any], "PlacementGroupFactory | Mapping[str, Any] | None"]
_EVENLY = DistributeResources(add_bundles=False)


class ResourceChangingScheduler(TrialScheduler):
    """Wraps a scheduler, and changes the resources of trials while they run.

    All trials must start with the same resources and be able to continue from their checkpoints. A trial sees
    what it has by `tune.get_context().get_trial_resources()`. `TuneConfig(reuse_actors=True)` is refused.

    Args:
        base_scheduler: Decides everything else; None: first in, first out.
        resources_allocation_function: Called after every result on which the base scheduler lets a trial
            continue, with (tune_controller, trial, result, scheduler); returns a PlacementGroupFactory, or
            None for no change. None instead of a function: nothing ever changes.

    Example:
        >>> ResourceChangingScheduler().debug_string()
        '(ResourceChangingScheduler) Using FIFO scheduling algorithm.'
    """

    _state_kind = "resource_changing"
    takes_several_objectives = True
    _plain_attributes = ("_mode", "_wanted", "_has_warned")
    refuses_reuse = "every change of a trial's resources needs a new process"

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: Allocation | None = _EVENLY,
    ) -> None:
        if resources_allocation_function is None:
            logger.warning(
                "ResourceChangingScheduler has no resources_allocation_function: resources will not change"
            )
        elif not callable(resources_allocation_function):
            raise ValueError(
                f"ResourceChangingScheduler: resources_allocation_function={resources_allocation_function!r} "
                "cannot be called: pass DistributeResources() or a function"
            )
        self._base_scheduler = base_scheduler or FIFOScheduler()
        self._allocate = resources_allocation_function
        self._mode: str | None = None
        self._base_trial_resources: PlacementGroupFactory | None = None
        self._changes = Changes()
        # Which paused trial the base scheduler would start if there was room; "": none; None: not known now.
        self._wanted: str | None = None
        self._unsaved = Unsaved()
        self._failed = ""  # just now, with new resources
        self._has_warned = False

    # What allocation functions read.

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """Return what all trials start with; None before there is one."""
        return self._base_trial_resources

    @property
    def mode(self) -> str | None:
        """The mode of the base scheduler."""
        mode: str | None = self._mode or getattr(self._base_scheduler, "_mode", None)
        return mode

    @property
    def metric(self) -> Any:  # noqa: ANN401
        """The metric of the base scheduler."""
        return self._base_scheduler.metric

    def promised(self, trial: Trial) -> PlacementGroupFactory:
        """Return what a trial has, or will have in a moment."""
        return self._changes.sizes.get(trial.trial_id, trial.placement_group_factory)

    def trials_at_work(self, tune_controller: ControllerView) -> list[Trial]:
        """Return the trials that run, and those that are paused only because of a change."""
        return [*tune_controller.get_running_trials(), *self._changes.at_rest(tune_controller)]

    def claims(self, tune_controller: ControllerView) -> tuple[Resources, int]:
        """Return what all trials together have, will have in a moment or wait for, and how many they are.

        Trials that the base scheduler keeps paused count only when it wants them to continue.
        """
        trial = tune_controller.get_trial(self._wanted) if self._wanted else None
        is_waiting = trial is not None and trial.state is TrialState.PAUSED and trial not in self._changes
        return self._changes.claims(tune_controller, self._base_trial_resources, int(is_waiting))

    # Ray's hooks; what else is passed to them is the base scheduler's.

    def set_search_properties(self, metric: Any, mode: Any, **spec: object) -> bool:  # noqa: ANN401
        refusal = getattr(self._allocate, "refuses_several", "")
        if isinstance(metric, list | tuple) and refusal:
            raise ValueError(f"ResourceChangingScheduler: {refusal}")
        metric, mode = scheduler_goal(self._base_scheduler, metric, mode)
        is_taken = offer_search_properties(self._base_scheduler, metric, mode, **spec)
        if is_taken and mode:
            self._mode = mode
        return is_taken

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial, **kwargs: object) -> None:
        if self._base_trial_resources is None and not trial.has_new_resources:
            self._base_trial_resources = trial.placement_group_factory
        self._check_equal(trial)
        if trial.trial_id == self._failed and self._base_trial_resources is not None:
            trial.update_resources(self._base_trial_resources)  # perhaps it failed because of the new ones
        self._failed = ""
        self._base_scheduler.on_trial_add(tune_controller, trial, **kwargs)

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial, **kwargs: object) -> None:
        self._failed = trial.trial_id if trial in self._changes else ""
        self._forget(trial)
        self._base_scheduler.on_trial_error(tune_controller, trial, **kwargs)

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any], **kwargs: object
    ) -> None:
        self._forget(trial)
        self._base_scheduler.on_trial_complete(tune_controller, trial, result, **kwargs)

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial, **kwargs: object) -> None:
        self._forget(trial)
        self._base_scheduler.on_trial_remove(tune_controller, trial, **kwargs)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        decision = self._base_scheduler.on_trial_result(tune_controller, trial, result)
        if trial.state is TrialState.SAVING:
            return decision  # sent together with an earlier one, on which it is being paused
        self._end_change(trial)
        if decision != self.CONTINUE:
            self._wanted = None
            return decision
        new = self.reallocate_trial_resources_if_needed(tune_controller, trial, result)
        if new is None:
            return decision
        self._changes.sizes[trial.trial_id] = new
        # After its first report a trial without a checkpoint starts from scratch, as in Ray.
        if hasattr(tune_controller, "keep_steps") and result.get("training_iteration") != 1:
            tune_controller.keep_steps(trial)
        explain(tune_controller, trial.trial_id, PAUSED, f"to start again with {new.required_resources}")
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller: ControllerView, **kwargs: object) -> Trial | None:
        """Return a trial that was paused for a change, else the base scheduler's choice, sized to fit."""
        for changed in self._changes.at_rest(tune_controller):
            self._make_fit(tune_controller, changed, self._changes.sizes[changed.trial_id])
            return changed
        trial = self._base_scheduler.choose_trial_to_run(tune_controller, **kwargs)
        does_fit = False
        if trial is not None and trial.state in AT_REST:
            does_fit = self._make_fit(tune_controller, trial, trial.placement_group_factory)
        if not does_fit:
            self._note_wanted(tune_controller, trial)
        return trial

    def debug_string(self) -> str:
        return f"(ResourceChangingScheduler) {self._base_scheduler.debug_string()}"

    @property
    def supports_buffered_results(self) -> bool:
        """Whether several results may arrive together."""
        return self._base_scheduler.supports_buffered_results

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what else the base scheduler offers
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._base_scheduler, name)

    # Changing a trial.

    def reallocate_trial_resources_if_needed(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> PlacementGroupFactory | None:
        """Return what to pause the trial for; None if it continues unchanged.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            trial: The trial.
            result: The result.
        """
        if self._allocate is None:
            return None
        new = self._usable(self._allocate(tune_controller, trial, result, self))
        if new is None or not self._may_change(tune_controller, trial, new, result):
            return None
        return new

    def set_trial_resources(self, trial: Trial, new_resources: PlacementGroupFactory) -> bool:
        """Set the resources of a trial without a process; returns whether that is a change.

        Args:
            trial: The trial.
            new_resources: The resources from the next start on.
        """
        if new_resources == trial.placement_group_factory:
            return False
        trial.update_resources(new_resources)
        return True

    def _end_change(self, trial: Trial) -> None:
        """End the change of a trial that runs again, with or, if nothing could be saved, without it."""
        change = self._changes.sizes.pop(trial.trial_id, None)
        if change is None:
            return
        if change == trial.placement_group_factory:
            self._unsaved.forget(trial.trial_id)
        elif self._unsaved.note(trial.trial_id):
            logger.warning(
                "ResourceChangingScheduler: trial %s has no checkpoint of its last step, so its resources "
                "are not changed, because that would undo the step. Report a checkpoint, "
                "tune.report(..., checkpoint=...), or define save_checkpoint(); this is logged once",
                trial,
            )

    def _may_change(
        self,
        tune_controller: ControllerView,
        trial: Trial,
        new: PlacementGroupFactory,
        result: dict[str, Any],
    ) -> bool:
        now = trial.placement_group_factory
        if new == now:
            return False
        is_growth = bool(size_of(now).lacks(size_of(new)))
        if is_growth and not self._is_free(tune_controller, trial, new):
            return False
        return self._unsaved.may_try(trial.trial_id, bool(result.get("checkpoint_dir_name")))

    def _is_free(self, tune_controller: ControllerView, trial: Trial, new: PlacementGroupFactory) -> bool:
        """Return whether what a trial grows by is free; else it would be paused for nothing."""
        now = tune_controller.occupancy()
        if not now.capacity.holds(size_of(new)):
            self._warn_of_too_much(trial, new, now.capacity)
            return False
        if self._wanted is None and self._changes.others_paused(tune_controller):
            return False  # the base scheduler may have a use for it
        return self._changes.leave_room(tune_controller, trial, new)

    def _make_fit(self, tune_controller: ControllerView, trial: Trial, wanted: PlacementGroupFactory) -> bool:
        """Set the first size that fits: the promised one, the old one, the base; returns whether one did."""
        now = tune_controller.occupancy()
        base = self._base_trial_resources or trial.placement_group_factory
        for size in (wanted, trial.placement_group_factory, base):
            if now.capacity.holds(now.used.plus(size_of(size))):
                self._set(trial, size)
                return True
        has_it_all = now.capacity.holds(size_of(trial.placement_group_factory))
        if not has_it_all and base != trial.placement_group_factory:  # a smaller machine than before
            self._set(trial, base)
            tune_controller.remember_choice(trial)
        return False

    def _set(self, trial: Trial, size: PlacementGroupFactory) -> None:
        if trial in self._changes:
            self._changes.sizes[trial.trial_id] = size
        self.set_trial_resources(trial, size)

    def _forget(self, trial: Trial) -> None:
        self._changes.sizes.pop(trial.trial_id, None)
        self._unsaved.forget(trial.trial_id)
        self._wanted = None

    # Whether other trials need what is free.

    def _note_wanted(self, tune_controller: ControllerView, chosen: Trial | None) -> None:
        """Note whether the base scheduler's choice found no space. A restore has to learn the same here."""
        if not self._changes.others_paused(tune_controller):
            return
        wanted = chosen.trial_id if chosen is not None and chosen.state is TrialState.PAUSED else ""
        witness = chosen or tune_controller.first_waiting()
        if wanted != self._wanted and witness is not None:
            self._wanted = wanted
            tune_controller.remember_choice(witness)

    # Errors of the user's function.

    def _check_equal(self, trial: Trial) -> None:
        base, own = self._base_trial_resources, trial.placement_group_factory
        if base is None or trial.has_new_resources or own.described() == base.described():
            return
        raise RuntimeError(
            f"ResourceChangingScheduler: trial {trial.trial_id} needs {own}, the first trial {base}: all "
            "must start with the same resources; do not choose them by the config, or leave the scheduler out"
        )

    def _usable(self, answer: Any) -> PlacementGroupFactory | None:  # noqa: ANN401 - of a user's function
        if answer is None or isinstance(answer, PlacementGroupFactory):
            return answer
        if isinstance(answer, Mapping):
            return resource_dict_to_bundles(answer)
        raise TuneError(
            (
                f"ResourceChangingScheduler: the resources_allocation_function {self._allocate!r} returned "
                f"{answer!r}"
            ),
            fix="return a PlacementGroupFactory, or None for no change",
        )

    def _warn_of_too_much(self, trial: Trial, new: PlacementGroupFactory, capacity: Resources) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "ResourceChangingScheduler: %s was to have (%s), but there is only (%s) in all; it continues "
                "with what it has, and this is logged once",
                *(trial, size_of(new), capacity),
            )

    # State.

    def restore_state(self, state: bytes, trials: Mapping[str, Trial] | None = None) -> None:
        super().restore_state(state, trials)
        if self._saves_plain_data:
            saved: str = self._checked(state)["base"]
            self._base_scheduler.restore_state(saved.encode("latin-1"), trials)

    def _to_plain(self) -> Plain:
        base = self._base_trial_resources
        return {
            "base": self._base_scheduler.save_state().decode("latin-1"),  # any bytes as text
            **super()._to_plain(),
            "base_trial_resources": None if base is None else base.described(),
            "changes": self._changes.to_plain(),
            "unsaved": self._unsaved.to_plain(),
        }

    def _from_plain(self, state: Plain) -> None:
        base = state["base_trial_resources"]
        super()._from_plain(state)
        self._base_trial_resources = None if base is None else PlacementGroupFactory(*base)
        self._changes = Changes.from_plain(state["changes"])
        self._unsaved = Unsaved.from_plain(state["unsaved"])
