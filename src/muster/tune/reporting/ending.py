"""The words at the end of a run: how to go on with one that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.info import RunInfo


def resume_lines(info: RunInfo, trials: Sequence[Trial]) -> list[str]:
    """What a person who pressed Ctrl-C needs to know."""
    finished = sum(trial.is_finished() for trial in trials)
    planned = info.total if info.total is not None else len(trials)
    return [
        f"Stopped before the end: {finished} of {planned} trials are finished. Nothing is lost. To go on:",
        f"  in a shell:   muster tune resume {shell_word(info.directory)}",
        f"  in Python:    tune.Tuner.restore({info.directory!r}, {_trainable(trials)}).fit()",
    ]


def shell_word(path: str) -> str:
    """A path as one can paste it into a shell."""
    import shlex

    return shlex.quote(path)


def _trainable(trials: Sequence[Trial]) -> str:
    name = trials[0].trainable_name if trials else ""
    return name if name.isidentifier() else "trainable"
