"""MLflowTracker: talks to MLflow for MLflowLoggerCallback, on a thread. One run per trial, found again by a
tag with the trial's directory, so that a resumed experiment goes on in the same runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from muster.air.integrations.reachable import check_reachable
from muster.trials.results import flatten
from muster.tune.logger.files.csv_rows import flat_row
from muster.tune.logger.tracker import Row, TrialFacts, is_number, step_of

logger = logging.getLogger(__name__)

DIRECTORY_TAG = "muster.trial_dir"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100  # what a server takes in one request
_NOT_METRICS = frozenset({"done", "pid", "timestamp", "should_checkpoint"})
_UNNAMEABLE = re.compile(r"[^\w\-. :/]")


class MLflowSettings(Struct, frozen=True, kw_only=True):
    tracking_uri: str | None = None
    registry_uri: str | None = None
    experiment_name: str | None = None
    experiment_id: str | None = None
    other_name: str | None = None  # when neither was given
    tags: dict[str, str] = {}
    params_at_end: bool = False


class MLflowTracker:
    """Implements Tracker."""

    name = "MLflow"
    advice = (
        "The experiment goes on without it: check tracking_uri and that the server runs; "
        "what is missing there is in the trials' result.json"
    )

    def __init__(self, settings: MLflowSettings) -> None:
        self._settings = settings
        self._the_client: Any = None
        self._experiment_id = settings.experiment_id
        self._runs: dict[str, str] = {}  # trial id -> run id
        self._params: dict[str, dict[str, str]] = {}  # of open runs, as logged
        self._configs: dict[str, dict[str, Any]] = {}

    def start(self, trial: TrialFacts) -> None:
        if self._settings.tracking_uri is not None:
            check_reachable(self._settings.tracking_uri)
        self._configs[trial.trial_id] = trial.config
        if trial.trial_id not in self._runs:
            self._runs[trial.trial_id] = self._found_run(trial) or self._new_run(trial)
        if not self._settings.params_at_end:
            self._log_params(trial.trial_id)

    def write(self, trial_id: str, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_nameable(key), float(value), int(at * 1000), step_of(result))
            for result, at in rows
            for key, value in flat_row(result).items()
            if key not in _NOT_METRICS and is_number(value)
        ]
        for first in range(0, len(metrics), _METRICS_AT_ONCE):
            chunk = metrics[first : first + _METRICS_AT_ONCE]
            self._client().log_batch(self._run(trial_id), metrics=chunk)

    def end(self, trial_id: str, failed: bool) -> None:
        if self._settings.params_at_end:
            self._log_params(trial_id)
        self._client().set_terminated(self._run(trial_id), "FAILED" if failed else "FINISHED")
        self._forget(trial_id)

    def checkpoint(self, trial_id: str, path: str) -> None:
        """Checkpoints lie in the trial's directory, which `files` sends."""

    def files(self, trial: TrialFacts) -> None:
        self._client().log_artifacts(self._run(trial.trial_id), trial.directory)

    def close(self) -> None:
        for trial_id, run_id in list(self._runs.items()):
            self._client().set_terminated(run_id, "KILLED")
            self._forget(trial_id)

    def is_passing(self, error: BaseException) -> bool:
        from mlflow.exceptions import MlflowException

        if isinstance(error, MlflowException):
            status = error.get_http_status_code()
            return bool(status >= 500 or status == 429)
        return isinstance(error, OSError)  # those of `requests` are, too

    def _client(self) -> Any:  # noqa: ANN401
        if self._the_client is None:
            from mlflow import MlflowClient

            self._the_client = MlflowClient(self._settings.tracking_uri, self._settings.registry_uri)
        return self._the_client

    def _run(self, trial_id: str) -> str:
        if trial_id not in self._runs:
            raise LookupError(f"MLflow has no run for trial {trial_id}")
        return self._runs[trial_id]

    def _forget(self, trial_id: str) -> None:
        for known in (self._runs, self._params, self._configs):
            known.pop(trial_id, None)

    def _found_run(self, trial: TrialFacts) -> str | None:
        """The run of an experiment that is being resumed."""
        place = trial.directory.replace("'", "")
        found = self._client().search_runs(
            [self._experiment(trial)], f"tags.`{DIRECTORY_TAG}` = '{place}'", max_results=1
        )
        if not found:
            return None
        run_id = str(found[0].info.run_id)
        self._client().update_run(run_id, status="RUNNING")
        self._params[trial.trial_id] = dict(found[0].data.params)
        return run_id

    def _new_run(self, trial: TrialFacts) -> str:
        tags = {
            **self._settings.tags,
            "trial_name": trial.name,
            DIRECTORY_TAG: trial.directory.replace("'", ""),
        }
        run = self._client().create_run(self._experiment(trial), tags=tags, run_name=trial.name)
        return str(run.info.run_id)

    def _experiment(self, trial: TrialFacts) -> str:
        if self._experiment_id is None:
            settings, client = self._settings, self._client()
            name = settings.experiment_name or settings.other_name or trial.experiment_name
            found = client.get_experiment_by_name(name)
            self._experiment_id = str(found.experiment_id if found else client.create_experiment(name))
        return self._experiment_id

    def _log_params(self, trial_id: str) -> None:
        from mlflow.entities import Param

        logged = self._params.setdefault(trial_id, {})
        texts = param_texts(self._configs.get(trial_id, {}))
        changed = [key for key, text in texts.items() if logged.get(key, text) != text]
        if changed:
            logger.warning(
                "MLflow: %s of trial %s changed, but a run's parameters cannot: it keeps the first values. "
                "Pass log_params_on_trial_end=True to log the last ones",
                ", ".join(changed),
                trial_id,
            )
        new = [Param(key, text) for key, text in texts.items() if key not in logged]
        for first in range(0, len(new), _PARAMS_AT_ONCE):
            chunk = new[first : first + _PARAMS_AT_ONCE]
            self._client().log_batch(self._run(trial_id), params=chunk)
            logged.update((param.key, param.value) for param in chunk)


def param_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """A config as MLflow's parameters: flat, nested keys joined by `/`."""
    return {_nameable(key): str(value) for key, value in flatten(dict(config)).items()}


def _nameable(key: str) -> str:
    return _UNNAMEABLE.sub("_", str(key))
