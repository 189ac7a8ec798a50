"""Log trials to MLflow: MLflowLoggerCallback on the driver, setup_mlflow inside a trial.

Both import mlflow when it is needed; the callback does so on its own thread.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct

from muster.host.machine import environment
from muster.session.checkpoint import only_one
from muster.session.report import get_context
from muster.trials.metrics import flatten
from muster.tune.logger.files.csv_rows import flat_row, step_of
from muster.tune.logger.files.json_rows import is_number
from muster.tune.logger.tracker import Row, Tracker, TrackerCallback, TrialFacts, require

_PORTS = {"http": 80, "https": 443}
FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"


def check_reachable(address: str, timeout_s: float = 10.0) -> None:
    """Raise a ConnectionError when nothing listens there; non-HTTP addresses and proxies are not checked."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return  # the client will raise the error
    if host is None or port is None or parts.scheme not in _PORTS:
        return
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers at {host}:{port} ({error})") from error


def check_store(address: str | None, where: str) -> None:
    """Refuse a folder where MLflow does; its text is searched, because importing it takes seconds."""
    address = address or environment().get("MLFLOW_TRACKING_URI") or "databricks"
    is_folder = urlsplit(address).scheme in ("", "file") and address != "databricks"
    if not is_folder or environment().get(FILE_STORE, "").lower() in ("true", "1"):
        return
    text = Path(str(find_spec("mlflow").origin)).with_name("environment_variables.py")  # type: ignore[union-attr]
    if text.is_file() and FILE_STORE in text.read_text(encoding="utf-8"):
        raise ValueError(
            f"{where}(tracking_uri={address!r}): this MLflow writes to no folder; use a database such as "
            f"'sqlite:///mlflow.db', or set {FILE_STORE}=true"
        )


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


class MLflowTracker(Tracker):
    """The Tracker for MLflow."""

    name = "MLflow"
    advice = ": check tracking_uri and that the server runs"

    def __init__(self, settings: MLflowSettings) -> None:
        super().__init__()
        self._settings = settings
        self._the_client: Any = None
        self._experiment_id = settings.experiment_id
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

    def _forget(self, trial_id: str) -> None:
        for known in (self._runs, self._params, self._configs):
            known.pop(trial_id, None)

    def _found_run(self, trial: TrialFacts) -> str | None:
        """Return the run of an experiment that is being resumed."""
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
    """Return a config as MLflow's parameters: flat, nested keys joined by `/`."""
    return {_nameable(key): str(value) for key, value in flatten(dict(config)).items()}


def _nameable(key: str) -> str:
    return _UNNAMEABLE.sub("_", str(key))


__all__ = ["MLflowLoggerCallback", "setup_mlflow"]

TOKEN_VARIABLE = "MLFLOW_TRACKING_TOKEN"  # MLflow takes the token from nowhere else


class MLflowLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to MLflow, one run per trial.

    Results are sent from a thread, so nothing waits for the server; when it is down the experiment continues.

    Example:
        >>> callback = MLflowLoggerCallback("sqlite:///mlflow.db", experiment_name="lr-search")
    """

    _secrets = ("_tracking_token",)
    _tracking_token: str | None = None

    def __init__(  # noqa: PLR0913 - Ray's signature
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        """Take what to send, and where to.

        Args:
            tracking_uri: Of a server or database; None: MLflow's default (MLFLOW_TRACKING_URI).
            experiment_name: Made when it does not exist; None: MLFLOW_EXPERIMENT_ID or
                MLFLOW_EXPERIMENT_NAME, else the name of the tuning experiment.
            tracking_token: Not saved with the experiment.
            save_artifact: Store a trial's directory in its run when the trial ends.
            log_params_on_trial_end: For configs that change during a trial; MLflow's parameters cannot.
        """
        require("mlflow")
        check_store(tracking_uri, "MLflowLoggerCallback")
        self.tracking_uri = tracking_uri
        self.registry_uri = registry_uri
        self.experiment_name = experiment_name
        self.tags = dict(tags or {})
        self.should_save_artifact = self.wants_files = save_artifact
        self.log_params_on_trial_end = log_params_on_trial_end
        self._tracking_token = tracking_token

    def _make_tracker(self) -> Tracker:
        variables = environment()
        if self._tracking_token is not None:
            variables[TOKEN_VARIABLE] = self._tracking_token
        settings = MLflowSettings(
            tracking_uri=self.tracking_uri,
            registry_uri=self.registry_uri,
            experiment_name=self.experiment_name,
            experiment_id=None if self.experiment_name else variables.get("MLFLOW_EXPERIMENT_ID"),
            other_name=variables.get("MLFLOW_EXPERIMENT_NAME"),
            tags={key: str(value) for key, value in self.tags.items()},
            params_at_end=self.log_params_on_trial_end,
        )
        return MLflowTracker(settings)


def setup_mlflow(  # noqa: PLR0913, PLR0917 - Ray's signature
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:  # noqa: ANN401 - the mlflow module
    """Begin an MLflow run for this trial and return the `mlflow` module; call it inside the trainable.

    The config is logged as parameters. Settings may also be in `config["mlflow"]`; arguments win. The
    experiment is the one of `experiment_id`, else of `experiment_name`, else of MLFLOW_EXPERIMENT_ID or
    MLFLOW_EXPERIMENT_NAME, else the tuning experiment's name; ValueError when it does not exist and
    `create_experiment_if_not_exists` is not set. `rank_zero_only` changes nothing: a trial is one process.

    Args:
        config: The trial's configuration, logged as parameters; `config["mlflow"]` may hold these arguments.
        tracking_uri: The tracking server.
        registry_uri: The model registry.
        experiment_id: An existing experiment.
        experiment_name: The experiment by name.
        tracking_token: The server's token.
        artifact_location: Where a new experiment keeps artifacts.
        run_name: The run's name; by default the trial's.
        create_experiment_if_not_exists: Create the experiment when the server does not have it.
        tags: Tags of the run.
        rank_zero_only: Accepted for Ray's signature; changes nothing.

    Example:
        >>> def train(config):
        ...     mlflow = setup_mlflow(config, tracking_uri="sqlite:///mlflow.db", experiment_name="lr-search")
        ...     mlflow.log_metric("loss", 0.5)
    """
    require("mlflow")
    import mlflow

    params = dict(config or {})
    given = dict(params.pop("mlflow", None) or {})  # MLflow's own settings
    check_store(tracking_uri or given.get("tracking_uri"), "setup_mlflow")
    token = tracking_token or given.get("tracking_token")
    if token is not None:
        environment()[TOKEN_VARIABLE] = token
    mlflow.set_tracking_uri(tracking_uri or given.get("tracking_uri") or mlflow.get_tracking_uri())
    if uri := registry_uri or given.get("registry_uri"):
        mlflow.set_registry_uri(uri)
    trial_dir = get_context().get_trial_dir()
    # MLflow fails when two processes make its database, or an experiment, at the same moment.
    with only_one(f"{Path(trial_dir).parent}/.mlflow.lock") if trial_dir else nullcontext():
        chosen = _experiment_id(
            mlflow,
            experiment_id or given.get("experiment_id"),
            experiment_name or given.get("experiment_name"),
            artifact_location or given.get("artifact_location"),
            create=create_experiment_if_not_exists or bool(given.get("create_experiment_if_not_exists")),
        )
    if mlflow.active_run() is not None:
        mlflow.end_run()  # of the trial that had this process before
    name = get_context().get_trial_name()
    all_tags = {**({"trial_name": name} if name else {}), **given.get("tags", {}), **(tags or {})}
    all_tags = {key: str(value) for key, value in all_tags.items()}
    mlflow.start_run(experiment_id=chosen, run_name=run_name or given.get("run_name") or name, tags=all_tags)
    texts = param_texts(params)
    for first in range(0, len(texts), 100):  # as many as MLflow takes at a time
        mlflow.log_params(dict(list(texts.items())[first : first + 100]))
    return mlflow


def _experiment_id(
    mlflow: Any,  # noqa: ANN401
    experiment_id: str | None,
    name: str | None,
    artifact_location: str | None,
    *,
    create: bool,
) -> str:
    variables = environment()
    if experiment_id is None and name is None:
        experiment_id = variables.get("MLFLOW_EXPERIMENT_ID")
    if experiment_id is not None and mlflow.MlflowClient().get_experiment(experiment_id) is not None:
        return experiment_id
    name = name or variables.get("MLFLOW_EXPERIMENT_NAME") or get_context().get_experiment_name()
    found = mlflow.get_experiment_by_name(name) if name else None
    if found is not None:
        return str(found.experiment_id)
    if not (create and name):
        raise ValueError(
            f"MLflow at {mlflow.get_tracking_uri()} has no experiment {name!r}: pass the experiment_name or "
            f"experiment_id of one it has, or create_experiment_if_not_exists=True"
        )
    try:
        return str(mlflow.create_experiment(name, artifact_location=artifact_location))
    except mlflow.MlflowException:
        found = mlflow.get_experiment_by_name(name)  # another trial was faster
        if found is None:
            raise
        return str(found.experiment_id)
