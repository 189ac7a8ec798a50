"""ControllerView: what schedulers and searchers are given as `tune_controller`.

Reads answer from the state; writes are recorded and carried out after the hook has returned. A plug-in never
reaches an engine.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from muster.base.resources import SCALE, Resources
from muster.trials.checkpoints import adopt
from muster.trials.model import CheckpointRef, Trial
from muster.trials.states import TrialState
from muster.trials.trial_index import TrialIndex


class Occupancy(NamedTuple):
    """All there is, what processes of trials hold of it, and how many trials there are."""

    capacity: Resources
    used: Resources  # by those about to end, too
    live: int  # not finished
    pending: int
    paused: int


class ResourceReading:
    """Ray's `tune_controller._resource_updater`: what all trials together may use."""

    def __init__(self, capacity: Resources) -> None:
        self._capacity = capacity

    def get_num_cpus(self) -> float:
        return self._amount("CPU")

    def get_num_gpus(self) -> float:
        return self._amount("GPU")

    def _amount(self, name: str) -> float:
        """A whole number as an int, because it is divided by numbers of trials."""
        units = self._capacity.units(name)
        return units / SCALE if units % SCALE else units // SCALE


class PluginRequest(Enum):
    """What a plug-in asked for."""

    PAUSE = "pause"
    PAUSE_WITHOUT_SAVE = "pause-without-save"
    STOP = "stop"
    SAVE = "save"
    KEEP_STEPS = "keep-steps"  # qualifies the PAUSE that the same hook decided
    REMEMBER = "remember"  # done already; only to be repeated on a restore


class Recorded(NamedTuple):
    wish: PluginRequest
    trial: Trial


class ControllerView:
    """One per experiment. `get_live_trials` are the trials that are not finished."""

    def __init__(self, roster: TrialIndex, search_alg: object) -> None:
        self._roster = roster
        self.search_alg = search_alg
        self._recorded: list[Recorded] = []
        self.trial_executor = self  # old schedulers go through this name

    def get_trials(self) -> list[Trial]:
        return list(self._roster.order)

    def get_live_trials(self) -> set[Trial]:
        return {trial for trial in self._roster.live.values() if not trial.is_finished()}

    def get_trial(self, trial_id: str) -> Trial | None:
        return self._roster.trials.get(trial_id)

    def first_waiting(self) -> Trial | None:
        """The longest waiting PENDING trial, else the first PAUSED one; free, however many there are."""
        for index in (self._roster.pending, self._roster.paused):
            if index:
                return next(iter(index.values()))
        return None

    def has_resources_for_trial(self, trial: Trial) -> bool:
        return True

    def occupancy(self) -> Occupancy:
        """All there is, what is held of it, and how many trials there are; free."""
        roster = self._roster
        counts = (len(roster.live), len(roster.pending), len(roster.paused))
        return Occupancy(roster.capacity, roster.used, *counts)

    def get_running_trials(self) -> list[Trial]:
        """Trials that have a process and are not about to end; looks at none of the others."""
        return [trial for trial in self._roster.holders() if not trial.is_finished()]

    @property
    def _resource_updater(self) -> ResourceReading:
        return ResourceReading(self._roster.capacity)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        self._recorded.append(
            Recorded(PluginRequest.PAUSE if should_checkpoint else PluginRequest.PAUSE_WITHOUT_SAVE, trial)
        )

    def stop_trial(self, trial: Trial) -> None:
        self._recorded.append(Recorded(PluginRequest.STOP, trial))

    def _schedule_trial_save(self, trial: Trial, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Ray's signature
        self._recorded.append(Recorded(PluginRequest.SAVE, trial))

    def adopt_checkpoint(self, trial: Trial, checkpoint: CheckpointRef) -> None:
        """At once: a trial without a process will go on from another's checkpoint. From a choice only."""
        adopt(trial, checkpoint)
        self._roster.borrowers[trial.trial_id] = trial
        self.remember_choice(trial)

    def remember_choice(self, trial: Trial) -> None:
        """For `choose_trial_to_run`: this call changed what later answers depend on.

        A restore then asks for it again; other choices are only asked for again when they were carried out.
        """
        self._recorded.append(Recorded(PluginRequest.REMEMBER, trial))

    def keep_steps(self, trial: Trial) -> None:
        """For a hook that answers PAUSE: only with a checkpoint of this step; else the trial goes on."""
        self._recorded.append(Recorded(PluginRequest.KEEP_STEPS, trial))

    def withdraw_save(self, trial: Trial) -> bool:
        """Whether a save of it was asked for; whoever asks sees to it."""
        return self.withdraw(trial, PluginRequest.SAVE)

    def withdraw(self, trial: Trial, wish: PluginRequest) -> bool:
        kept = [one for one in self._recorded if one.trial is not trial or one.wish is not wish]
        is_wanted = len(kept) < len(self._recorded)
        self._recorded = kept
        return is_wanted

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        """Ray lets schedulers do this; only putting a paused trial back in the queue means anything here."""
        if status == "PENDING" and trial.state is TrialState.PAUSED:
            self._roster.move(trial, TrialState.PENDING)

    @property
    def has_wishes(self) -> bool:
        return bool(self._recorded)

    def take(self) -> list[Recorded]:
        """What was asked for since the last call."""
        recorded, self._recorded = self._recorded, []
        return recorded
