"""Define the plug-ins of an experiment as protocols with Ray's hook names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from muster.base.resources import SCALE, Resources
from muster.trials.checkpoints import adopt
from muster.trials.model import CheckpointRef, Trial
from muster.trials.states import TrialState
from muster.trials.trial_index import TrialIndex

CONTINUE, PAUSE, STOP, NOOP = "CONTINUE", "PAUSE", "STOP", "NOOP"
STOP_EARLY = "STOP_EARLY"  # a STOP of the scheduler: its searcher does not take the trial for complete
STOPS = frozenset({STOP, STOP_EARLY})
ITERATION, SECONDS = "training_iteration", "time_total_s"  # result keys that time can be counted by


class Milestone(NamedTuple):
    """A moment of a trial's training at which its scheduler may stop or pause it."""

    time: float  # of the result key `time_attr`
    continues: float  # the probability that it continues from there
    time_attr: str = ITERATION
    is_barrier: bool = False  # it gives its node back there, and waits for others


class RungToOpen(NamedTuple):
    """Training that trials continue together, once all of some trials have come so far."""

    waits_for: tuple[str, ...]  # trials that are not there yet
    number: int  # of trials that continue
    time: float  # of the result key `time_attr`: what each of them trains then
    time_attr: str = ITERATION
    follows: tuple[tuple[int, float], ...] = ()  # (number, time) of the rungs after it


class SearchPlugin(Protocol):
    """Suggests trials, one per call."""

    metric: Any

    def next_trial(self) -> Trial | None:
        """Return a new PENDING trial; None: no trial is available now (try again, unless `is_finished`)."""
        ...

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None: ...

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called at the end of a trial.

        If the scheduler stopped the trial, and the signature takes it: also with `stopped=True`.
        """
        ...

    def is_finished(self) -> bool: ...

    def set_finished(self) -> None: ...

    def save_state(self) -> bytes:
        """Return everything that determines the next suggestion, including random streams."""
        ...

    def restore_state(self, state: bytes) -> None: ...


def stopped_argument(search: Any, stopped: bool) -> dict[str, Any]:  # noqa: ANN401 - also a Searcher
    """Return `stopped=True` for `search.on_trial_complete`, if its signature takes that."""
    return (
        {"stopped": True} if stopped and "stopped" in signature(search.on_trial_complete).parameters else {}
    )


class SchedulerPlugin(Protocol):
    """Decides which trial runs and whether a trial continues."""

    metric: Any

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str: ...  # noqa: ANN401

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None: ...  # noqa: ANN401

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None: ...  # noqa: ANN401


class StopperPlugin(Protocol):
    """Ends single trials or the whole experiment."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool: ...

    def stop_all(self) -> bool: ...


class Hooks(Protocol):
    """Hooks call the callbacks of an experiment in order; a callback may change a result in place."""

    def fire(self, hook: str, *, iteration: int, trials: Sequence[Trial], **info: Any) -> None: ...  # noqa: ANN401


@dataclass(frozen=True)
class Plugins:
    """The user objects of one experiment."""

    search: SearchPlugin
    scheduler: SchedulerPlugin
    stopper: StopperPlugin | None
    hooks: Hooks


class Occupancy(NamedTuple):
    """The capacity, what the processes of trials hold of it, and the numbers of trials."""

    capacity: Resources
    used: Resources  # including trials that are about to end
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
        """Return a whole number as an int, because callers divide it by numbers of trials."""
        units = self._capacity.units(name)
        return units / SCALE if units % SCALE else units // SCALE


STOPPED, PAUSED, PROMOTED, COPIED = DECIDED = ("stopped", "paused", "promoted", "copied")


class PluginRequest(Enum):
    """An action that a plug-in asked for."""

    PAUSE = "pause"
    PAUSE_WITHOUT_SAVE = "pause-without-save"
    STOP = "stop"
    SAVE = "save"
    KEEP_STEPS = "keep-steps"  # qualifies the PAUSE that the same hook decided
    REMEMBER = "remember"  # done already; only to be repeated on a restore


class RecordedRequest(NamedTuple):
    """Waits until the hook that made it has returned."""

    request: PluginRequest
    trial: Trial


ALLOWED = ("get_trials", "get_live_trials", "search_alg", "pause_trial", "stop_trial", "trial_executor")


