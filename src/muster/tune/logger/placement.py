"""Where a trial's files are, and from which iteration it goes on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.trials.model import Trial


def trial_directory(experiment_dir: str, trial: Trial) -> str:
    """The same directory the engine is told with StartTrial."""
    return f"{experiment_dir}/{trial.relative_logdir or trial.trial_id}"


def restored_iteration(trial: Trial) -> int | None:
    """How far a trial that starts now has already come; None: its rows must stay as they are.

    Without a checkpoint it begins anew. From a checkpoint of another trial (an exploit) it goes on beside its
    own past, which is kept; and so it is when the checkpoint does not say its iteration.
    """
    checkpoint = trial.checkpoint
    if checkpoint is None:
        return 0
    own = trial.relative_logdir or trial.trial_id
    if f"/{own}/" not in checkpoint.path:
        return None
    iteration = checkpoint.metrics.get("training_iteration")
    return int(iteration) if isinstance(iteration, (int, float)) else None
