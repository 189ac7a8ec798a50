"""Log trials to Weights & Biases: WandbLoggerCallback on the driver, setup_wandb inside a trial.

Both import wandb when it is needed; the callback does so on its own thread.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from muster.host.machine import environment
from muster.session.report import get_context
from muster.trials.metrics import flatten
from muster.tune.logger.files.csv_rows import flat_row
from muster.tune.logger.files.json_rows import is_number, plain
from muster.tune.logger.tracker import Row, Tracker, TrackerCallback, TrialFacts, require

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
    has_directory: bool = False  # set by WANDB_DIR


class WandbTracker(Tracker):
    """The Tracker for Weights & Biases."""

    name = "Weights & Biases"
    advice = ": check the network and `wandb login --verify`"

    def __init__(self, settings: WandbSettings) -> None:
        super().__init__()
        self._settings = settings
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

    def is_passing(self, error: BaseException) -> bool:
        from wandb.errors import CommError

        return isinstance(error, (CommError, OSError))

    def _begin(self, trial: TrialFacts) -> Any:  # noqa: ANN401
        import wandb

        settings = self._settings
        directory = None if settings.has_directory else trial.directory
        if directory:
            os.makedirs(directory, exist_ok=True)
        # One driver has many runs, so they are silent; no user can enter a key, so there is no prompt.
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
        """Return arrays as W&B's media: three dimensions are an image, four are images, five a video."""
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


__all__ = ["WandbLoggerCallback", "setup_wandb"]

_LOCAL_MODES = ("offline", "disabled", "dryrun")


class WandbLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to Weights & Biases, one run per trial.

    A run's id is the trial's id, so a resumed experiment continues in the same runs. Results are
    sent from a thread, so nothing waits for the server; when it is down the experiment continues.

    Example:
        >>> callback = WandbLoggerCallback(project="lr-search", excludes=["time_total_s"], mode="offline")
    """

    _secrets = ("_api_key",)
    _api_key: str | None = None

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: int = 1800,
        video_kwargs: Mapping[str, Any] | None = None,
        image_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 - of wandb.init
    ) -> None:
        """Take what to send, and where to.

        Args:
            project: W&B's project; None: WANDB_PROJECT_NAME, else W&B's own default.
            group: W&B's group; None: WANDB_GROUP_NAME, else the experiment's name.
            api_key: Not saved with the experiment; None: WANDB_API_KEY, or the key of `wandb login`.
            excludes: Results that are not sent.
            log_config: Send the config with every result, for configs that change.
            upload_checkpoints: Send checkpoints as artifacts.
            upload_timeout: How long the end of the experiment waits for W&B, in seconds.
            kwargs: Passed to `wandb.init`.
        """
        require("wandb")
        if save_checkpoints:
            warnings.warn(
                "save_checkpoints is an old name: use upload_checkpoints", DeprecationWarning, stacklevel=3
            )
        self.project, self.group = project, group
        self.api_key_path = api_key_file
        self.excludes = list(excludes or ())
        self.log_config = log_config
        self.upload_checkpoints = self.wants_checkpoints = upload_checkpoints or save_checkpoints
        self.flush_timeout_s = float(upload_timeout)
        self.video_kwargs, self.image_kwargs = dict(video_kwargs or {}), dict(image_kwargs or {})
        self.kwargs = kwargs
        self._api_key = api_key
        if api_key and api_key_file:
            raise ValueError("WandbLoggerCallback: pass api_key or api_key_file, not both")

    def setup(self, *args: Any, **info: object) -> None:  # noqa: ANN401
        """Raise a ValueError when there is no key: better now than after the first trial."""
        _key_of(self._api_key, self.api_key_path, self.kwargs.get("mode"))

    def _make_tracker(self) -> Tracker:
        variables = environment()
        settings = WandbSettings(
            project=self.project or variables.get("WANDB_PROJECT_NAME"),
            group=self.group or variables.get("WANDB_GROUP_NAME"),
            api_key=_key_of(self._api_key, self.api_key_path, self.kwargs.get("mode")),
            excludes=frozenset(self.excludes),
            log_config=self.log_config,
            image_kwargs=self.image_kwargs,
            video_kwargs=self.video_kwargs,
            init_kwargs=self.kwargs,
            has_directory=bool(variables.get("WANDB_DIR")),
        )
        return WandbTracker(settings)


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,  # noqa: ANN401 - of wandb.init
) -> Any:  # noqa: ANN401 - a wandb run
    """Begin a W&B run for this trial and return it; call it inside the trainable.

    The config is logged; arguments of `wandb.init`, and the key, may also be in `config["wandb"]`, but
    `kwargs` win. Id, name and group are those of the trial and its experiment. `rank_zero_only` changes
    nothing: a trial is one process.

    Args:
        config: The trial's configuration.
        api_key: The key; by default the one that `wandb login` stored.
        api_key_file: A file that holds the key.
        rank_zero_only: Accepted for Ray's signature; changes nothing.
        kwargs: Arguments of `wandb.init`.

    Example:
        >>> def train(config):
        ...     run = setup_wandb(config, project="lr-search")
        ...     run.log({"loss": 0.5})
    """
    require("wandb")
    import wandb

    logged = dict(config or {})
    given: dict[str, Any] = {**(logged.pop("wandb", None) or {}), **kwargs}
    key_file = given.pop("api_key_file", None)
    key = given.pop("api_key", None)
    key = _key_of(api_key or key, api_key_file or key_file, given.get("mode"))
    context, variables = get_context(), environment()
    defaults = {
        "id": context.get_trial_id(),
        "name": context.get_trial_name(),
        "group": variables.get("WANDB_GROUP_NAME") or context.get_experiment_name(),
        "project": variables.get("WANDB_PROJECT_NAME"),
        "dir": None if variables.get("WANDB_DIR") else context.get_trial_dir(),
        "resume": "allow" if context.get_trial_id() else None,
        "reinit": "finish_previous",  # the trial that had this process before
        "config": plain(logged),
        "settings": wandb.Settings(api_key=key) if key else None,
    }
    return wandb.init(**{**defaults, **given})


def _key_of(given: str | None, file: str | None, mode: str | None) -> str | None:
    """Return the key to use; None: W&B needs none, or finds its own; ValueError when it cannot."""
    if given:
        return given
    if file:
        return _read_key(file)
    if (mode or environment().get("WANDB_MODE")) not in _LOCAL_MODES and not _may_be_logged_in():
        raise ValueError(
            "Weights & Biases has no key for this machine: run `wandb login`, set WANDB_API_KEY, pass "
            "api_key=... or api_key_file=..., or set WANDB_MODE=offline to write to this machine only"
        )
    return None


def _may_be_logged_in() -> bool:
    """Return whether W&B could take a key from anywhere; no server is asked, so the key may be wrong."""
    variables = environment()
    if any(variables.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    if Path("~/.config/wandb/settings").expanduser().is_file():
        return True
    host = urlsplit(variables.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    return any(_names(place, host) for place in (variables.get("NETRC"), "~/.netrc", "~/_netrc") if place)


def _names(netrc_file: str, host: str) -> bool:
    try:
        return netrc(Path(netrc_file).expanduser()).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


def _read_key(file: str) -> str:
    try:
        key = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"api_key_file {file} cannot be read: {error.strerror or error}") from error
    if not key:
        raise ValueError(f"api_key_file {file} is empty: it must hold the key and nothing else")
    return key
