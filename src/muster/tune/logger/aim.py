"""Log trials to Aim, one Aim run per trial; aim is imported on a background thread when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from muster.trials.metrics import flatten
from muster.tune.logger.files.csv_rows import flat_row
from muster.tune.logger.files.json_rows import is_number, plain
from muster.tune.logger.tracker import Row, Tracker, TrackerCallback, TrialFacts, require

__all__ = ["AimLoggerCallback"]

_NOT_METRICS = frozenset({"done", "should_checkpoint", "training_iteration", "timestamp", "pid"})


class AimLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to an Aim repository.

    `aim up --repo DIR` shows them. Results are sent from a thread, so nothing waits for Aim; when it fails
    the experiment continues.
    """

    def __init__(
        self,
        repo: Any = None,  # noqa: ANN401 - a path or an aim.Repo
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        **aim_run_kwargs: Any,  # noqa: ANN401 - of aim.Run
    ) -> None:
        """Take the repository (None: the experiment's directory) and a name (None: the experiment's).

        `metrics`: which results to track; None: all numbers. ValueError for none at all.
        """
        require("aim")
        if metrics is not None and not metrics:
            raise ValueError(
                "AimLoggerCallback(metrics=[]) tracks nothing: name some, or leave it out for all"
            )
        self.repo, self.experiment_name = repo, experiment_name
        self.metrics = None if metrics is None else list(metrics)
        self.aim_run_kwargs = aim_run_kwargs

    def _make_tracker(self) -> Tracker:
        return _AimTracker(self.repo, self.experiment_name, self.metrics, self.aim_run_kwargs)


class _AimTracker(Tracker):
    """The Tracker for Aim."""

    name = "Aim"

    def __init__(
        self,
        repo: Any,  # noqa: ANN401
        experiment_name: str | None,
        metrics: list[str] | None,
        run_kwargs: dict[str, Any],
    ) -> None:
        super().__init__()
        self._repo, self._experiment_name, self._metrics = repo, experiment_name, metrics
        self._run_kwargs = run_kwargs

    def start(self, trial: TrialFacts) -> None:
        run = self._runs.get(trial.trial_id)
        if run is None:
            run = self._runs[trial.trial_id] = self._begin(trial)
        run["hparams"] = plain(flatten(trial.config))

    def write(self, trial_id: str, rows: list[Row]) -> None:
        run = self._run(trial_id)
        for result, _ in rows:
            step = result.get("training_iteration")
            for key, value in flat_row(result).items():
                is_tracked = key not in _NOT_METRICS if self._metrics is None else key in self._metrics
                if is_tracked and is_number(value):
                    run.track(float(value), name=key, step=step)

    def end(self, trial_id: str, failed: bool) -> None:
        run = self._run(trial_id)
        run["failed"] = failed
        run.close()
        self._runs.pop(trial_id)

    def _begin(self, trial: TrialFacts) -> Any:  # noqa: ANN401
        import aim

        arguments = {
            "repo": self._repo or str(PurePath(trial.directory).parent),
            "experiment": self._experiment_name or trial.experiment_name,
            "system_tracking_interval": None,  # the driver's load has no meaning for a trial
            "capture_terminal_logs": False,
            **self._run_kwargs,
        }
        run = aim.Run(**arguments)
        run.name = trial.name
        run["trial_id"], run["trial_dir"] = trial.trial_id, trial.directory
        return run
