"""Define RunConfig and its parts, checked when they are made, and how durations and log files are written.

Fields, order and defaults are Ray Tune's; ours come last. Nothing here touches a file or starts a process.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from functools import wraps
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from muster.base.untrusted import ray_object_hint, type_text
from muster.errors import public
from muster.session.older import accept_older

if TYPE_CHECKING:
    from muster.slurm.config import SlurmConfig

DEFAULT_STORAGE_PATH = "~/ray_results"
MAX_NAME_BYTES = 255  # of a directory, on every file system
DEPRECATED = "DEPRECATED"
ENGINES = ("auto", "local", "ray", "slurm")
LogFiles = tuple["str | None", "str | None"]

_Part = TypeVar("_Part")


class BriefRepr:
    """BriefRepr shows only the fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown = []
        for each in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, each.name)
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if value is not default and value != default:
                shown.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@public
@dataclass(repr=False)
class CheckpointConfig(BriefRepr):
    """Defines when checkpoints are made and which of them are kept.

    Args:
        num_to_keep: How many, at least 1; None: all. The newest is always kept too.
        checkpoint_score_attribute: The metric by which the best are chosen; None: the newest are kept.
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


@public
@dataclass(repr=False)
class FailureConfig(BriefRepr):
    """Defines what a failed trial means.

    Args:
        max_failures: How often a trial is tried again; -1: forever.
        fail_fast: True: the first failure stops the experiment. "raise": its exception is raised too.
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


@public
@dataclass(repr=False)
class SyncConfig(BriefRepr):
    """Defines how files of trials are copied to the storage.

    Args:
        sync_period: Seconds between two uploads.
        sync_timeout: Seconds after which an upload has failed.
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


_OLDER_SYNC = ("syncer", "sync_on_checkpoint", "sync_to_driver", "sync_to_cloud", "node_sync_period")


def _with_older_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of SyncConfig; it accepts arguments that Ray has removed."""

    @wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - those of SyncConfig
        place = kwargs.pop("upload_dir", None)
        if place is not None:
            accept_older("SyncConfig(upload_dir=...)", "use RunConfig(storage_path=...)")
            self._upload_dir = place
        for name in _OLDER_SYNC:
            if kwargs.pop(name, DEPRECATED) != DEPRECATED:
                accept_older(f"SyncConfig({name}=...)", "leave it out")
        init(self, *args, **kwargs)

    return call


SyncConfig.__init__ = _with_older_arguments(SyncConfig.__init__)  # type: ignore[method-assign]


