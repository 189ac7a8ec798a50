"""Runs an experiment in one call, as scripts older than the Tuner do.

The arguments become an Experiment, a TuneConfig and a RunConfig, and `launch` does the rest.
(The module is not called `run`, because importing it would then hide the function `tune.run`.)
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import error_text, ray_object_hint, type_text
from muster.errors import RestoreError, TuneError, public
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.config import DEPRECATED, CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from muster.tune.execution.restore import read_spec, resume_rules
from muster.tune.experiment import Experiment
from muster.tune.experiment.experiment import as_experiments
from muster.tune.tune_config import ResumeConfig, TuneConfig, goal_of

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.execution.launch import ExperimentOutcome, ExperimentSpec

logger = logging.getLogger(__name__)

VERBOSE = 2  # the default of run()


@public
def run(  # noqa: PLR0913 - Ray's signature
    run_or_experiment: Any,  # noqa: ANN401 - function, class, name, Experiment or Experiments
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,  # noqa: ANN401 - criteria, function, Stopper or several
    time_budget_s: float | timedelta | None = None,
    config: dict[str, Any] | None = None,
    resources_per_trial: Any = None,  # noqa: ANN401 - dict, PlacementGroupFactory or function
    num_samples: int = 1,
    storage_path: str | os.PathLike[str] | None = None,
    storage_filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
    search_alg: Any = None,  # noqa: ANN401 - searcher or its name
    scheduler: Any = None,  # noqa: ANN401 - scheduler or its name
    checkpoint_config: CheckpointConfig | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,  # noqa: ANN401
    log_to_file: bool | str | Sequence[str] = False,
    trial_name_creator: Callable[[Trial], str] | None = None,
    trial_dirname_creator: Callable[[Trial], str] | None = None,
    sync_config: SyncConfig | None = None,
    export_formats: Sequence[str] | None = None,
    max_failures: int = 0,
    fail_fast: bool | str = False,
    restore: str | None = None,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Any] | None = None,
    max_concurrent_trials: int | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    chdir_to_trial_dir: bool | str = DEPRECATED,
    local_dir: str | None = None,
) -> ExperimentAnalysis:
    """Runs an experiment to its end. The arguments mean what they mean in TuneConfig and RunConfig.

    TuneError when trials failed, unless `raise_on_failed_trial` is False. The values of an
    Experiment (space, stop, ...) take precedence over the arguments. Several Experiments run one after
    another, each with a copy of the searcher and the scheduler; the analysis has the trials of all of them.
    """
    arguments = dict(locals())
    if isinstance(run_or_experiment, list | tuple) and run_or_experiment:
        return _run_each(as_experiments(run_or_experiment), arguments)
    experiment = _experiment(arguments)
    launched = _launched(experiment, arguments)
    analysis = launched.analysis(*goal_of(metric, mode, launched.state.plugins.search))
    _raise_if_asked([launched], analysis, arguments)
    return analysis


def _run_each(experiments: Sequence[Experiment], arguments: Mapping[str, Any]) -> ExperimentAnalysis:
    """Runs experiments one after another; returns the analysis of the first, with the trials of all."""
    launched: list[ExperimentOutcome] = []
    found: list[ExperimentAnalysis] = []
    for experiment in experiments:
        own = {name: deepcopy(arguments[name]) for name in ("search_alg", "scheduler")}
        launched.append(_launched(experiment, {**arguments, **own}))
        goal = goal_of(arguments["metric"], arguments["mode"], launched[-1].state.plugins.search)
        found.append(launched[-1].analysis(*goal))
        has_failed = bool(arguments["fail_fast"] and _incomplete(launched[-1]))
        if launched[-1].is_interrupted or has_failed:
            break
    first = found[0]
    first.trials = [trial for each in found for trial in each.trials]
    _raise_if_asked(launched, first, arguments)
    return first


@public
def run_experiments(  # noqa: PLR0913, PLR0917 - Ray's signature
    experiments: Experiment | Mapping[str, Any] | Sequence[Experiment],
    scheduler: Any = None,  # noqa: ANN401
    verbose: int | None = None,
    progress_reporter: Any = None,  # noqa: ANN401
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    concurrent: bool = True,
    callbacks: Sequence[Any] | None = None,
) -> list[Trial]:
    """Runs several experiments, each with a copy of the scheduler; returns all their trials.

    They run one after another, each with all the resources. `concurrent` decides only what a failed trial
    means: False: the experiments after it are not started; True: the error is raised when all have ended.
    """
    arguments = dict(locals())
    trials: list[Trial] = []
    failed: list[Trial] = []
    for experiment in as_experiments(experiments):
        launched = _launched(experiment, {**arguments, "scheduler": deepcopy(scheduler)})
        trials += launched.state.index.order
        failed += _incomplete(launched)
        if launched.is_interrupted or (failed and raise_on_failed_trial and not concurrent):
            break
    if failed and raise_on_failed_trial:
        raise not_completed(failed)
    return trials


def _experiment(arguments: Mapping[str, Any]) -> Experiment:
    """Returns what to run, from the arguments of run()."""
    given = arguments["run_or_experiment"]
    if isinstance(given, Experiment):
        return given
    if isinstance(given, list | tuple) or given is None:
        asked = "; did you call it? Pass the function itself" if given is None else ""
        raise TuneError(f"tune.run({given!r}): needs a trainable or an Experiment{asked}")
    _check(arguments)
    same = (
        *("stop", "time_budget_s", "config", "resources_per_trial", "num_samples", "storage_path"),
        *("storage_filesystem", "sync_config", "trial_name_creator", "trial_dirname_creator", "log_to_file"),
        *("export_formats", "max_failures", "restore"),
    )
    return Experiment(
        arguments["name"],
        given,
        checkpoint_config=_checkpoint_config(arguments),
        **{name: arguments[name] for name in same},
    )


def _check(arguments: Mapping[str, Any]) -> None:
    if arguments["local_dir"] is not None:
        raise DeprecationWarning("tune.run(local_dir=...) does not exist any more: use storage_path")
    if arguments["chdir_to_trial_dir"] != DEPRECATED:
        raise DeprecationWarning(
            "tune.run(chdir_to_trial_dir=...) does not exist any more: set the environment variable "
            "RAY_CHDIR_TO_TRIAL_DIR=0 to keep the working directory of the driver"
        )
    limit = arguments["max_concurrent_trials"]
    if limit is not None and limit < 0:
        raise ValueError(f"tune.run(max_concurrent_trials={limit}): must be at least 1, or None for no limit")


def _checkpoint_config(arguments: Mapping[str, Any]) -> CheckpointConfig:
    """Returns the config with the arguments of the old form added."""
    given = arguments["checkpoint_config"]
    config = CheckpointConfig() if given is None else copy(given)
    if not isinstance(config, CheckpointConfig):
        fault = ray_object_hint(config) or f"must be a CheckpointConfig, not {type_text(config)}"
        raise ValueError(f"tune.run(checkpoint_config=...): {fault}")
    score = arguments["checkpoint_score_attr"]
    old = {
        "keep_checkpoints_num": ("num_to_keep", arguments["keep_checkpoints_num"]),
        "checkpoint_score_attr": ("checkpoint_score_attribute", (score or "").removeprefix("min-")),
        "checkpoint_freq": ("checkpoint_frequency", arguments["checkpoint_freq"]),
        "checkpoint_at_end": ("checkpoint_at_end", arguments["checkpoint_at_end"]),
    }
    for argument, (attribute, value) in old.items():
        if value:
            warnings.warn(
                f"tune.run({argument}=...) is deprecated: use CheckpointConfig({attribute}=...)",
                DeprecationWarning,
                stacklevel=5,
            )
            setattr(config, attribute, value)
    if score:
        config.checkpoint_score_order = "min" if score.startswith("min-") else "max"
    config.__post_init__()  # the values that came in are checked too
    return config


def _launched(experiment: Experiment, arguments: Mapping[str, Any]) -> ExperimentOutcome:
    """Runs one experiment; `arguments` are the arguments of run() or run_experiments()."""
    from muster.tune.execution.launch import ExperimentSpec, launch
    from muster.tune.trainable.function_trainable import packed

    trainable = _exporting(experiment, arguments["reuse_actors"])
    asked = ExperimentSpec(
        trainable=trainable,
        trainable_name=experiment.run_identifier,
        code=packed(trainable),
        param_space=experiment.config,
        tune=_tune_config(experiment, arguments),
        run=_run_config(experiment, arguments),
        overrides=_overrides(experiment),
        must_be_resumable=False,
    )
    rules = resume_rules(arguments["resume"], arguments["resume_config"])
    if rules is not None:
        asked.place.fetch()
        from muster.stores.experiment.reader import STORE_NAME

        if os.path.isfile(os.path.join(asked.place.directory, STORE_NAME)):
            asked.resume = rules
            _keep_saved_settings(asked)
        else:
            logger.info("there is nothing to resume in %s: a new experiment begins", asked.place.address)
    return launch(asked)


def _keep_saved_settings(asked: ExperimentSpec) -> None:
    """A resumed run goes on with the checkpoint settings it was started with, unless it is given others."""
    # An Experiment sets `checkpoint_at_end` to False where nothing was given.
    if asked.run.checkpoint_config not in (
        None,
        CheckpointConfig(),
        CheckpointConfig(checkpoint_at_end=False),
    ):
        return
    try:
        asked.run.checkpoint_config = read_spec(asked.place.directory).run.checkpoint_config
    except (FileNotFoundError, RestoreError):
        logger.info("%s: its saved settings cannot be read, so those of this call count", asked.place.address)


def _exporting(experiment: Experiment, reuses: bool) -> Any:  # noqa: ANN401 - function or class
    """Returns the trainable, made to export its model when that is requested."""
    from muster.tune.trainable.util import with_export

    if not experiment.export_formats:
        return experiment.trainable
    if reuses:
        raise TuneError(
            "export_formats and reuse_actors exclude each other: a trial that hands its process on to the "
            "next one cannot export its model at its end. Leave one of them out"
        )
    return with_export(experiment.trainable, experiment.export_formats)


def _overrides(experiment: Experiment) -> dict[str, Any]:
    """Returns what only run() can set for its trials."""
    found: dict[str, Any] = {}
    if experiment.resources_per_trial is not None:
        found["resources_per_trial"] = experiment.resources_per_trial
    if experiment.restore is not None:
        found["restore_path"] = experiment.restore
    if experiment.export_formats:
        found["export_formats"] = tuple(experiment.export_formats)
    return found


def _tune_config(experiment: Experiment, arguments: Mapping[str, Any]) -> TuneConfig:
    return TuneConfig(
        mode=arguments.get("mode"),
        metric=arguments.get("metric"),
        search_alg=arguments.get("search_alg"),
        scheduler=arguments["scheduler"],
        num_samples=experiment.num_samples,
        max_concurrent_trials=arguments.get("max_concurrent_trials"),
        time_budget_s=experiment.time_budget_s,
        reuse_actors=arguments["reuse_actors"],
        trial_name_creator=experiment.trial_name_creator,
        trial_dirname_creator=experiment.trial_dirname_creator,
    )


def _run_config(experiment: Experiment, arguments: Mapping[str, Any]) -> RunConfig:
    from muster.base.clock import SystemClock
    from muster.host.machine import environment
    from muster.tune.execution.paths import dated_name

    dated = dated_name(experiment.run_identifier, SystemClock().now(), environment())
    fail_fast = arguments.get("fail_fast", False)
    return RunConfig(
        name=experiment.name or dated,
        storage_path=experiment.storage_path,
        storage_filesystem=experiment.storage_filesystem,
        failure_config=FailureConfig(max_failures=experiment.max_failures, fail_fast=fail_fast),
        checkpoint_config=experiment.checkpoint_config,
        sync_config=experiment.sync_config,
        verbose=VERBOSE if arguments["verbose"] is None else arguments["verbose"],
        stop=experiment.stop,
        callbacks=arguments["callbacks"],
        progress_reporter=arguments["progress_reporter"],
        log_to_file=experiment.log_to_file,
    )


def _incomplete(launched: ExperimentOutcome) -> list[Trial]:
    """Returns the trials that did not end well; those of an interrupted run have not ended at all."""
    if launched.is_interrupted:
        return []
    return [trial for trial in launched.state.index.order if trial.status != trial.TERMINATED]


def not_completed(failed: list[Trial]) -> TuneError:
    """Returns an error with the trials, as in Ray, and in its text why the first of them failed."""
    file = failed[0].error_file
    why = ""
    if file is not None and os.path.isfile(file):
        with open(file, encoding="utf-8", errors="replace") as stream:
            why = f" with {stream.read().strip().rpartition(chr(10))[2]}; see {file}"
    return TuneError(f"Trials did not complete: {len(failed)} failed, first {failed[0]}{why}", failed)


def _raise_if_asked(
    launched: Sequence[ExperimentOutcome], analysis: ExperimentAnalysis, arguments: Mapping[str, Any]
) -> None:
    failed = [trial for each in launched for trial in _incomplete(each)]
    if not failed:
        return
    errors = [record.error for record in analysis.trials if record.status == "ERROR"]
    if isinstance(arguments["fail_fast"], str) and errors and errors[0] is not None:
        raise errors[0] if isinstance(errors[0], Exception) else TuneError(error_text(errors[0]))
    if arguments["raise_on_failed_trial"]:
        raise not_completed(failed)
    logger.error("Trials did not complete: %s", failed)