class ControllerView:
    """Answers plug-ins and records what they request; there is one per experiment."""

    def __init__(self, index: TrialIndex, search_alg: object) -> None:
        self._index = index
        self.search_alg = search_alg
        self.requests: list[RecordedRequest] = []  # since they were last carried out
        self.reasons: dict[str, tuple[str, str]] = {}  # by trial: one of DECIDED, and why
        self.trial_executor = self  # old schedulers go through this name
        self.warn: Callable[[str], None] = lambda text: None
        self._warned: set[str] = set()

    def get_trials(self) -> list[Trial]:
        return list(self._index.order)

    def get_live_trials(self) -> set[Trial]:
        return {trial for trial in self._index.live.values() if not trial.is_finished()}

    def get_trial(self, trial_id: str) -> Trial | None:
        return self._index.trials.get(trial_id)

    def first_waiting(self) -> Trial | None:
        """Return the longest waiting PENDING trial, else the first PAUSED one, in constant time."""
        for queue in (self._index.pending, self._index.paused):
            if queue:
                return next(iter(queue.values()))
        return None

    def has_resources_for_trial(self, trial: Trial) -> bool:
        return True

    def occupancy(self) -> Occupancy:
        """Return the capacity, what is held of it, and the numbers of trials, in constant time."""
        index = self._index
        counts = (len(index.live), len(index.pending), len(index.paused))
        return Occupancy(index.capacity, index.used, *counts)

    def get_running_trials(self) -> list[Trial]:
        """Return the trials that have a process and are not about to end; visits none of the others."""
        return [trial for trial in self._index.holders() if not trial.is_finished()]

    @property
    def _resource_updater(self) -> ResourceReading:
        return ResourceReading(self._index.capacity)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        self.requests.append(
            RecordedRequest(
                PluginRequest.PAUSE if should_checkpoint else PluginRequest.PAUSE_WITHOUT_SAVE, trial
            )
        )

    def stop_trial(self, trial: Trial) -> None:
        self.requests.append(RecordedRequest(PluginRequest.STOP, trial))

    def _schedule_trial_save(self, trial: Trial, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Ray's signature
        self.requests.append(RecordedRequest(PluginRequest.SAVE, trial))

    save = _schedule_trial_save  # of `trial_executor`

    if not TYPE_CHECKING:  # or every name would be an attribute

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any attribute
            """Return what Ray's controller has besides its interface, where it exists here; warns once."""
            if name.startswith("__") or "_warned" not in vars(self):  # copies and pickles look for these
                raise AttributeError(name)
            advice = f"`tune_controller.{name}` is not for schedulers and searchers; use {', '.join(ALLOWED)}"
            if name not in self._warned:
                self._warned.add(name)
                self.warn(advice)
            if name not in _INTERNAL:
                raise AttributeError(advice)
            return _INTERNAL[name](self)

    def adopt_checkpoint(self, trial: Trial, checkpoint: CheckpointRef) -> None:
        """Let a trial without a process continue from another's checkpoint; for `choose_trial_to_run`."""
        adopt(trial, checkpoint)
        self._index.borrowers[trial.trial_id] = trial
        self.remember_choice(trial)

    def remember_choice(self, trial: Trial) -> None:
        """Record that this call of `choose_trial_to_run` changed what later answers depend on.

        A restore then repeats the call; other choices are repeated only when they were carried out.
        """
        self.requests.append(RecordedRequest(PluginRequest.REMEMBER, trial))

    def keep_steps(self, trial: Trial) -> None:
        """Make the PAUSE of this hook depend on a checkpoint of this step; else the trial continues."""
        self.requests.append(RecordedRequest(PluginRequest.KEEP_STEPS, trial))

    def withdraw(self, trial: Trial, request: PluginRequest) -> bool:
        """Remove a request for this trial and returns whether there was one; the caller carries it out."""
        kept = [one for one in self.requests if one.trial is not trial or one.request is not request]
        was_requested = len(kept) < len(self.requests)
        self.requests = kept
        return was_requested

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        """Put a paused trial back in the queue; no other change that Ray allows has a meaning here."""
        if status == "PENDING" and trial.state is TrialState.PAUSED:
            self._index.move(trial, TrialState.PENDING)

    def explain(self, trial_id: str, decision: str, reason: str) -> None:
        """Record why this hook stops, pauses, promotes or changes a trial: words that end a sentence."""
        self.reasons[trial_id] = (decision, reason)

    def take(self) -> list[RecordedRequest]:
        """Return what was requested since the last call."""
        taken, self.requests = self.requests, []
        return taken


# Of Ray's controller; schedulers in the wild read them.
_INTERNAL: dict[str, Callable[[ControllerView], Any]] = {
    "_trials": ControllerView.get_trials,
    "_live_trials": ControllerView.get_live_trials,
    "_search_alg": lambda view: view.search_alg,
}
