"""Defines the commands for an engine. Submitting never blocks; every outcome comes back as an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from muster.trials.model import CheckpointRef
from muster.trials.placement_group import PlacementGroupFactory


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
