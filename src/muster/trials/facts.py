"""What the experiment's store holds: facts in the order in which they were handled, never decisions.

Restore replays them into freshly restored plug-ins; so a fact carries everything a plug-in was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from muster.trials.events import CheckpointSaved, TrialExited, TrialReported, TrialStarted


class TrialCreated(Struct, frozen=True, kw_only=True, tag="created"):
    """The searcher suggested a trial."""

    trial_id: str
    at: float
    config: Mapping[str, Any]
    evaluated_params: Mapping[str, Any]
    experiment_tag: str
    trial_name: str
    relative_logdir: str


class TrialAdmitted(Struct, frozen=True, kw_only=True, tag="admitted"):
    """The scheduler chose a waiting trial and it was handed to the engine.

    Without a trial id: asked for a choice, the scheduler wanted something else done (stop a paused trial).
    """

    trial_id: str
    at: float


class ExperimentEnded(Struct, frozen=True, kw_only=True, tag="ended"):
    """Everything was told to stop: a stopper, fail_fast, or the user."""

    at: float


class SearchExhausted(Struct, frozen=True, kw_only=True, tag="exhausted"):
    """The searcher has no more trials."""

    at: float


Fact = (
    TrialCreated
    | TrialAdmitted
    | TrialStarted
    | TrialReported
    | CheckpointSaved
    | TrialExited
    | SearchExhausted
    | ExperimentEnded
)
