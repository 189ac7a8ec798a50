"""Define ResultGrid, the results of an experiment, which `Tuner.fit` returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from muster.base.text import did_you_mean
from muster.base.untrusted import describe, error_text
from muster.errors import public
from muster.trials.metrics import flatten
from muster.trials.spend import total_cost
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import check_mode
from muster.tune.analysis.trial_record import TrialRecord
from muster.tune.pareto import pareto_front

if TYPE_CHECKING:
    import pandas as pd

    from muster.tune.result import Result


@public
class ResultGrid:
    """Holds the results of an experiment, in the order of its trials.

    Args:
        experiment_analysis: The trials.
        ended_by: What ended the experiment early: a budget, a deadline or Ctrl-C.

    Example:
        results = tuner.fit()
        print(results.get_best_result("loss", "min").config)
        results.get_dataframe().to_csv("all.csv")
    """

    def __init__(self, experiment_analysis: ExperimentAnalysis, ended_by: str = "") -> None:
        self._experiment_analysis = experiment_analysis
        self._ended_by = ended_by

    @property
    def ended_by(self) -> str:
        """What ended the run of `fit` early: "budget" or "deadline"; "" when neither did.

        The trials that were stopped are saved, have not failed, and are continued by Tuner.restore.
        """
        return self._ended_by

    @property
    def cost_usd(self) -> float | None:
        """What the trials have cost together in $; None when no price was known."""
        return total_cost(trial.cost_usd for trial in self._experiment_analysis.trials)

    @property
    def experiment_path(self) -> str:
        """The directory of the experiment."""
        return self._experiment_analysis.experiment_path

    @property
    def filesystem(self) -> Any:  # noqa: ANN401 - untyped fsspec
        """The file system that the directory is on: pyarrow's where it is installed, else fsspec's."""
        return self._experiment_analysis.filesystem

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of the trials that failed."""
        return [result.error for result in self if result.error is not None]

    @property
    def num_errors(self) -> int:
        """The number of trials that failed."""
        return sum(trial.status == "ERROR" for trial in self._experiment_analysis.trials)

    @property
    def num_terminated(self) -> int:
        """The number of trials that ended well."""
        return sum(trial.status == "TERMINATED" for trial in self._experiment_analysis.trials)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result of the best trial; RuntimeError when no trial reported the metric.

        As in Ray Tune, a trial that failed after a result counts too. Of equal trials, the first one wins.
        Trials whose last result violates a constraint are ranked last.

        Args:
            metric: A flat key; by default that of the TuneConfig.
            mode: "min" or "max"; by default that of the TuneConfig.
            scope: Which of a trial's values to compare: "last", "all" (its best), "avg", "last-5-avg",
                "last-10-avg".
            filter_nan_and_inf: Leave out trials whose value is not a finite number.
        """
        analysis = self._experiment_analysis
        if len(analysis.trials) == 1:
            return self[0]
        analysis.need_one_objective("get_best_result", metric, "")
        metric, mode = metric or analysis.default_metric, mode or analysis.default_mode
        for name, value in (("metric", metric), ("mode", mode)):
            if not value:
                raise ValueError(
                    f"No {name} is provided: pass {name}=... to get_best_result, or set it in the TuneConfig"
                )
        best = analysis.get_best_trial(metric, mode, scope, filter_nan_and_inf)
        if best is None:
            raise RuntimeError(self._no_best(str(metric), filter_nan_and_inf))
        return self[analysis.trials.index(best)]

    def get_pareto_front(
        self, metrics: Sequence[str] | None = None, modes: Sequence[str] | None = None
    ) -> list[Result]:
        """Return the results that no other beats in all metrics at once, in the order of the trials.

        Args:
            metrics: Flat keys; a trial's last value counts, and a trial without a finite one is left out. By
                default those of the TuneConfig, without the trials that violate its constraints.
            modes: As many of "min" and "max"; by default those of the TuneConfig.

        Example:
            front = results.get_pareto_front(["accuracy", "latency_ms"], ["max", "min"])
        """
        analysis, bounds = self._experiment_analysis, dict[str, float]()
        if metrics is None and modes is None:
            metrics, modes = [*analysis.objectives], [*analysis.objectives.values()]
            bounds = analysis.constraints
        if isinstance(metrics, str) or not metrics or not modes or len(metrics) != len(modes):
            raise ValueError(
                f"get_pareto_front needs lists of metrics and of as many modes, not {metrics!r} and {modes!r}"
            )
        for mode in modes:
            check_mode(mode, "get_pareto_front(modes=...)")
        flat = [flatten(trial.last_result) for trial in analysis.trials]
        front = pareto_front([[one.get(metric) for metric in metrics] for one in flat], modes, flat, bounds)
        return [self[place] for place in front]

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> pd.DataFrame:
        """Return one line per trial that logged something, with its config; needs pandas.

        The last result of each; with a metric and a mode, the one where that metric is best.

        Args:
            filter_metric: Take each trial's best result by this metric, not its last.
            filter_mode: "min" or "max".
        """
        return self._experiment_analysis.dataframe(filter_metric, filter_mode)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        metric: str | None = None,
        mode: str | None = None,
        kind: str = "all",
    ) -> str:
        """Draw learning curves, parallel coordinates and parameter importance; return the path of the file.

        In a notebook, the path as the last value of a cell shows the plot.

        Args:
            path: A file that ends in .png (needs matplotlib) or .html (needs nothing, shows trials under the
                pointer); by default `results.png` in the experiment's directory, `results.html` without
                matplotlib. Replaced when it exists.
            metric: A flat key; by default that of the TuneConfig.
            mode: "min" or "max"; by default that of the TuneConfig.
            kind: "all", "curves", "parallel" or "importance".

        A trial's last value of the metric counts, as for get_best_result. Importance is the share of the
        metric's variation that a parameter explains on its own; see muster.tune.plots.data.

        Example:
            results.plot("results.html")
        """
        from muster.tune.plots import save_plot

        return save_plot(self._experiment_analysis, path, metric=metric, mode=mode, kind=kind)

    def __len__(self) -> int:
        return len(self._experiment_analysis.trials)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    @public
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        try:
            return self._results[index]
        except (IndexError, TypeError) as error:
            what = (
                f"there is no result {index!r}: the experiment has {len(self)} in all, 0 to {len(self) - 1}"
            )
            raise type(error)(what) from error

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def __repr__(self) -> str:
        inner = ",\n".join(repr(result) for result in self)
        indented = "\n".join(f"  {line}" for line in inner.splitlines())
        return f"ResultGrid<[\n{indented}\n]>"

    def _repr_html_(self) -> str:
        """Return the best trials as a table, for notebooks."""
        from muster.tune.reporting.notebook import grid_page

        return grid_page(self._experiment_analysis)

    @cached_property
    def _results(self) -> list[Result]:
        return [self._result(trial) for trial in self._experiment_analysis.trials]

    def _result(self, trial: TrialRecord) -> Result:
        from muster.tune.result import Result  # the experiment ends before anybody reads a result

        return Result(
            metrics=trial.last_result,
            checkpoint=trial.checkpoint,
            error=trial.error,
            path=trial.path,
            best_checkpoints=trial.best_checkpoints,
            _storage_filesystem=trial.filesystem,
            rows=trial.rows_if_any,
            config=trial.config,
            cost_usd=trial.cost_usd,
        )

    def _no_best(self, metric: str, filtered: bool) -> str:
        trials = self._experiment_analysis.trials
        known = dict.fromkeys(str(name) for trial in trials for name in trial.metric_analysis)
        own = [name for name in known if name not in AUTO_RESULT_KEYS]
        near = did_you_mean(metric, own)
        hint = (
            f"the trials reported {', '.join(own)}{near and f'; {near}'}"
            if own
            else "no trial reported anything"
        )
        if not own and (errors := self.errors):
            first = error_text(errors[0]).removeprefix("TuneError: ").rstrip().rpartition("\n")[2]
            hint = f"{len(errors)} of {len(trials)} trials failed, the first with {first}"
        odd = [value for trial in trials if (value := flatten(trial.last_result).get(metric)) is not None]
        if metric not in known and odd:
            hint = f"its values, such as {describe(odd[0])}, are not a number"
        if metric in known and filtered:
            hint = "all values are NaN or infinite; filter_nan_and_inf=False lets them count"
        return f"No best trial found for the metric {metric!r}: {hint}"
