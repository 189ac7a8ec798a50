"""Log trials to Comet; comet_ml is imported on a background thread, when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from muster.host.machine import environment
from muster.trials.metrics import flatten
from muster.tune.logger.files.csv_rows import flat_row, step_of
from muster.tune.logger.files.json_rows import is_number, plain
from muster.tune.logger.tracker import Row, Tracker, TrackerCallback, TrialFacts, require

_SYSTEM = frozenset({"node_ip", "hostname", "pid", "date"})
_OTHER = frozenset({"trial_id", "experiment_id", "experiment_tag"})
_NEVER = frozenset({"done", "should_checkpoint", "checkpoint_dir_name"})
# Comet watches frameworks, arguments, output and the machine by itself; the driver trains nothing.
_QUIET: dict[str, Any] = {
    "log_code": False,
    "log_graph": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "log_env_details": False,
    "auto_param_logging": False,
    "auto_metric_logging": False,
    "auto_output_logging": False,
    "parse_args": False,
    "display_summary_level": 0,
}


class CometSettings(Struct, frozen=True, kw_only=True):
    online: bool = True
    tags: list[str] = []
    experiment_kwargs: dict[str, Any] = {}


class CometTracker(Tracker):
    """The Tracker for Comet."""

    name = "Comet"
    advice = ": check COMET_API_KEY and the network, or pass online=False"

    def __init__(self, settings: CometSettings) -> None:
        super().__init__()
        self._settings = settings
        self._logged: dict[str, dict[str, Any]] = {}  # what describes a trial, sent when it changes

    def start(self, trial: TrialFacts) -> None:
        experiment = self._runs.get(trial.trial_id)
        if experiment is None:
            experiment = self._runs[trial.trial_id] = self._begin(trial)
        experiment.log_parameters(plain(flatten(trial.config)))

    def write(self, trial_id: str, rows: list[Row]) -> None:
        experiment = self._run(trial_id)
        for result, _ in rows:
            flat = flat_row(result)
            self._describe(trial_id, experiment, flat)
            self._write_one(experiment, flat, step_of(result))

    def end(self, trial_id: str, failed: bool) -> None:
        experiment = self._run(trial_id)
        experiment.log_other("Failed", failed)
        experiment.end()
        self._runs.pop(trial_id)
        self._logged.pop(trial_id, None)

    def checkpoint(self, trial_id: str, path: str) -> None:
        import comet_ml

        experiment = self._run(trial_id)
        artifact = comet_ml.Artifact(f"checkpoint_{trial_id}", "model")
        artifact.add(path)
        experiment.log_artifact(artifact)

    def _begin(self, trial: TrialFacts) -> Any:  # noqa: ANN401
        import comet_ml

        settings = self._settings
        kind = comet_ml.Experiment if settings.online else comet_ml.OfflineExperiment
        experiment = _beside_others(lambda: kind(**{**_QUIET, **settings.experiment_kwargs}))
        experiment.set_name(trial.name)
        if settings.tags:
            experiment.add_tags(settings.tags)
        experiment.log_other("Created from", "muster")
        return experiment

    def _describe(self, trial_id: str, experiment: Any, flat: dict[str, Any]) -> None:  # noqa: ANN401
        logged = self._logged.setdefault(trial_id, {})
        for key in (_SYSTEM | _OTHER) & flat.keys():
            if logged.get(key) != flat[key]:
                logged[key] = flat[key]
                log = experiment.log_system_info if key in _SYSTEM else experiment.log_other
                log(key, flat[key])

    def _write_one(self, experiment: Any, flat: dict[str, Any], step: int) -> None:  # noqa: ANN401
        metrics: dict[str, Any] = {}
        for key, value in flat.items():
            if key in _NEVER or key in _SYSTEM or key in _OTHER:
                continue
            if is_number(value):
                metrics[key] = plain(value)
            elif isinstance(value, list) and value and all(map(is_number, value)):
                experiment.log_curve(key, x=list(range(len(value))), y=plain(value), step=step)
        experiment.log_metrics(metrics, step=step)


def _beside_others(make: Callable[[], Any]) -> Any:  # noqa: ANN401 - a comet_ml experiment
    """Hide the current experiment while one is made: Comet would end it, and trials run side by side."""
    from comet_ml.config import get_global_experiment, set_global_experiment

    users = get_global_experiment()
    set_global_experiment(None)
    try:
        return make()
    finally:
        set_global_experiment(users)


__all__ = ["CometLoggerCallback"]


class CometLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to a separate Comet experiment.

    Results are sent from a thread, so nothing waits for the server; when it is down the experiment continues.

    Example:
        >>> callback = CometLoggerCallback(online=False, offline_directory="comet", tags=["lr-search"])
    """

    _secrets: ClassVar[tuple[str, ...]] = ("_api_key",)
    _api_key: str | None = None

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,  # noqa: ANN401 - of comet_ml.Experiment
    ) -> None:
        """With `online=False` archives are written, to be sent later with `comet upload`.

        `save_checkpoints`: as artifacts. `experiment_kwargs` go to `comet_ml.Experiment`; its `api_key` is
        not saved to disk.
        """
        require("comet_ml")
        self.online, self.tags = online, list(tags or ())
        self.wants_checkpoints = save_checkpoints
        self._api_key = experiment_kwargs.pop("api_key", None)
        self.experiment_kwargs = experiment_kwargs

    def setup(self, *args: Any, **info: object) -> None:  # noqa: ANN401
        """Raise a ValueError when there is no key: better now than after the first trial."""
        variables = environment()
        settings_file = Path(variables.get("COMET_CONFIG", "~/.comet.config")).expanduser()
        if self.online and not (self._api_key or variables.get("COMET_API_KEY") or settings_file.is_file()):
            raise ValueError(
                "Comet has no key: set COMET_API_KEY, pass CometLoggerCallback(api_key=...), "
                "or online=False to write to this machine only"
            )

    def _make_tracker(self) -> Tracker:
        key = {"api_key": self._api_key} if self._api_key else {}
        return CometTracker(
            CometSettings(
                online=self.online, tags=self.tags, experiment_kwargs={**self.experiment_kwargs, **key}
            )
        )
