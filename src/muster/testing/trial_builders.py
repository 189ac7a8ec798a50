"""Facts of an experiment with defaults, for tests of stores and of restore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.trials.events import (
    CheckpointSaved,
    FailureKind,
    TrialCreated,
    TrialExited,
    TrialFailure,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef

START = 1_700_000_000.0


def created(trial_id: str = "a_00000", config: Mapping[str, Any] | None = None) -> TrialCreated:
    """A suggestion of the searcher."""
    chosen = {"lr": 0.5} if config is None else config
    return TrialCreated(
        trial_id=trial_id,
        at=START,
        config=chosen,
        evaluated_params=chosen,
        experiment_tag=f"tag-{trial_id}",
        trial_name=f"train_{trial_id}",
        relative_logdir=f"train_{trial_id}_dir",
    )


def started(trial_id: str = "a_00000", at: float = START + 1) -> TrialStarted:
    return TrialStarted(trial_id=trial_id, at=at, location={"pid": 7, "hostname": "h", "node_ip": "::1"})


def reported(
    trial_id: str = "a_00000", iteration: int = 1, checkpoint: CheckpointRef | None = None, **metrics: object
) -> TrialReported:
    """A result with Ray's automatic keys that matter to stores."""
    result = {**metrics, "training_iteration": iteration, "trial_id": trial_id, "done": False}
    return TrialReported(trial_id=trial_id, at=START + 1 + iteration, result=result, checkpoint=checkpoint)


def saved(trial_id: str, checkpoint: CheckpointRef | None, message: str = "") -> CheckpointSaved:
    return CheckpointSaved(trial_id=trial_id, at=START + 50, checkpoint=checkpoint, message=message)


def exited(trial_id: str = "a_00000", failure: TrialFailure | None = None) -> TrialExited:
    return TrialExited(trial_id=trial_id, at=START + 90, failure=failure, is_done=failure is None)


def failed(trial_id: str = "a_00000") -> TrialExited:
    """Its code raised."""
    failure = TrialFailure(
        kind=FailureKind.USER_ERROR, message="boom", traceback="line 1\nline 2", exception=b"\x80\x04N."
    )
    return exited(trial_id, failure)
