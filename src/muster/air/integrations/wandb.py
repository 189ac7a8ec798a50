"""Weights & Biases: WandbLoggerCallback on the driver, setup_wandb inside a trial.

Both import wandb when it is needed; the callback does so on its own thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from muster.air.integrations.wandb_tracker import WandbSettings, WandbTracker
from muster.host.machine import environment
from muster.session.report import get_context
from muster.tune.logger.tracker import Tracker, TrackerCallback, plain, require

__all__ = ["WandbLoggerCallback", "setup_wandb"]

_LOCAL_MODES = ("offline", "disabled", "dryrun")


class WandbLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to Weights & Biases, one run per trial.

    A run's id is the trial's id, so a resumed experiment goes on in the same runs. Nothing waits for the
    server: it is talked to on a thread, and when it is down the experiment goes on.

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
        """`project`: or WANDB_PROJECT_NAME, else W&B's own default. `group`: or WANDB_GROUP_NAME, else the
        experiment's name. `api_key` is not saved with the experiment; without one, WANDB_API_KEY or the key
        of `wandb login` is used. `excludes`: results that are not sent. `log_config`: send the config with
        every result, for configs that change. `upload_checkpoints`: as artifacts. `upload_timeout`: how long
        the end of the experiment waits for W&B. `kwargs` go to `wandb.init`.
        """
        require("wandb")
        if save_checkpoints:
            warnings.warn(
                "save_checkpoints is an old name: use upload_checkpoints", DeprecationWarning, stacklevel=2
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

    def setup(self, *args: Any, **info: Any) -> None:  # noqa: ANN401
        """ValueError when there is no key: better now than after the first trial."""
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

    The config is logged; arguments of `wandb.init`, and the key, may also stand in `config["wandb"]`, but
    `kwargs` win. Id, name and group are those of the trial and its experiment. `rank_zero_only` changes
    nothing: a trial is one process.

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
    """The key to use; None: W&B needs none, or finds its own. ValueError when there is nothing to find."""
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
    """Is there anything W&B could take a key from? Asks no server, so a key may still be wrong."""
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
