"""Implement `muster tune resume`, the one command that unpickles and runs an experiment's code.

`stop` and `set` are here too: they ask the driver of a running experiment, and run nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from muster.base import by_value
from muster.base.clock import SystemClock
from muster.cli.tune.best import best_of, config_lines
from muster.cli.tune.experiment import FINISHED, ExperimentView, read_experiment
from muster.cli.tune.ls import heading
from muster.errors import ConfigError, LedgerLocked, RestoreError, StoreError
from muster.host.machine import environment
from muster.stores.experiment.requests import ExperimentRequest, send_request

if TYPE_CHECKING:
    from muster.tune.tuner import Tuner

DONE, TRIALS_FAILED, LIMITED, STOPPED = 0, 1, 3, 130
SCRIPT_MODULE = "muster_resumed_script"


class ResumeRequest(Struct, frozen=True, kw_only=True):
    """Holds the options of the command."""

    trainable: str | None = None  # module:name
    script: Path | None = None
    errored: str | None = None  # resume or restart
    skip_unfinished: bool = False
    cost_budget: float | None = None
    deadline: float | None = None  # seconds from now


def resumed(path: str, request: ResumeRequest, report: Callable[[str], None]) -> tuple[list[str], int]:
    """Run the experiment to its end and return the lines to print and the exit code."""
    before = read_experiment(path)
    if before.writer is not None:
        raise LedgerLocked(
            (f"{before.address}: is running ({before.writer}). Wait for it, or stop it with Ctrl-C there"),
            fix="`muster tune show --watch` shows its progress",
        )
    if before.state == "finished" and not (request.errored and before.counts.get("ERROR")):
        failed = before.counts.get("ERROR", 0)
        again = f" --errored resume, or restart, runs the {failed:,} failed again." if failed else ""
        nothing_left = f"It is finished: there is nothing to continue.{again}"
        return [*_summary(before), "", nothing_left], _code(before)
    if mode := before.settings.get("as_ray"):  # its library imports ray, and muster answered for it
        environment()["MUSTER_AS_RAY"] = str(mode)
        try:
            importlib.import_module("muster.as_ray")
        except ImportError as error:
            raise RestoreError(f"{before.address}: {error}") from error
    sys.path.insert(0, os.getcwd())
    try:
        tuner = _restored(before, request)
        counts = before.counts
        done, failed = counts.get("TERMINATED", 0), counts.get("ERROR", 0)
        unfinished = sum(counts.values()) - done - failed
        left = f"{done:,} trials done, {unfinished:,} unfinished, {failed:,} failed"
        report(f"continuing {before.address} ({left})")
        return fit_to_end(tuner, path, skip_unfinished=request.skip_unfinished)
    except KeyboardInterrupt:
        return [f"Stopped. To continue: {before.resume_command}"], STOPPED


def fit_to_end(tuner: Tuner, path: str, *, skip_unfinished: bool = False) -> tuple[list[str], int]:
    """Run an experiment, and return the lines to print and the exit code."""
    tuner.fit()
    after = read_experiment(path)
    lines = ["", *_summary(after)]
    if after.ended_by:
        more = f"Ended by its {after.ended_by}. To continue with more: {after.resume_command}"
        return [*lines, "", more], LIMITED
    if after.state != "finished" and not skip_unfinished:
        return [*lines, "", f"Stopped before its end. To continue: {after.resume_command}"], STOPPED
    return lines, _code(after)


def _restored(experiment: ExperimentView, request: ResumeRequest) -> Tuner:
    from muster.tune.tuner import Tuner

    try:
        tuner: Tuner = Tuner.restore(  # which is public(...), and so untyped
            experiment.address,
            _trainable(experiment, request),
            resume_unfinished=not request.skip_unfinished,
            resume_errored=request.errored == "resume",
            restart_errored=request.errored == "restart",
            cost_budget=request.cost_budget,
            deadline=request.deadline,
        )
        return tuner
    except (FileNotFoundError, ValueError) as error:
        raise RestoreError(str(error)) from error


def _trainable(experiment: ExperimentView, request: ResumeRequest) -> Any:  # noqa: ANN401
    if request.trainable is not None and request.script is not None:
        raise ConfigError("--trainable and --script: give one of them")
    if request.trainable is not None:
        return _named(request.trainable)
    if request.script is not None:
        return _from_script(request.script, _trainable_name(experiment))
    from muster.tune.execution.restore import DEFAULT_NAME

    if experiment.settings.get("trainable_name") == DEFAULT_NAME:
        raise RestoreError(
            f"{experiment.address}: was run by ask and tell",
            fix=(f"resume it in the script that calls them, with AskTell.restore({experiment.address!r})"),
        )
    return None  # the one that the experiment saved


def _named(text: str) -> Any:  # noqa: ANN401
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise ConfigError(f"--trainable {text}: must be module:name, for example my_project.train:train")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"--trainable {text}: {error}. Start muster in the directory that holds the module, or install it"
        ) from error
    except Exception as error:  # a user's module may raise anything
        raise _broken(f"--trainable {text}", error) from error
    return _attribute(module, name, f"--trainable {text}")


def _from_script(script: Path, name: str) -> Any:  # noqa: ANN401
    """The file is loaded as a module: code under `if __name__ == ...` does not run."""
    import cloudpickle  # type: ignore[import-untyped]

    if not script.is_file():
        raise ConfigError(f"--script {script}: there is no such file")
    sys.path.insert(0, str(script.resolve().parent))
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, script)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--script {script}: must be a Python file, its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _broken(f"--script {script}", error) from error
    cloudpickle.register_pickle_by_value(module)  # trials' processes cannot import it under this name
    by_value.adopt(module)
    return _attribute(module, name, f"--script {script}")


def _broken(option: str, error: Exception) -> ConfigError:
    return ConfigError(f"{option}: cannot be loaded: {type(error).__name__}: {error}")


def _attribute(module: object, path: str, option: str) -> Any:  # noqa: ANN401
    found = module
    for name in path.split("."):
        if not hasattr(found, name):
            names = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
            hint = f"it has {', '.join(names)}" if names else "it defines no function or class"
            raise ConfigError(
                f"{option}: no {path!r} there", fix=f"{hint}. --trainable module:name names another"
            )
        found = getattr(found, name)
    return found


def _trainable_name(experiment: ExperimentView) -> str:
    """The name is in the settings, else in the names of trials (`train_1a2b3_00000`)."""
    name = experiment.settings.get("trainable_name")
    if isinstance(name, str):
        return name
    for trial in experiment.trials:
        name = trial.trial_name.removesuffix(f"_{trial.trial_id}")
        if name and name != trial.trial_name:
            return name
    raise ConfigError(f"--script: {experiment.path} does not name its trainable", fix="use --trainable")


def _summary(experiment: ExperimentView) -> Iterator[str]:
    yield from heading(experiment, colour=False)
    best = best_of(experiment) if experiment.metric and experiment.mode else []
    if best:
        yield "with " + "\n".join(config_lines(best[0].trial.config))


def _code(experiment: ExperimentView) -> int:
    return TRIALS_FAILED if experiment.counts.get("ERROR") else DONE


def request_stop(path: str, trials: Sequence[str]) -> list[str]:
    """Ask to stop an experiment or trials; return what to print."""
    experiment = _running(path)
    states = {trial.trial_id: trial.status for trial in experiment.trials}
    for trial_id in trials:
        if trial_id not in states:
            raise StoreError(f"{experiment.address}: has no trial {trial_id}", fix="see `muster tune ls`")
        if states[trial_id] in FINISHED:
            raise StoreError(f"{experiment.address}: trial {trial_id} has ended already")
    send_request(experiment.path, ExperimentRequest(stop=not trials, trials=tuple(trials)))
    if trials:
        return [f"Requested: the driver stops {', '.join(trials)}."]
    return [f"Requested: the driver saves everything and stops. To continue: {experiment.resume_command}"]


def request_limits(path: str, cost_budget: float | None, deadline_s: float | None) -> list[str]:
    """Ask to hold other limits; return what to print."""
    if cost_budget is None and deadline_s is None:
        raise ConfigError("muster tune set: give --cost-budget or --deadline")
    if (cost_budget is not None and not cost_budget > 0) or (deadline_s is not None and not deadline_s > 0):
        raise ConfigError("muster tune set: a budget and a deadline must be more than 0")
    experiment = _running(path)
    given = {"cost_budget": cost_budget, "deadline": deadline_s}
    for name, value in given.items():
        if value is not None and experiment.settings.get(name) is None:
            raise StoreError(
                f"{experiment.address}: was started without a {name}, so there is none to change",
                fix=f"stop it, and resume it with --{name.replace('_', '-')}",
            )
    deadline = None if deadline_s is None else SystemClock().now() + deadline_s
    send_request(experiment.path, ExperimentRequest(cost_budget=cost_budget, deadline=deadline))
    return ["Requested: the driver holds the new limits within a second."]


def _running(path: str) -> ExperimentView:
    experiment = read_experiment(path)
    if experiment.filesystem is not None:
        raise StoreError(f"{experiment.address}: only experiments that run on this machine can be changed")
    return experiment
