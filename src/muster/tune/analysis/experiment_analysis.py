"""Answer questions about the trials of an experiment, in memory or read from its directory."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from muster.errors import StoreError, public
from muster.host.machine import environment
from muster.session.checkpoint import Checkpoint, as_arrow, as_fsspec
from muster.session.older import accept_older
from muster.trials.metrics import DEFAULT_METRIC, flatten, rank_key
from muster.trials.model import Trial
from muster.tune.analysis.result_files import opened_place
from muster.tune.analysis.tables import (
    SCOPES,
    Row,
    best_scored,
    check_mode,
    flat_row,
    frame,
    need_pandas,
    no_single_best,
)
from muster.tune.analysis.trial_record import TrialRecord, as_record
from muster.tune.pareto import several_objectives, violations

if TYPE_CHECKING:
    import pandas as pd

    from muster.stores.experiment.summary import TrialSummary

logger = logging.getLogger(__name__)

AnyTrial: TypeAlias = "TrialRecord | Trial | TrialSummary"


@public
class ExperimentAnalysis:
    """What `tune.run` returns, and what reads the directory of an experiment.

    Args:
        experiment_checkpoint_path: The experiment's directory, or its `experiment.sqlite`.
        storage_filesystem: An fsspec file system that the path is in.
        trials: The trials, when they are in memory; None: read from the directory.
        default_metric: Used by `best_*` and by methods that are called without a metric. Several objectives
            have no single best trial: `best_*` then names `get_pareto_front`.
        default_mode: "min" or "max"; without a metric it is about the value that trainables return.
        constraints: Upper bounds by result key: trials above one are on no Pareto front, and ranked last.
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str],
        *,
        storage_filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
        trials: Sequence[AnyTrial] | None = None,
        default_metric: str | Sequence[str] | None = None,
        default_mode: str | Sequence[str] | None = None,
        constraints: Mapping[str, float] | None = None,
    ) -> None:
        from muster.tune.analysis.trial_record import experiment_directory, saved_trials

        is_single = default_metric is None or isinstance(default_metric, str)
        self._objectives = "" if is_single else no_single_best(default_metric, default_mode)
        self.objectives = several_objectives((default_metric, default_mode))
        self.constraints = dict(constraints or {})
        if self._objectives:
            default_metric = default_mode = None
        if default_mode is not None:
            check_mode(default_mode, "ExperimentAnalysis(default_mode=...)")
            default_metric = default_metric or DEFAULT_METRIC
        self.default_metric = default_metric if isinstance(default_metric, str) else None
        self.default_mode = default_mode if isinstance(default_mode, str) else None
        place = experiment_directory(os.fspath(experiment_checkpoint_path))
        self._path, self._filesystem = opened_place(place, storage_filesystem)
        found = saved_trials(self._path, self._filesystem) if trials is None else trials
        self._given: tuple[AnyTrial, ...] = tuple(found)
        if any(isinstance(each, Trial) and not each.is_finished() for each in found):
            _ = self.trials  # as they are now

    @cached_property
    def trials(self) -> list[TrialRecord]:
        """The trials in the order of their creation; made when first read, as they take much memory."""
        given, self._given = self._given, ()
        return [as_record(trial, self._path, self._filesystem) for trial in given]

    @property
    def experiment_path(self) -> str:
        """The directory of the experiment."""
        return self._path

    @property
    def filesystem(self) -> Any:  # noqa: ANN401 - untyped fsspec
        """The file system that the directory is on: pyarrow's where it is installed, else fsspec's."""
        return as_arrow(as_fsspec(self._filesystem))

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each trial, by trial id."""
        return {trial.trial_id: trial.last_result for trial in self.trials}

    @property
    def results_df(self) -> pd.DataFrame:
        """The last results as a table."""
        return _last_results(self.trials, "ExperimentAnalysis.results_df")

    @cached_property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """All logged results of each trial, by trial id; empty frames where there is no log."""
        what = "ExperimentAnalysis.trial_dataframes"
        return {trial_id: frame(rows, what) for trial_id, rows in self._logged().items()}

    @property
    def best_trial(self) -> TrialRecord | None:
        """The best trial by the experiment's metric."""
        self._need_defaults("best_trial")
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any] | None:
        """The configuration of the best trial."""
        self._need_defaults("best_config")
        return self.get_best_config()

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint of the best trial."""
        return self.get_best_checkpoint(self._best("best_checkpoint"))

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """All logged results of the best trial."""
        best = self._best("best_dataframe")
        return frame(best.rows_if_any(), "ExperimentAnalysis.best_dataframe")

    @property
    def best_result(self) -> dict[str, Any]:
        """The last result of the best trial."""
        return self._best("best_result").last_result

    @property
    def best_result_df(self) -> pd.DataFrame:
        """The last result of the best trial, as a table of one line."""
        return _last_results([self._best("best_result_df")], "ExperimentAnalysis.best_result_df")

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """Return one line per trial that logged something: its last result, or the best by the metric.

        Args:
            metric: Take each trial's best result by this metric, not its last.
            mode: "min" or "max".
        """
        return frame(self.result_rows(metric, mode), "ExperimentAnalysis.dataframe")

    def result_rows(self, metric: str | None = None, mode: str | None = None) -> list[Row]:
        """Return the lines of `dataframe`, without pandas.

        Args:
            metric: As for `dataframe`.
            mode: As for `dataframe`.
        """
        if mode is not None and metric is None:
            raise ValueError(f"mode={mode!r} was given without a metric: pass metric=... too")
        if mode is not None:
            check_mode(mode, "ExperimentAnalysis.dataframe")
        elif metric is not None:
            logger.warning("metric=%r without a mode selects nothing: the last results are shown", metric)
        configs = self.get_all_configs(prefix=True)
        chosen = []
        for trial_id, rows in self._logged().items():
            row = _row_of(rows, metric, mode, trial_id)
            if row is not None:
                chosen.append({**row, **configs[trial_id], "logdir": trial_id})
        return chosen

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Return the config of each trial by trial id; with `prefix` flat, as `config/<key>`."""
        if not prefix:
            return {trial.trial_id: trial.config for trial in self.trials}
        return {trial.trial_id: flat_row({"config": trial.config}) for trial in self.trials}

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> TrialRecord | None:
        """Return the first of the best trials; None, with a warning, when no trial reported the metric.

        Args:
            metric: A flat key.
            mode: "min" or "max".
            scope: Which of a trial's values to compare: "last", "all" (its best), "avg", "last-5-avg",
                "last-10-avg".
            filter_nan_and_inf: Leave out trials whose value is not a finite number.
        """
        metric, mode = self._metric(metric), self._mode(mode)
        if scope not in SCOPES:
            raise ValueError(f"scope={scope!r}: must be one of {', '.join(SCOPES)}")
        best: tuple[tuple[bool, float], TrialRecord] | None = None
        for trial in self.trials:
            value = trial.metric_analysis.get(metric, {}).get(mode if scope == "all" else scope)
            if value is None or (filter_nan_and_inf and rank_key(value, mode) is None):
                continue
            violates = any(violations(flatten(trial.last_result), self.constraints))
            rank = violates, -value if mode == "max" else value
            if best is None or rank < best[0]:
                best = rank, trial
        if best is None:
            logger.warning(
                "no trial of %s reported a%s value of %r: there is no best one",
                self._path,
                " finite" if filter_nan_and_inf else "",
                metric,
            )
        return None if best is None else best[1]

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Return the config of the best trial; None when there is none.

        Args:
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
            scope: "last", "avg", "last-5-avg", "last-10-avg" or "all".
        """
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    def get_best_checkpoint(
        self, trial: AnyTrial, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Return the best checkpoint of a trial; None, with an error log, when none has this metric.

        Args:
            trial: The trial.
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
        """
        metric, mode = self._metric(metric), self._mode(mode)
        record = as_record(trial, self._path, self._filesystem)
        best = best_scored(record.best_checkpoints, metric, mode)
        if best is None:
            logger.error("no checkpoint of trial %s has a number for %r", record.trial_id, metric)
        return best

    def get_last_checkpoint(
        self, trial: AnyTrial | None = None, metric: str = "training_iteration", mode: str = "max"
    ) -> Checkpoint | None:
        """Return the newest checkpoint of a trial: of the given one, else of the best by `metric`.

        Args:
            trial: The trial; by default the best one.
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
        """
        chosen = self.get_best_trial(metric, mode) if trial is None else trial
        return None if chosen is None else as_record(chosen, self._path, self._filesystem).checkpoint

    @property
    def best_logdir(self) -> str:
        """The directory of the best trial, by its older name."""
        accept_older("ExperimentAnalysis.best_logdir", "use analysis.best_trial.local_path")
        return self._best("best_logdir").local_path

    def get_best_logdir(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> str | None:
        """Return the directory of the best trial; None when there is none.

        Args:
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
            scope: As for `get_best_trial`.
        """
        accept_older("ExperimentAnalysis.get_best_logdir", "use get_best_trial(...).local_path")
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.local_path

    def get_trial_checkpoints_paths(
        self, trial: AnyTrial, metric: str | None = None
    ) -> list[tuple[str, Any]]:
        """Return the path of each retained checkpoint of a trial, and the value of a metric."""
        accept_older("ExperimentAnalysis.get_trial_checkpoints_paths", "use result.best_checkpoints")
        name = self._metric(metric)
        record = as_record(trial, self._path, self._filesystem)
        return [(os.fspath(each), result.get(name)) for each, result in record.best_checkpoints]

    def fetch_trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """Return `trial_dataframes`, by its older name."""
        accept_older("ExperimentAnalysis.fetch_trial_dataframes", "use analysis.trial_dataframes")
        return self.trial_dataframes

    def stats(self) -> dict[str, Any]:
        """Return the numbers of the experiment that Ray 1 kept in its state file."""
        accept_older("ExperimentAnalysis.stats", "use analysis.results and analysis.trials")
        times = [result.get("timestamp", 0) for result in self.results.values()]
        total = sum(result.get("time_total_s", 0) for result in self.results.values())
        return {"timestamp": max(times, default=0), "total_time": total, "trials": len(self.trials)}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the tables: they can be read again."""
        _ = self.trials  # as plain data
        return {name: value for name, value in vars(self).items() if name != "trial_dataframes"}

    def _logged(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        failed: list[str] = []
        for trial in self.trials:
            try:
                found[trial.trial_id] = trial.rows()
            except (OSError, ValueError, StoreError) as error:
                found[trial.trial_id] = []
                failed.append(f"{trial}: {error}")
        if failed:
            logger.warning("results of %d trial(s) cannot be read:\n  %s", len(failed), "\n  ".join(failed))
        return found

    def need_one_objective(self, call: str, metric: str | None, hint: str) -> None:
        """Raise ValueError for a call without a metric when the experiment has several objectives.

        Args:
            call: The call, for the error.
            metric: The metric it was given.
            hint: What to call instead.
        """
        if not metric and self._objectives:
            raise ValueError(f"{call}: {self._objectives}{hint and f'; {hint}'}")

    def _need_defaults(self, name: str) -> None:
        self.need_one_objective(f"ExperimentAnalysis.{name}", None, "get_best_trial takes one of the metrics")
        if not (self.default_metric and self.default_mode):
            raise ValueError(
                f"ExperimentAnalysis.{name} needs a metric and a mode: pass them to tune.run, TuneConfig or "
                "ExperimentAnalysis(default_metric=..., default_mode=...)"
            )

    def _best(self, name: str) -> TrialRecord:
        self._need_defaults(name)
        best = self.get_best_trial()
        if best is None:
            raise ValueError(f"ExperimentAnalysis.{name}: no trial reported {self.default_metric!r}")
        return best

    def _metric(self, metric: str | None) -> str:
        chosen = metric or self.default_metric
        self.need_one_objective("ExperimentAnalysis", metric, "or pass metric=... and mode=...")
        if not chosen:
            raise ValueError("no metric: pass metric=..., or set it in tune.run or TuneConfig")
        return chosen

    def _mode(self, mode: str | None) -> str:
        chosen = mode or self.default_mode
        if not chosen:
            raise ValueError("no mode: pass mode='min' or 'max', or set it in tune.run or TuneConfig")
        check_mode(chosen, "ExperimentAnalysis")
        return chosen


def _row_of(rows: Sequence[Mapping[str, Any]], metric: str | None, mode: str | None, who: str) -> Row | None:
    if not rows:
        return None
    flat = [flat_row(row) for row in rows]
    blank = dict.fromkeys((key for row in flat for key in row), math.nan)  # every column the trial ever had
    if metric is None or mode is None:
        return {**blank, **flat[-1]}
    best = best_scored([(row, row) for row in flat], metric, mode)
    if best is None:
        logger.warning("trial %s logged no number for %r and is left out", who, metric)
        return None
    return {**blank, **best}


def _last_results(trials: Sequence[TrialRecord], what: str) -> pd.DataFrame:
    """Return the last results as a table by trial id."""
    delimiter = environment().get("TUNE_RESULT_DELIM", "/")
    rows = [flat_row(trial.last_result, delimiter) for trial in trials]
    table: pd.DataFrame = need_pandas(what).DataFrame(rows, columns=None if rows else ["trial_id"])
    indexed: pd.DataFrame = table.set_index("trial_id")
    return indexed
