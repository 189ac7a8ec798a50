"""Define TrialRecord, a trial as plain data for results and analyses, running or from the store.

Attribute names are those of Ray's Trial, because `ExperimentAnalysis.trials` are read by users.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from muster.errors import StoreError, TuneError
from muster.session.checkpoint import Checkpoint
from muster.stores.experiment.reader import STORE_NAME, open_trials
from muster.stores.experiment.summary import TrialSummary
from muster.stores.storage import Storage
from muster.trials.checkpoints import best_checkpoints
from muster.trials.metrics import TRAINING_ITERATION, Statistics, flatten, tried_config
from muster.trials.model import CheckpointRef, Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.tune.analysis.ray_results import rays_hint
from muster.tune.analysis.result_files import EXPR_ERROR_FILE, EXPR_ERROR_PICKLE_FILE, Scored, TrialFolder
from muster.tune.analysis.tables import Row

MetricAnalysis = Mapping[str, Mapping[str, float]]


@dataclass(eq=False)
class TrialRecord:
    """One trial; it can be pickled. `path` is on `filesystem` (None: this machine)."""

    trial_id: str
    status: str
    path: str
    name: str = ""
    trainable_name: str = ""
    experiment_tag: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    evaluated_params: dict[str, Any] = field(default_factory=dict)
    last_result: dict[str, Any] = field(default_factory=dict)
    analysed: MetricAnalysis | Statistics | None = None  # None: from the log
    newest: CheckpointRef | None = None
    retained: tuple[CheckpointRef, ...] | None = None  # worst first; None: those on disk
    pickled_error: bytes | None = None  # None: the one in its directory
    error_text: str = ""
    experiment_path: str = ""  # on the same filesystem
    filesystem: Any = None
    find: Callable[[str], Checkpoint] | None = None  # of an experiment whose checkpoints may be elsewhere
    start_time: float | None = None  # of its first start, where that is known, else of its last
    num_failures: int = 0
    placement_group_factory: PlacementGroupFactory | None = None
    made_at: Mapping[int, int] = field(default_factory=dict)  # see TrialFolder.checkpoints
    cost_usd: float | None = None  # None: no price was known
    decision: str = ""  # the last one on it, where facts say it
    reason: str = ""

    @property
    def folder(self) -> TrialFolder:
        return TrialFolder(self.path, self.filesystem)

    @property
    def local_path(self) -> str:
        return self.path

    logdir = local_path

    def is_finished(self) -> bool:
        """Return whether the trial has ended, well or not."""
        return self.status in ("TERMINATED", "ERROR")

    def has_checkpoint(self) -> bool:
        return self.checkpoint is not None

    @property
    def error_file(self) -> str | None:
        """The text file about the failures of the trial; None when it has not failed."""
        return self.folder.path_of(EXPR_ERROR_FILE)

    @property
    def pickled_error_file(self) -> str | None:
        return self.folder.path_of(EXPR_ERROR_PICKLE_FILE)

    def get_error(self) -> str | None:
        """Return what `error.txt` holds; None when there is none."""
        return self.folder._text(EXPR_ERROR_FILE)

    def get_pickled_error(self) -> Any:  # noqa: ANN401 - as `error`
        return self.error

    @property
    def run_metadata(self) -> TrialRecord:
        return self  # Ray keeps `last_result` and others there

    def rows(self) -> list[Row]:
        """Return every logged result; see TrialFolder.rows."""
        return self.folder.rows()

    def rows_if_any(self) -> list[Row]:
        """Return every logged result; empty when there is no log."""
        try:
            return self.rows()
        except FileNotFoundError:
            return []

    @property
    def metric_analysis(self) -> MetricAnalysis:
        """`max, min, avg, last, last-5-avg, last-10-avg` of every flat metric."""
        if self.analysed is None:
            self.analysed = analysis_of(self.rows_if_any())
        elif isinstance(self.analysed, Statistics):  # for the few trials that are looked at
            self.analysed = self.analysed.analysis()
        return self.analysed

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint."""
        if self.newest is not None:
            return self._handle(self.newest)
        found = self._on_disk() if self.retained is None else []
        return found[-1][0] if found else None

    @property
    def best_checkpoints(self) -> list[Scored]:
        """The retained checkpoints with the results they were made at, the best last."""
        if self.retained is None:
            return self._on_disk()
        return [(self._handle(ref), dict(ref.metrics)) for ref in self.retained]

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the trial; a TuneError with the reason when it raised none."""
        if self.status == "TERMINATED":
            return None
        found = self.folder.error(self.pickled_error, self.error_text)
        if found is None and self.status == "ERROR":
            return self._saved_error()  # there was no room for error.txt, or somebody has deleted it
        return found

    def _saved_error(self) -> BaseException | None:
        with contextlib.suppress(StoreError, ValueError, OSError):
            for summary in saved_trials(self.experiment_path, self.filesystem):
                if summary.trial_id == self.trial_id and (failure := summary.failure) is not None:
                    return self.folder.error(failure.exception, failure.traceback or failure.message)
        return TuneError(
            f"{self.path}: neither error.txt nor experiment.sqlite has its error", fix="run it again"
        )

    def _on_disk(self) -> list[Scored]:
        found = self.folder.checkpoints(self._readable_rows, self.made_at)
        newest = self.newest
        if newest is None:
            return found
        return [(each, metrics or _metrics_of(newest, each)) for each, metrics in found]

    def _readable_rows(self) -> list[Row]:
        with contextlib.suppress(ValueError, StoreError):  # a damaged log hides no checkpoint
            return self.rows_if_any()
        return []

    def _handle(self, ref: CheckpointRef) -> Checkpoint:
        if self.find is not None:
            return self.find(ref.path)
        return Checkpoint(ref.path, filesystem=None if "://" in ref.path else self.filesystem)

    def __str__(self) -> str:
        return self.name or self.trial_id

    def __repr__(self) -> str:
        return str(self)


def as_record(
    trial: TrialRecord | Trial | TrialSummary,
    experiment_path: str,
    filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
) -> TrialRecord:
    """Return a trial of any kind as plain data."""
    if isinstance(trial, TrialRecord):
        return trial
    place = f"{experiment_path.rstrip('/')}/{trial.relative_logdir or trial.trial_id}"
    if isinstance(trial, Trial):
        record = _of_trial(trial, place, filesystem)
    else:
        record = _of_summary(trial, place, filesystem)
    record.experiment_path = experiment_path
    return record


def _of_trial(trial: Trial, path: str, filesystem: Any) -> TrialRecord:  # noqa: ANN401
    return TrialRecord(
        trial_id=trial.trial_id,
        status=trial.status,
        path=path,
        name=str(trial),
        trainable_name=trial.trainable_name,
        experiment_tag=trial.experiment_tag,
        config=dict(tried_config(trial.last_result, trial.config)),
        evaluated_params=trial.evaluated_params,
        last_result=_completed(trial.last_result, trial),
        analysed=trial.statistics,
        newest=trial.newest,
        retained=best_checkpoints(trial.checkpoints, trial.checkpoint_policy),
        filesystem=filesystem,
        start_time=trial.start_time,
        num_failures=trial.num_failures,
        placement_group_factory=trial.placement_group_factory,
        cost_usd=None if trial.is_unpriced else trial.cost_usd,
    )


def _of_summary(summary: TrialSummary, path: str, filesystem: Any) -> TrialRecord:  # noqa: ANN401
    failure = summary.failure
    return TrialRecord(
        trial_id=summary.trial_id,
        status=summary.status,
        path=path,
        name=summary.trial_name,
        experiment_tag=summary.experiment_tag,
        config=dict(summary.config),
        evaluated_params=dict(summary.evaluated_params),
        last_result=_completed(dict(summary.result) or {"trial_id": summary.trial_id}, summary),
        newest=summary.checkpoint,
        pickled_error=None if failure is None else failure.exception,
        error_text="" if failure is None else failure.traceback or failure.message,
        filesystem=filesystem,
        start_time=summary.started_at,
        num_failures=summary.failures,
        placement_group_factory=PlacementGroupFactory.from_saved(summary.resources),
        made_at=summary.made_at,
        cost_usd=summary.cost_usd,
        decision=summary.decision,
        reason=summary.reason,
    )


def _completed(result: Mapping[str, Any], trial: Trial | TrialSummary) -> dict[str, Any]:
    """Return the last result with the trial id; without any, at least where and with what it ran."""
    if TRAINING_ITERATION in result:
        ended = {"done": True} if trial.status == Trial.TERMINATED else {}  # not a row of the store
        return {**result, "experiment_tag": trial.experiment_tag, **ended}
    known: dict[str, Any] = {"trial_id": trial.trial_id}  # in Ray's order
    if (at := trial.start_time if isinstance(trial, Trial) else trial.started_at) is not None:
        known |= {"date": datetime.fromtimestamp(at).strftime("%Y-%m-%d_%H-%M-%S"), "timestamp": int(at)}
    location = trial.location if isinstance(trial, Trial) else {}
    return {**known, **location, "config": dict(trial.config), **result}


def analysis_of(rows: list[Row]) -> MetricAnalysis:
    """Return the statistics that the controller would have kept of these results."""
    scratch = Trial("", trial_id="")
    for row in rows:
        scratch.note_result(row, flatten(row), at=0.0)
    return scratch.metric_analysis


def _metrics_of(ref: CheckpointRef, checkpoint: Checkpoint) -> dict[str, Any]:
    is_same = ref.path.rstrip("/").endswith(checkpoint.path.rstrip("/"))  # it may be a URL
    return dict(ref.metrics) if is_same else {}


def experiment_directory(path: str) -> str:
    """Return the directory, given it or a state file in it."""
    place, _, name = path.rstrip("/").rpartition("/")
    is_file = name == STORE_NAME or (name.startswith("experiment_state-") and name.endswith(".json"))
    return (place or ".") if is_file else path.rstrip("/") or "/"


def saved_trials(directory: str, filesystem: Any = None) -> tuple[TrialSummary, ...]:  # noqa: ANN401
    """Return the trials in the order of their creation; ValueError when there is no store."""
    storage = Storage(directory, filesystem)
    if storage.size(STORE_NAME) is None:
        own = "Give the directory that fit() or run() wrote (<storage_path>/<name>), not that of a trial"
        hint = rays_hint(storage.listing(), directory) or own
        raise ValueError(f"{directory} is not an experiment directory ({STORE_NAME} not found). {hint}")
    with open_trials(directory, filesystem=filesystem) as reader:
        return reader.trials()
