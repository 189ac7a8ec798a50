"""CheckpointConfig, FailureConfig, SyncConfig, ResumeConfig, and how durations and log files are written.

The parts of a RunConfig; users import them from `muster.tune`. Checked when they are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from enum import Enum
from numbers import Real

DEPRECATED = "DEPRECATED"
LogFiles = tuple["str | None", "str | None"]


class BriefRepr:
    """Shows the fields that differ from their defaults: a config is read by people."""

    def __repr__(self) -> str:
        told = []
        for each in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, each.name)
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if value is not default and value != default:
                told.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(repr=False)
class CheckpointConfig(BriefRepr):
    """When checkpoints are made and which of them are kept.

    Args:
        num_to_keep: How many, at least 1; None: all. The newest is always kept too.
        checkpoint_score_attribute: The metric that says which are the best; None: the newest are.
        checkpoint_score_order: "max" or "min".
        checkpoint_frequency: Every so many iterations; 0: never. Only for class trainables.
        checkpoint_at_end: Also when a trial ends. Only for class trainables, where it is the default.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str | None = "max"
    checkpoint_frequency: int | None = 0
    checkpoint_at_end: bool | None = None
    _checkpoint_keep_all_ranks: bool | str | None = DEPRECATED
    _checkpoint_upload_from_workers: bool | str | None = DEPRECATED

    def __post_init__(self) -> None:
        for name in ("_checkpoint_keep_all_ranks", "_checkpoint_upload_from_workers"):
            if getattr(self, name) != DEPRECATED:
                raise DeprecationWarning(
                    f"CheckpointConfig({name}=...) does not exist any more: leave it out"
                )
        keep = self.num_to_keep
        if keep is not None and (not is_int(keep) or keep < 1):
            raise ValueError(
                f"CheckpointConfig(num_to_keep={keep!r}): must be at least 1, or None to keep all checkpoints"
            )
        if self.checkpoint_score_order not in ("max", "min"):
            order = self.checkpoint_score_order
            raise ValueError(f"CheckpointConfig(checkpoint_score_order={order!r}): must be 'max' or 'min'")
        frequency = self.checkpoint_frequency
        if not is_int(frequency or 0) or (frequency or 0) < 0:
            raise ValueError(
                f"CheckpointConfig(checkpoint_frequency={frequency!r}): must be 0 (never) or more iterations"
            )


@dataclass(repr=False)
class FailureConfig(BriefRepr):
    """What a failed trial means.

    Args:
        max_failures: How often a trial is tried again; -1: for ever.
        fail_fast: True: the first failure ends the experiment. "raise": and raises the trial's exception.
    """

    max_failures: int = 0
    fail_fast: bool | str = False

    def __post_init__(self) -> None:
        if not is_int(self.max_failures):
            raise ValueError(
                f"FailureConfig(max_failures={self.max_failures!r}): must be a whole number, or -1 for no end"
            )
        is_raise = isinstance(self.fail_fast, str) and self.fail_fast.lower() == "raise"
        if not isinstance(self.fail_fast, bool) and not is_raise:
            raise ValueError(f"FailureConfig(fail_fast={self.fail_fast!r}): must be True, False or 'raise'")
        if self.fail_fast and self.max_failures != 0:
            raise ValueError(
                f"FailureConfig(max_failures={self.max_failures}, fail_fast={self.fail_fast!r}): a run that "
                "ends at the first failure retries nothing; set max_failures=0 or fail_fast=False"
            )

    @property
    def raises_first(self) -> bool:
        """Whether `fail_fast` is "raise", in any spelling."""
        return isinstance(self.fail_fast, str)


@dataclass(repr=False)
class SyncConfig(BriefRepr):
    """How files of trials get to the storage.

    Args:
        sync_period: Seconds between two uploads.
        sync_timeout: Seconds after which an upload counts as failed.
        sync_artifacts: Also copy what trials write to their working directory.
        sync_artifacts_on_checkpoint: Do that with every checkpoint, whatever the period.
    """

    sync_period: float = 300
    sync_timeout: float = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        for name in ("sync_period", "sync_timeout"):
            value = getattr(self, name)
            if not _is_number(value) or not value >= 0:
                raise ValueError(f"SyncConfig({name}={value!r}): must be a number of seconds, 0 or more")


@dataclass(repr=False)
class ResumeConfig(BriefRepr):
    """What a restored experiment does with its trials, by how they ended.

    Example:
        >>> ResumeConfig(errored=ResumeConfig.ResumeType.RESTART)
        ResumeConfig(errored=<ResumeType.RESTART: 'restart'>)
    """

    class ResumeType(Enum):
        """What is done with trials of one kind."""

        RESUME = "resume"  # go on from the newest checkpoint
        RESTART = "restart"  # begin again
        SKIP = "skip"  # leave as they are

    finished: ResumeType = ResumeType.SKIP
    unfinished: ResumeType = ResumeType.RESUME
    errored: ResumeType = ResumeType.SKIP

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            value = getattr(self, name)
            try:
                setattr(self, name, self.ResumeType(value))
            except ValueError:
                known = ", ".join(repr(each.value) for each in self.ResumeType)
                raise ValueError(f"ResumeConfig({name}={value!r}): must be one of {known}") from None


def log_files(log_to_file: bool | str | Sequence[str] | None) -> LogFiles:
    """The names of the files for stdout and stderr that `log_to_file` stands for.

    Example:
        >>> log_files(True), log_files("all.log"), log_files(("out", "err")), log_files(False)
        (('stdout', 'stderr'), ('all.log', 'all.log'), ('out', 'err'), (None, None))
    """
    if log_to_file is None or log_to_file is False:
        return None, None
    if log_to_file is True:
        return "stdout", "stderr"
    if isinstance(log_to_file, str):
        return log_to_file, log_to_file
    if isinstance(log_to_file, Sequence) and [type(name) for name in log_to_file] == [str, str]:
        return log_to_file[0], log_to_file[1]
    raise ValueError(
        f"log_to_file={log_to_file!r}: must be False, True, the name of one file, or two names: for stdout "
        "and for stderr"
    )


def seconds(value: float | timedelta | None, where: str) -> float | None:
    """A duration as seconds; ValueError that names `where` when it is none."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not _is_number(value) or math.isnan(value):
        raise ValueError(f"{where}: must be a number of seconds or a timedelta, not {value!r}")
    return float(value)


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
