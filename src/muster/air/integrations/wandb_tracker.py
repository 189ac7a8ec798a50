"""WandbTracker: talks to Weights & Biases for WandbLoggerCallback, on a thread. One run per trial."""

from __future__ import annotations

import os
from typing import Any

from msgspec import Struct

from muster.trials.results import flatten
from muster.tune.logger.files.csv_rows import flat_row
from muster.tune.logger.tracker import Row, TrialFacts, is_number, plain

NEVER_LOGGED = frozenset({"done", "should_checkpoint", "config", "checkpoint_dir_name"})
TO_CONFIG = frozenset({"trial_id", "experiment_tag", "node_ip", "experiment_id", "hostname", "pid", "date"})


class WandbSettings(Struct, frozen=True, kw_only=True):
    project: str | None = None
    group: str | None = None
    api_key: str | None = None
    excludes: frozenset[str] = frozenset()
    log_config: bool = False
    image_kwargs: dict[str, Any] = {}
    video_kwargs: dict[str, Any] = {}
    init_kwargs: dict[str, Any] = {}
    has_directory: bool = False  # WANDB_DIR says where


class WandbTracker:
    """Implements Tracker."""

    name = "Weights & Biases"
    advice = (
        "The experiment goes on without it: check the network and `wandb login --verify`; "
        "what is missing there is in the trials' result.json"
    )

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings
        self._runs: dict[str, Any] = {}
        self._described: set[str] = set()  # trials whose process is in the run's config

    def start(self, trial: TrialFacts) -> None:
        run = self._runs.get(trial.trial_id)
        if run is None:
            self._runs[trial.trial_id] = self._begin(trial)
        else:
            run.config.update(plain(trial.config), allow_val_change=True)

    def write(self, trial_id: str, rows: list[Row]) -> None:
        run = self._run(trial_id)
        if trial_id not in self._described:
            facts = {key: value for key, value in rows[0][0].items() if key in TO_CONFIG}
            run.config.update(plain(facts), allow_val_change=True)
            self._described.add(trial_id)
        for result, _ in rows:
            run.log(self._loggable(result), step=result.get("training_iteration"))

    def end(self, trial_id: str, failed: bool) -> None:
        run = self._run(trial_id)
        run.finish(exit_code=1 if failed else 0)
        self._runs.pop(trial_id)
        self._described.discard(trial_id)

    def checkpoint(self, trial_id: str, path: str) -> None:
        import wandb

        run = self._run(trial_id)
        artifact = wandb.Artifact(name=f"checkpoint_{run.name}".replace("/", "_"), type="model")
        artifact.add_dir(path)
        run.log_artifact(artifact)

    def files(self, trial: TrialFacts) -> None:
        """W&B is sent checkpoints only."""

    def close(self) -> None:
        for trial_id in list(self._runs):
            self.end(trial_id, failed=True)

    def is_passing(self, error: BaseException) -> bool:
        from wandb.errors import CommError

        return isinstance(error, (CommError, OSError))

    def _begin(self, trial: TrialFacts) -> Any:  # noqa: ANN401
        import wandb

        settings = self._settings
        directory = None if settings.has_directory else trial.directory
        if directory:
            os.makedirs(directory, exist_ok=True)
        # One driver has many runs, so they are silent; nobody can be asked for a key, so no waiting.
        quiet: dict[str, Any] = {"console": "off", "silent": True, "login_timeout": 1}
        if settings.api_key:
            quiet["api_key"] = settings.api_key
        arguments = {
            "id": trial.trial_id,
            "name": trial.name,
            "project": settings.project,
            "group": settings.group or trial.experiment_name,
            "resume": "allow",
            "reinit": "create_new",
            "allow_val_change": True,
            "dir": directory,
            "config": plain(trial.config),
            "settings": wandb.Settings(**quiet),
            **settings.init_kwargs,
        }
        return wandb.init(**arguments)

    def _run(self, trial_id: str) -> Any:  # noqa: ANN401
        if trial_id not in self._runs:
            raise LookupError(f"W&B has no run for trial {trial_id}")
        return self._runs[trial_id]

    def _loggable(self, result: dict[str, Any]) -> dict[str, Any]:
        excludes = self._settings.excludes
        flat = flat_row(result)
        if self._settings.log_config:
            flat.update(flatten({"config": result.get("config") or {}}))
        return {
            key: self._value(value)
            for key, value in flat.items()
            if value is not None
            and key not in NEVER_LOGGED
            and key not in TO_CONFIG
            and not any(key == each or key.startswith(f"{each}/") for each in excludes)
        }

    def _value(self, value: Any) -> Any:  # noqa: ANN401 - a result's
        """Arrays as W&B's media: three dimensions are an image, four are images, five a video."""
        import wandb

        dimensions = len(getattr(value, "shape", ()))
        if dimensions == 3:
            return wandb.Image(value, **self._settings.image_kwargs)
        if dimensions == 4:
            return [wandb.Image(each, **self._settings.image_kwargs) for each in value]
        if dimensions == 5:
            return wandb.Video(value[0], **self._settings.video_kwargs)
        if dimensions or (isinstance(value, list) and value and all(map(is_number, value))):
            return wandb.Histogram(value)
        return value if type(value).__module__.startswith("wandb.") else plain(value)
