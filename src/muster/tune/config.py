"""TuneConfig, RunConfig and their parts: what the user asks for, checked when it is said.

Fields, order and defaults are Ray Tune's; ours come last. Nothing here touches a file or starts anything.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeVar

from muster.tune.config_parts import (
    DEPRECATED,
    BriefRepr,
    CheckpointConfig,
    FailureConfig,
    ResumeConfig,
    SyncConfig,
    is_int,
    log_files,
    seconds,
)

__all__ = [
    "CheckpointConfig",
    "FailureConfig",
    "ResumeConfig",
    "RunConfig",
    "SyncConfig",
    "TuneConfig",
    "log_files",
    "seconds",
]

DEFAULT_STORAGE_PATH = "~/ray_results"
MODES = ("min", "max")
ENGINES = ("auto", "local", "ray")

_Part = TypeVar("_Part")


@dataclass(repr=False)
class TuneConfig(BriefRepr):
    """What to optimise and how to search.

    Args:
        mode: "min" or "max" (several for a searcher with several objectives).
        metric: The result key to optimise; nested ones as `a/b`.
        search_alg: A Searcher or SearchAlgorithm, or its name; None: grid and random search.
        scheduler: A TrialScheduler, or its name; None: first in, first out.
        num_samples: How often the space is sampled; -1: until something else ends the experiment.
        max_concurrent_trials: At most so many trials at once; None or 0: as many as fit.
        time_budget_s: Seconds, or a timedelta, after which no trial goes on.
        reuse_actors: Let a process run one trial after another instead of one trial only.
        trial_name_creator: `f(trial) -> str`.
        trial_dirname_creator: `f(trial) -> str`, without path separators.

    Example:
        >>> TuneConfig(metric="loss", mode="min", num_samples=20)
        TuneConfig(mode='min', metric='loss', num_samples=20)
    """

    mode: str | list[str] | None = None
    metric: str | list[str] | None = None
    search_alg: Any = None
    scheduler: Any = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = False
    trial_name_creator: Callable[[Any], str] | None = None
    trial_dirname_creator: Callable[[Any], str] | None = None
    chdir_to_trial_dir: bool | str = DEPRECATED

    def __post_init__(self) -> None:
        if self.chdir_to_trial_dir != DEPRECATED:
            raise DeprecationWarning(
                "TuneConfig(chdir_to_trial_dir=...) does not exist any more: set the environment variable "
                "RAY_CHDIR_TO_TRIAL_DIR=0 to keep the working directory of the driver"
            )
        self._check_mode()
        if not is_int(self.num_samples) or self.num_samples < -1:
            raise ValueError(
                f"TuneConfig(num_samples={self.num_samples!r}): must be a whole number, or -1 for no end"
            )
        limit = self.max_concurrent_trials
        if limit is not None and (not is_int(limit) or limit < 0):
            raise ValueError(
                f"TuneConfig(max_concurrent_trials={limit!r}): must be a whole number; None or 0: no limit"
            )
        seconds(self.time_budget_s, "TuneConfig(time_budget_s=...)")

    def _check_mode(self) -> None:
        several = isinstance(self.mode, list | tuple)
        modes = self.mode if several else [self.mode] if self.mode is not None else []
        if any(mode not in MODES for mode in modes or ()):
            raise ValueError(f"TuneConfig(mode={self.mode!r}): must be 'min' or 'max'")


@dataclass(repr=False)
class RunConfig(BriefRepr):
    """Where an experiment runs and writes, what ends it, and what people see of it.

    Args:
        name: Of the experiment and its directory; None: made from the trainable and the time.
        storage_path: A local directory or any URL that fsspec knows; None: `~/ray_results`.
        storage_filesystem: A file system of your own (fsspec or pyarrow); `storage_path` is a path in it.
        failure_config: See FailureConfig.
        checkpoint_config: See CheckpointConfig.
        sync_config: See SyncConfig.
        verbose: 0: silent, 1: the usual, 2 and 3: more.
        stop: `{flat key: threshold}`, `f(trial_id, result) -> bool`, a Stopper or a list of Stoppers.
        callbacks: A list; called at the events of every trial.
        progress_reporter: Shows the state of the experiment.
        log_to_file: True: a trial's output goes to `stdout` and `stderr` in its directory; a name: both to
            that file; two names: one each.
        engine: Where trials run: "local" (processes on this machine), "ray" (a Ray cluster), or "auto".
        trial_time_limit_s: A trial that runs longer (seconds or a timedelta) is ended as failed.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    verbose: int | None = None
    stop: Any = None
    callbacks: Any = None
    progress_reporter: Any = None
    log_to_file: bool | str | Sequence[str] = False
    local_dir: str | None = None
    engine: str = "auto"
    trial_time_limit_s: float | timedelta | None = None

    def __post_init__(self) -> None:
        if self.local_dir is not None:
            raise DeprecationWarning("RunConfig(local_dir=...) does not exist any more: use storage_path")
        if self.storage_path is None:
            self.storage_path = _default_storage_path()
        elif not isinstance(self.storage_path, str):
            self.storage_path = _posix(self.storage_path)
        self.failure_config = _part("failure_config", self.failure_config, FailureConfig)
        self.checkpoint_config = _part("checkpoint_config", self.checkpoint_config, CheckpointConfig)
        self.sync_config = _part("sync_config", self.sync_config, SyncConfig)
        self.verbose = _default_verbosity() if self.verbose is None else self.verbose
        self._check()

    def _check(self) -> None:
        if not is_int(self.verbose) or not 0 <= int(self.verbose or 0) <= 3:
            raise ValueError(f"RunConfig(verbose={self.verbose!r}): must be 0, 1, 2 or 3")
        if self.callbacks is not None and not isinstance(self.callbacks, Sequence):
            kind = type(self.callbacks).__name__
            raise ValueError(f"RunConfig(callbacks=...): must be a list of callbacks, not a {kind}")
        if self.engine not in ENGINES:
            known = ", ".join(repr(name) for name in ENGINES)
            raise ValueError(f"RunConfig(engine={self.engine!r}): must be one of {known}")
        log_files(self.log_to_file)
        limit = seconds(self.trial_time_limit_s, "RunConfig(trial_time_limit_s=...)")
        if limit is not None and not limit > 0:
            raise ValueError(f"RunConfig(trial_time_limit_s={limit!r}): must be more than 0 seconds")

    def __repr__(self) -> str:
        """Without the parts that were filled in."""
        blank = RunConfig(storage_path=self.storage_path)
        shown = [
            f"{each.name}={value!r}"
            for each in fields(self)
            if (value := getattr(self, each.name)) != getattr(blank, each.name)
            or (each.name == "storage_path" and value != os.path.expanduser(DEFAULT_STORAGE_PATH))
        ]
        return f"RunConfig({', '.join(shown)})"


def _part(name: str, given: _Part | None, kind: type[_Part]) -> _Part:
    if given is None:
        return kind()
    if not isinstance(given, kind):
        hint = f"{kind.__name__}(**{{...}})" if isinstance(given, Mapping) else f"{kind.__name__}(...)"
        raise ValueError(f"RunConfig({name}=...): got a {type(given).__name__}; pass {hint}")
    return given


def _default_storage_path() -> str:
    from muster.host.machine import environment

    told = environment().get("RAY_STORAGE")
    if not told:
        return os.path.expanduser(DEFAULT_STORAGE_PATH)
    warnings.warn(
        f"the environment variable RAY_STORAGE ({told}) is deprecated: pass RunConfig(storage_path=...)",
        DeprecationWarning,
        stacklevel=4,
    )
    return told


def _default_verbosity() -> int:
    """1; 3 for the old console, whose levels mean something else."""
    from muster.host.machine import environment

    return 3 if environment().get("RAY_AIR_NEW_OUTPUT") == "0" else 1


def _posix(path: os.PathLike[str]) -> str:
    from pathlib import Path

    return Path(path).as_posix()
