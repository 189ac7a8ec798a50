"""Hold the names and modules of older versions of Ray Tune: each works, and warns with today's form.

`tune.checkpoint_dir`, `tune.get_trial_id()`, `tune.suggest`, `tune.sample` and others; see
`muster.session.older` for the switch.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from muster.host.machine import environment
from muster.session.older import accept_older, checkpoint_dir, is_on
from muster.session.report import get_checkpoint, get_context, report
from muster.session.session import current
from muster.tune.older_modules import OLDER_MODULES, AliasLoader

__all__ = ["checkpoint_dir"]  # the other names are made by `__getattr__`


def today(module: str) -> str:
    """Return the module that now has what an older one had; "" for one that is not older.

    Example:
        >>> today("muster.tune.suggest.hyperopt"), today("muster.tune.search")
        ('muster.tune.search.hyperopt', '')
    """
    path = module.removeprefix("muster.")
    if path in OLDER_MODULES:
        return f"muster.{OLDER_MODULES[path]}"
    parent, _, name = path.rpartition(".")
    return f"{today(f'muster.{parent}')}.{name}" if parent and today(f"muster.{parent}") else ""


def spec_of(name: str) -> ModuleSpec | None:
    """Return how to load one of the older modules; None for another one, or where the layer is off."""
    home = today(name) if is_on() else ""
    try:
        known = home and importlib.util.find_spec(home)
    except ImportError:
        known = None
    return ModuleSpec(name, _TodaysModule(home)) if known else None  # type: ignore[arg-type]


class _TodaysModule(AliasLoader):
    """Loader that puts a module of today at an older name, with a warning."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        shown = "muster.tune" if self._home == __name__ else self._home
        accept_older(f"the module {spec.name}", f"import from {shown}")
        return super().create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if self._home == "muster.air.integrations.wandb":
            found: Any = module
            vars(module).update(
                wandb_mixin=_mixin("wandb"),
                WandbLogger=found.WandbLoggerCallback,
                WandbTrainableMixin=_WandbMixin,
            )
        elif self._home == "muster.air.integrations.mlflow":
            vars(module).update(mlflow_mixin=_mixin("mlflow"))


def _set_up(tracker: str, config: dict[str, Any]) -> Any:  # noqa: ANN401 - the tracker's run
    return getattr(importlib.import_module(f"muster.air.integrations.{tracker}"), f"setup_{tracker}")(config)


def _mixin(tracker: str) -> Callable[[Any], Any]:
    """Return the decorator of a function trainable that begins the tracker's run of its trial."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        accept_older(f"{tracker}_mixin", f"call setup_{tracker}(config) in the trainable")

        @wraps(function)
        def inner(config: dict[str, Any], **more: Any) -> Any:  # noqa: ANN401 - the user's
            _set_up(tracker, config)
            return function(config, **more)

        return inner

    return decorate


class _WandbMixin:
    """First base class of a Trainable whose trials are runs of Weights & Biases."""

    def __init__(self, config: dict[str, Any], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Trainable's
        self.wandb = _set_up("wandb", config)
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # the Trainable


def _getter(name: str) -> Callable[[], Any]:
    def get() -> Any:  # noqa: ANN401 - as in TuneContext
        accept_older(f"tune.{name}()", f"use tune.get_context().{name}()")
        return getattr(get_context(), name)()

    return get


def _log(**metrics: Any) -> None:  # noqa: ANN401 - `track.log`
    report(metrics)


def _tunes(name: str, module: str = "muster.tune") -> Any:  # noqa: ANN401 - a class
    return getattr(importlib.import_module(module), name)


def _analysis(experiment_dir: str, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - Ray 1's arguments
    return _tunes("ExperimentAnalysis")(experiment_dir, *args, **more)


def _resources(cpu: float = 0, gpu: float = 0, *_: float, **more: Any) -> Any:  # noqa: ANN401 - Ray 1's arguments
    """Return what `Resources(cpu=1, gpu=0, extra_cpu=1)` of Ray 1 asks for."""
    both = {"CPU": cpu + more.get("extra_cpu", 0), "GPU": gpu + more.get("extra_gpu", 0)}
    return _tunes("PlacementGroupFactory")([{**both, **(more.get("custom_resources") or {})}])


_CALLBACKS = "pass RunConfig(callbacks=[...])"
_LOGGERS, _PLATEAU = "muster.tune.logger.older", "ExperimentPlateauStopper"
_STORED, _PINNED = "use tune.with_parameters", ("StoredObject", "muster.tune.trainable.stored_object")
_NAMES: Mapping[str, tuple[str, Callable[[], Any]]] = {  # today's form, and how to get the thing
    **{
        name: ("", partial(_getter, name))
        for name in ("get_trial_dir", "get_trial_id", "get_trial_name", "get_trial_resources")
    },
    "Analysis": ("use tune.ExperimentAnalysis", lambda: _analysis),
    "DurableTrainable": ("extend tune.Trainable", lambda: _tunes("Trainable")),
    "Resources": ("return a PlacementGroupFactory", lambda: _resources),
    "checkpoint_dir": ("", lambda: checkpoint_dir),
    "durable": ("RunConfig(storage_path=...) names the place", lambda: lambda thing: thing),
    "function": ("pass the function itself", lambda: lambda thing: thing),
    "logger.DEFAULT_LOGGERS": (_CALLBACKS, tuple),
    **{
        f"logger.{name}": (_CALLBACKS, partial(_tunes, f"{name}Callback", "muster.tune.logger"))
        for name in ("CSVLogger", "JsonLogger", "TBXLogger")
    },
    "logger.Logger": (_CALLBACKS, partial(_tunes, "Logger", _LOGGERS)),
    "logger.LegacyLoggerCallback": (_CALLBACKS, partial(_tunes, "LegacyLoggerCallback", _LOGGERS)),
    "stopper.EarlyStopping": (f"use {_PLATEAU}", partial(_tunes, _PLATEAU, "muster.tune.stopper")),
    "utils.get_pinned_object": (_STORED, lambda: lambda pinned: pinned.load()),
    "utils.pin_in_object_store": (_STORED, lambda: lambda value: _tunes(*_PINNED)(value, "pinned")),
    "is_session_enabled": ("use tune.get_context().get_trial_id()", lambda: lambda: current() is not None),
    "log": ("use tune.report({...})", lambda: _log),
    "track": ("use tune.report({...})", lambda: sys.modules[__name__]),
}
NAMES = frozenset(_NAMES)
ADVICE = {f"tune.{name}": now for name, (now, _) in _NAMES.items() if now} | {  # for `muster compat`
    "tune.checkpoint_dir": "pass report(metrics, checkpoint=Checkpoint.from_directory(path))"
}


def named(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Return the thing that an older name of `tune` stands for."""
    now, find = _NAMES[name]
    if now:
        accept_older(f"tune.{name}", now)
    return find()


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as `tune.session`, this module has tune's names too
    if name in NAMES and is_on():
        return named(name)
    return _tunes(name)


