"""Define the events from an engine and the facts of an experiment; trials change only by handling them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct, field

from muster.session.session import PreemptionInfo
from muster.trials.model import CheckpointRef
from muster.trials.placement_group import PlacementGroupFactory


class TrialFailureKind(Enum):
    """The reason why the process of a trial failed; users react differently to each."""

    USER_ERROR = "user-error"  # its code raised
    KILLED = "killed"  # a signal ended the process
    OUT_OF_MEMORY = "out-of-memory"
    EXITED = "exited"  # the process ended without a report (os._exit)
    TIME_LIMIT = "time-limit"  # its own hard limit
    SILENT = "silent"  # no heartbeat
    UNPICKLABLE = "unpicklable"  # its result or its code cannot cross the process border
    START = "start"  # its process could not be made
    NEVER_REPORTED = "never-reported"  # its command ended well without a result
    RESET_REFUSED = "reset-refused"  # reset_config returned False
    NODE_LOST = "node-lost"  # the machine went away
    PREEMPTED = "preempted"  # the machine was taken back
    PLUGIN = "plug-in"  # it ended well, but a plug-in raised when it was notified of that


class TrialFailure(Struct, frozen=True, kw_only=True):
    """Describes the end of a failed trial."""

    kind: TrialFailureKind
    message: str
    traceback: str = ""
    exception: bytes | None = None  # pickled, when it can be


class TrialStarted(Struct, frozen=True, kw_only=True, gc=False):
    """TrialStarted: the process is up, its setup is done and, when there was a checkpoint, it is loaded."""

    trial_id: str
    at: float
    location: Mapping[str, Any] = field(default_factory=dict)  # pid, hostname, node_ip
    reused: bool = False


class TrialReported(Struct, frozen=True, kw_only=True, gc=False):
    """TrialReported carries one result; the trial now waits for ContinueTrial, SaveTrial or StopTrial."""

    trial_id: str
    at: float
    result: dict[str, Any]  # nested, auto-filled keys included
    checkpoint: CheckpointRef | None = None  # made by this very report


class CheckpointSaved(Struct, frozen=True, kw_only=True):
    """CheckpointSaved answers SaveTrial; without a checkpoint the trainable had nothing to save."""

    trial_id: str
    at: float
    checkpoint: CheckpointRef | None = None
    message: str = ""  # why there is none, when that is an error


class TrialExited(Struct, frozen=True, kw_only=True):
    """TrialExited: the process ended, or is free for another trial. Comes exactly once per StartTrial."""

    trial_id: str
    at: float
    failure: TrialFailure | None = None
    is_done: bool = False  # its code returned by itself
    reusable: bool = False  # the process waits for another StartTrial


class TrialNoticed(Struct, frozen=True, kw_only=True):
    """TrialNoticed: the machine of a trial will be taken; without `info` it stays after all."""

    trial_id: str
    at: float
    info: PreemptionInfo | None = None


class TrialPriced(Struct, frozen=True, kw_only=True, tag="priced", gc=False):
    """TrialPriced: the place that a trial holds costs so much, from `at` on until it exits or another comes.

    A price that becomes known late holds from the beginning: then `at` lies in the past.
    """

    trial_id: str
    at: float
    usd_per_hour: float  # for its share of the node


class CapacityChanged(Struct, frozen=True, kw_only=True):
    """CapacityChanged carries what all trials together may use from now on."""

    at: float
    capacity: Mapping[str, float]
    is_bounded: bool = True  # False: it may grow beyond that without a known limit


class Woke(Struct, frozen=True, kw_only=True, gc=False):
    """Woke: nothing arrived for a while, and the clock is to be checked."""

    at: float


EngineEvent = (
    TrialStarted
    | TrialReported
    | CheckpointSaved
    | TrialExited
    | TrialNoticed
    | TrialPriced
    | CapacityChanged
)
Event = EngineEvent | Woke


class TrialCreated(Struct, frozen=True, kw_only=True, tag="created"):
    """TrialCreated: the searcher suggested a trial."""

    trial_id: str
    at: float
    config: Mapping[str, Any]
    evaluated_params: Mapping[str, Any]
    experiment_tag: str
    trial_name: str
    relative_logdir: str
    resources: Sequence[Any] | None = None  # as `PlacementGroupFactory.saved` returns them
    why: str = ""  # the searcher suggested it, in words; for readers only


class TrialAdmitted(Struct, frozen=True, kw_only=True, tag="admitted"):
    """TrialAdmitted: the scheduler chose a waiting trial, and the engine was asked to start it.

    Without a trial id: asked for a choice, the scheduler requested something else (stop a paused trial).
    """

    trial_id: str
    at: float
    resources: Sequence[Any] | None = None  # where a scheduler changed those it was created with
    repeats: bool = False  # nobody chose it: it makes the checkpoint that was due when the last driver ended


class TrialMoved(Struct, frozen=True, kw_only=True, tag="moved"):
    """TrialMoved: the time of a machine was over, and its trial continues elsewhere from its checkpoint."""

    trial_id: str
    at: float


class TrialDecided(Struct, frozen=True, kw_only=True, tag="decided", gc=False):
    """TrialDecided: a plug-in or a rule stopped, paused, promoted or changed a trial; for readers only.

    A restore asks the plug-ins again and does not need it.
    """

    trial_id: str
    at: float
    decision: str  # one of `controller_view.DECIDED`
    reason: str  # in words


class ExperimentEnded(Struct, frozen=True, kw_only=True, tag="ended"):
    """ExperimentEnded: all trials were stopped, by a stopper, by fail_fast or by the user."""

    at: float


class ExperimentResumed(Struct, frozen=True, kw_only=True, tag="resumed"):
    """ExperimentResumed: a new driver took over; the processes that trials had are gone."""

    at: float


class SearchExhausted(Struct, frozen=True, kw_only=True, tag="exhausted"):
    """SearchExhausted: the searcher has no more trials."""

    at: float


class TrialCharged(Struct, frozen=True, kw_only=True, tag="charged"):
    """TrialCharged: an attempt of a trial is over; so much has the trial cost by then, in all attempts."""

    trial_id: str
    at: float
    cost_usd: float | None  # None: a price was not known


class TrialSuspended(Struct, frozen=True, kw_only=True, tag="suspended"):
    """TrialSuspended: the budget or the deadline takes the process of a trial, which then waits again."""

    trial_id: str
    at: float
    saves: bool  # a checkpoint comes first; False: it has just made one, or there is no time for one


class TrialStopRequested(Struct, frozen=True, kw_only=True, tag="stop-requested"):
    """TrialStopRequested: the user asked to stop a trial."""

    trial_id: str
    at: float


class LimitsChanged(Struct, frozen=True, kw_only=True, tag="limits"):
    """LimitsChanged: the user gave the experiment another budget or deadline."""

    at: float
    cost_budget: float | None
    deadline: float | None


Fact = (
    TrialCreated
    | TrialAdmitted
    | TrialStarted
    | TrialReported
    | CheckpointSaved
    | TrialExited
    | TrialNoticed
    | TrialMoved
    | TrialDecided
    | TrialPriced
    | TrialCharged
    | TrialSuspended
    | TrialStopRequested
    | LimitsChanged
    | SearchExhausted
    | ExperimentEnded
    | ExperimentResumed
)


class CheckpointToDelete(Struct, frozen=True, kw_only=True):
    """A checkpoint that is no longer kept, with the fact that made it superfluous."""

    ref: CheckpointRef
    after: int  # facts up to and including that one: the checkpoint may be deleted once so many are durable


class StartTrial(Struct, frozen=True, kw_only=True):
    """StartTrial runs a trial: from its checkpoint when it has one, in a warm process when one is free."""

    trial_id: str
    trial_name: str
    trainable_name: str  # the engine was given the trainable under this name
    config: Mapping[str, Any]
    resources: PlacementGroupFactory
    trial_dir: str  # where its files go
    experiment_name: str
    experiment_tag: str = ""
    checkpoint: CheckpointRef | None = None
    checkpoint_index: int = -1  # numbering continues from here
    log_to_file: tuple[str | None, str | None] = (None, None)
    may_reuse: bool = False
    time_limit_s: float | None = None
    buffering: tuple[int, float, float, int] = (1, 0.0, 100.0, 0)  # results sent together; see ReportBuffer


class ContinueTrial(Struct, frozen=True, kw_only=True, gc=False):
    """ContinueTrial answers a report: the trial continues."""

    trial_id: str


class SaveTrial(Struct, frozen=True, kw_only=True):
    """SaveTrial requests a checkpoint now; the trial waits again afterwards."""

    trial_id: str
    is_optional: bool = False  # muster's own wish; otherwise a trial that cannot save fails, as in Ray


class StopTrial(Struct, frozen=True, kw_only=True):
    """StopTrial ends a trial: gently, then by force after `grace_s`. Unknown trials are ignored."""

    trial_id: str
    keep_process: bool = False  # its process may serve another trial
    grace_s: float = 10.0


EngineCommand = StartTrial | ContinueTrial | SaveTrial | StopTrial
