"""Define the states of a trial, the allowed transitions with a comment for each, and Ray's five names."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct

from muster.base.state_machine import StateMachine
from muster.trials.metrics import NO_LEAVES, ConfigLeaves


class TrialState(Enum):
    """The internal state of one trial; `PUBLIC` maps it to one of Ray's five names."""

    PENDING = "PENDING"  # waits for resources
    STARTING = "STARTING"  # handed to the engine; no event yet
    RUNNING = "RUNNING"  # its code runs, or waits for our answer to a report
    SAVING = "SAVING"  # asked for a checkpoint; a decision waits for it
    PAUSED = "PAUSED"  # has no process; can continue from its checkpoint
    STOPPING = "STOPPING"  # a stop is requested; its process has not ended yet
    TERMINATED = "TERMINATED"  # ended without error
    ERROR = "ERROR"  # failed, out of retries

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a slow Python call


_S = TrialState

TRIAL_MACHINE: StateMachine[TrialState] = StateMachine(
    "trial",
    {
        _S.PENDING: (
            _S.STARTING,  # resources were found
            _S.SAVING,  # restored between a result and its checkpoint: it runs again up to there
            _S.TERMINATED,  # stopped before it began
            _S.ERROR,  # it can never start: its trainable or resources are impossible
        ),
        _S.STARTING: (
            _S.RUNNING,  # its process is up (or a warm one was reset)
            _S.PENDING,  # the start failed and may be tried again
            _S.STOPPING,  # stopped while starting
            _S.TERMINATED,  # ended before it reported
            _S.ERROR,  # the start failed for good
        ),
        _S.RUNNING: (
            _S.SAVING,  # a checkpoint is due before the decision
            _S.STOPPING,  # stop or pause was decided
            _S.PENDING,  # it failed and is tried again
            _S.TERMINATED,  # its code returned
            _S.ERROR,  # it failed for good
        ),
        _S.SAVING: (
            _S.RUNNING,  # saved; it continues
            _S.STOPPING,  # saved; stop or pause follows
            _S.PENDING,  # it failed while saving and is tried again
            _S.TERMINATED,  # its code returned while saving
            _S.ERROR,  # it failed while saving, for good
        ),
        _S.STOPPING: (
            _S.PAUSED,  # its process ended; it may continue later
            _S.TERMINATED,  # its process ended
            _S.PENDING,  # paused and chosen again before its process had ended; it failed; the budget took it
            _S.ERROR,  # it failed while stopping
        ),
        _S.PAUSED: (
            _S.PENDING,  # the scheduler chose it again
            _S.TERMINATED,  # stopped while paused
            _S.ERROR,  # its checkpoint is lost and it may not start over
        ),
        _S.TERMINATED: (
            _S.PENDING,  # a restored experiment runs it again; a plug-in raised at its end, and it may retry
            _S.ERROR,  # a plug-in raised when it was notified of the end
        ),
        _S.ERROR: (
            _S.PENDING,  # a restored experiment runs it again
        ),
    },
)

# What plug-ins, users and files see; for STOPPING the trial shows what it will be (`Trial.status`).
PUBLIC = {
    _S.PENDING: "PENDING",
    _S.STARTING: "PENDING",
    _S.RUNNING: "RUNNING",
    _S.SAVING: "RUNNING",
    _S.PAUSED: "PAUSED",
    _S.TERMINATED: "TERMINATED",
    _S.ERROR: "ERROR",
}
FINISHED = frozenset({_S.TERMINATED, _S.ERROR})
HAS_PROCESS = frozenset({_S.STARTING, _S.RUNNING, _S.SAVING, _S.STOPPING})


class LiveState(Struct):
    """What the lifecycle notes of a trial until it ends; a finished trial has none."""

    after_save: str | None = None  # what happens once its checkpoint is saved
    is_restoring: bool = False  # started from a checkpoint, no report since
    # Its driver ended before the checkpoint that was due with a result: the rows then, and what follows.
    owed: tuple[int, str] | None = None
    repeats: int = 0  # it runs again up to this row
    moved_at: float | None = None  # when it last left a machine on purpose
    frees_process: bool = False  # its process will be free in a moment
    plugin_failure: Any = None  # a TrialFailure: a plug-in raised when it was notified of the end
    config_leaves: ConfigLeaves = NO_LEAVES  # of the last result, for the next one

    def saved(self) -> dict[str, Any]:
        """Return what a snapshot needs, without defaults."""
        names = ("after_save", "is_restoring", "owed", "repeats")
        return {name: value for name in names if (value := getattr(self, name))}