@public
@dataclass(repr=False)
class RunConfig(BriefRepr):
    """Defines where an experiment runs and writes, what stops it, and what users see of it.

    Args:
        name: The name of the experiment and its directory; None: made from the trainable and the time.
        storage_path: A local directory or any URL that fsspec knows; None: `~/ray_results`.
        storage_filesystem: A file system object (fsspec or pyarrow); `storage_path` is a path in it.
        failure_config: See FailureConfig.
        checkpoint_config: See CheckpointConfig.
        sync_config: See SyncConfig.
        verbose: 0 or False: silent, 1 or True: the usual, 2 and 3: more.
        stop: `{flat key: threshold}`, `f(trial_id, result) -> bool`, a Stopper or a list of Stoppers.
        callbacks: A list; called at the events of every trial.
        progress_reporter: Shows the state of the experiment.
        log_to_file: True: a trial's output goes to `stdout` and `stderr` in its directory; a name: both to
            that file; two names: one each.
        engine: Where trials run: "local" (processes on this machine), "ray" (a Ray cluster), "slurm" (jobs of
            a Slurm cluster; tune.SlurmConfig(...) says which), or "auto".
        trial_time_limit_s: A trial that runs longer (seconds or a timedelta) is ended as failed.
        page: Whether `muster dashboard` is started with the experiment and its address shown (extra `page`).
        price_per_hour: What this machine costs in $ per hour, for `cost_usd` and TuneConfig(cost_budget=...);
            on Ray, what a node costs whose price the cluster's autoscaler does not publish. It is here, not
            in TuneConfig, because it belongs to where trials run.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    verbose: int | bool | None = None
    stop: Any = None
    callbacks: Any = None
    progress_reporter: Any = None
    log_to_file: bool | str | Sequence[str] = False
    local_dir: str | None = None
    engine: str | SlurmConfig = "auto"
    trial_time_limit_s: float | timedelta | None = None
    page: bool = False
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if self.local_dir is not None:
            accept_older("RunConfig(local_dir=...)", "use storage_path")
            self.storage_path, self.local_dir = self.storage_path or self.local_dir, None
        if self.storage_path is None:
            self.storage_path = getattr(self.sync_config, "_upload_dir", None)
        if self.storage_path is None:
            self.storage_path = _default_storage_path()
        elif not isinstance(self.storage_path, str | os.PathLike):
            raise ValueError(f"RunConfig(storage_path={self.storage_path!r}): must be a directory or a URL")
        elif not isinstance(self.storage_path, str):
            from pathlib import Path

            self.storage_path = Path(self.storage_path).as_posix()
        scheme, colon, rest = self.storage_path.partition(":/")
        if colon and scheme.isalnum() and len(scheme) > 1 and not (rest[:1] == "/" and rest.strip("/")):
            url = f"{scheme}://bucket/directory, as a text"
            raise ValueError(f"RunConfig(storage_path={self.storage_path!r}): write {url}")
        self.failure_config = _part("failure_config", self.failure_config, FailureConfig)
        self.checkpoint_config = _part("checkpoint_config", self.checkpoint_config, CheckpointConfig)
        self.sync_config = _part("sync_config", self.sync_config, SyncConfig)
        verbose = self.verbose
        if verbose is None:
            from muster.host.machine import environment

            # The levels of the old console mean something else.
            verbose = 3 if environment().get("RAY_AIR_NEW_OUTPUT") == "0" else 1
        self.verbose = int(verbose) if isinstance(verbose, bool) else verbose
        self._check()

    def _check(self) -> None:
        if not is_int(self.verbose) or not 0 <= int(self.verbose or 0) <= 3:
            raise ValueError(f"RunConfig(verbose={self.verbose!r}): must be 0, 1, 2 or 3")
        if self.callbacks is not None and not isinstance(self.callbacks, Sequence):
            kind = type(self.callbacks).__name__
            raise ValueError(f"RunConfig(callbacks=...): must be a list of callbacks, not a {kind}")
        for given in (*(self.callbacks or ()), self.progress_reporter):
            if isinstance(given, type):
                name = "progress_reporter" if given is self.progress_reporter else "callbacks"
                kind = given.__name__
                raise ValueError(f"RunConfig({name}={kind}): is a class; pass an object of it, {kind}()")
        for given in self.callbacks or ():
            if not any(name == "setup" or name.startswith(("on_", "after_")) for name in dir(given)):
                raise ValueError(f"RunConfig(callbacks=[{given!r}]): has no hook; pass a tune.Callback")
        if not isinstance(self.page, bool):
            raise ValueError(f"RunConfig(page={self.page!r}): must be True or False")
        longest = max(map(len, os.fsencode(self.name or "").split(b"/")))
        if longest > MAX_NAME_BYTES:
            fault = f"is {longest} bytes long, and a directory's name has at most {MAX_NAME_BYTES}"
            raise ValueError(f"RunConfig(name={f'{self.name:.20}...'!r}): {fault}; choose a shorter name")
        self._check_engine()
        log_files(self.log_to_file)
        self.price_per_hour = dollars(
            self.price_per_hour, f"RunConfig(price_per_hour={self.price_per_hour!r})"
        )
        limit = seconds(self.trial_time_limit_s, "RunConfig(trial_time_limit_s=...)")
        if limit is not None and not limit > 0:
            raise ValueError(f"RunConfig(trial_time_limit_s={limit!r}): must be more than 0 seconds")

    def _check_engine(self) -> None:
        if (chosen := self.engine) not in ENGINES:
            from muster.slurm.config import SlurmConfig

            if not isinstance(chosen, SlurmConfig):
                known = ", ".join(repr(name) for name in ENGINES)
                raise ValueError(f"RunConfig(engine={chosen!r}): must be one of {known}, or a SlurmConfig")

    def __repr__(self) -> str:
        """Show the fields without the parts that were filled in."""
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
        if theirs := ray_object_hint(given):
            raise ValueError(f"RunConfig({name}=...): {theirs}")
        hint = f"{kind.__name__}(**{{...}})" if isinstance(given, Mapping) else f"{kind.__name__}(...)"
        raise ValueError(f"RunConfig({name}=...): got {type_text(given)}; pass {hint}")
    return given


def _default_storage_path() -> str:
    from muster.host.machine import environment

    path = environment().get("RAY_STORAGE")
    if not path:
        return os.path.expanduser(DEFAULT_STORAGE_PATH)
    warnings.warn(
        f"the environment variable RAY_STORAGE ({path}) is deprecated: pass RunConfig(storage_path=...)",
        DeprecationWarning,
        stacklevel=5,
    )
    return path


def log_files(log_to_file: bool | str | Sequence[str] | None) -> LogFiles:
    """Return the names of the files for stdout and stderr that `log_to_file` stands for.

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
    """Return a duration in seconds; ValueError that names `where` when it is none."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not _is_number(value) or math.isnan(value):
        raise ValueError(f"{where}: must be a number of seconds or a timedelta, not {value!r}")
    return float(value)


def dollars(value: float | None, where: str) -> float | None:
    """Return an amount of money, 0 or more; ValueError that names `where` when it is none."""
    if value is None:
        return None
    if not _is_number(value) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}: must be a number of dollars, 0 or more")
    return float(value)


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
