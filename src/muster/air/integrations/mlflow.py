"""MLflow: MLflowLoggerCallback on the driver, setup_mlflow inside a trial.

Both import mlflow when it is needed; the callback does so on its own thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.air.integrations.mlflow_tracker import MLflowSettings, MLflowTracker, param_texts
from muster.host.machine import environment
from muster.session.report import get_context
from muster.tune.logger.tracker import Tracker, TrackerCallback, require

__all__ = ["MLflowLoggerCallback", "setup_mlflow"]

TOKEN_VARIABLE = "MLFLOW_TRACKING_TOKEN"  # MLflow takes the token from nowhere else


class MLflowLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to MLflow, one run per trial.

    Nothing waits for the server: it is talked to on a thread, and when it is down the experiment goes on.

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
        """`tracking_uri`: of a server or database; None: what MLflow uses by itself (MLFLOW_TRACKING_URI).

        `experiment_name` is made when it does not exist; None: MLFLOW_EXPERIMENT_ID or
        MLFLOW_EXPERIMENT_NAME, else the name of the tuning experiment. `tracking_token` is not saved with the
        experiment. `save_artifact`: a trial's directory is stored in its run when it ends.
        `log_params_on_trial_end`: for configs that change during a trial (MLflow's parameters never do).
        """
        require("mlflow")
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

    The config is logged as parameters. Settings may also stand in `config["mlflow"]`; arguments win. The
    experiment is the one of `experiment_id`, else of `experiment_name`, else of MLFLOW_EXPERIMENT_ID or
    MLFLOW_EXPERIMENT_NAME, else the tuning experiment's name; ValueError when it does not exist and
    `create_experiment_if_not_exists` is not set. `rank_zero_only` changes nothing: a trial is one process.

    Example:
        >>> def train(config):
        ...     mlflow = setup_mlflow(config, tracking_uri="sqlite:///mlflow.db", experiment_name="lr-search")
        ...     mlflow.log_metric("loss", 0.5)
    """
    require("mlflow")
    import mlflow

    params, given = _divided(config)
    token = tracking_token or given.get("tracking_token")
    if token is not None:
        environment()[TOKEN_VARIABLE] = token
    mlflow.set_tracking_uri(tracking_uri or given.get("tracking_uri") or mlflow.get_tracking_uri())
    if uri := registry_uri or given.get("registry_uri"):
        mlflow.set_registry_uri(uri)
    with _one_trial_at_a_time():
        chosen = _experiment_id(
            mlflow,
            experiment_id or given.get("experiment_id"),
            experiment_name or given.get("experiment_name"),
            artifact_location or given.get("artifact_location"),
            create=create_experiment_if_not_exists or bool(given.get("create_experiment_if_not_exists")),
        )
    _begin_run(mlflow, chosen, run_name or given.get("run_name"), {**given.get("tags", {}), **(tags or {})})
    texts = param_texts(params)
    for first in range(0, len(texts), 100):  # as many as MLflow takes at a time
        mlflow.log_params(dict(list(texts.items())[first : first + 100]))
    return mlflow


def _divided(config: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is to be logged, and MLflow's own settings."""
    params = dict(config or {})
    settings = params.pop("mlflow", None)
    return params, dict(settings or {})


@contextmanager
def _one_trial_at_a_time() -> Iterator[None]:
    """MLflow fails when two processes make its database, or an experiment, at the same moment."""
    trial_dir = get_context().get_trial_dir()
    try:
        import fcntl
    except ImportError:
        fcntl = None  # type: ignore[assignment]
    if trial_dir is None or fcntl is None:
        yield
        return
    with open(Path(trial_dir).parent / ".mlflow.lock", "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # let go when the file is closed
        yield


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


def _begin_run(mlflow: Any, experiment_id: str, run_name: str | None, tags: Mapping[str, Any]) -> None:  # noqa: ANN401
    if mlflow.active_run() is not None:
        mlflow.end_run()  # of the trial that had this process before
    name = get_context().get_trial_name()
    all_tags = {**({"trial_name": name} if name else {}), **{key: str(value) for key, value in tags.items()}}
    mlflow.start_run(experiment_id=experiment_id, run_name=run_name or name, tags=all_tags)