_INSTEAD = {"reporter": "tune.report({...})", "checkpoint_dir": "tune.get_checkpoint()"}  # of a parameter


def for_today(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function of the config alone, for one that takes Ray 1's `reporter` or `checkpoint_dir`."""
    if not (names := _older_parameters(function)):
        return None
    accept_older(f"a trainable with the parameter {names[0]}", f"call {_INSTEAD[names[0]]} in it")

    def inner(config: Any, **more: Any) -> Any:  # noqa: ANN401 - the user's
        checkpoint = get_checkpoint()
        with nullcontext() if checkpoint is None else checkpoint.as_directory() as folder:
            given = {"reporter": _log, "checkpoint_dir": folder}
            return function(config, **more, **{name: given[name] for name in names})

    return inner


def _older_parameters(function: Any) -> list[str]:  # noqa: ANN401 - the user's
    """Return the older parameters of the function, or of the one that it wraps."""
    while function is not None and not hasattr(function, "_is_for_today"):
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            break
        if names := [name for name in _INSTEAD if name in parameters]:
            return names if is_on() else []
        function = getattr(function, "_muster_original", None)
    return []


_LEFT_OUT = (  # arguments of `tune.run` without an effect
    *("custom_loggers", "queue_trials", "ray_auto_init", "run_errored_only", "server_port", "sync_function"),
    *("sync_on_checkpoint", "sync_to_cloud", "sync_to_driver", "trial_executor", "with_server"),
)
RUN_ARGUMENTS = {  # of `tune.run` in older versions, and today's form
    **dict.fromkeys(_LEFT_OUT, "leave it out"),
    "global_checkpoint_period": "set the environment variable TUNE_GLOBAL_CHECKPOINT_S",
    "loggers": _CALLBACKS,
    "upload_dir": "use storage_path",
}


def accept_run_arguments(given: Mapping[str, Any]) -> tuple[str | None, list[Any]]:
    """Warn of older arguments; return `upload_dir` and callbacks. TypeError for a name no version had."""
    for name in given:
        if name not in RUN_ARGUMENTS:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
        accept_older(f"tune.run({name}=...)", RUN_ARGUMENTS[name])
    found = _tunes("callbacks_of", _LOGGERS)(given["loggers"]) if given.get("loggers") else []
    return given.get("upload_dir"), found


def accept_chdir(value: bool | str, caller: str) -> None:
    """Make trials keep the working directory of the driver where Ray 2.2's argument says so."""
    accept_older(f"{caller}(chdir_to_trial_dir=...)", "set the environment variable RAY_CHDIR_TO_TRIAL_DIR=0")
    if not value:
        environment()["RAY_CHDIR_TO_TRIAL_DIR"] = "0"


def without_max_concurrent(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a searcher's arguments without Ray 0's `max_concurrent`."""
    if arguments.pop("max_concurrent", None) is not None:
        accept_older("a searcher with max_concurrent", "use ConcurrencyLimiter(searcher, max_concurrent)")
    return arguments
