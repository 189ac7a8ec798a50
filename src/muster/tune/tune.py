"""Run an experiment in one call, as scripts older than the Tuner do.

The arguments become an Experiment, a TuneConfig and a RunConfig, and `launch` does the rest.
(The module is not called `run`, because importing it would then hide the function `tune.run`.)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import error_text, ray_object_hint, type_text
from muster.errors import RestoreError, TuneError, public
from muster.session.older import accept_older
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.config import DEPRECATED, CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from muster.tune.execution.restore import read_spec, resume_rules
from muster.tune.experiment import Experiment
from muster.tune.experiment.experiment import OLDER_POLICY, as_experiments, with_older_policy
from muster.tune.older import accept_chdir, accept_run_arguments
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
    **older: Any,  # noqa: ANN401 - arguments of older versions of Ray
) -> ExperimentAnalysis:
    """Run an experiment to its end.

    The values of an Experiment (space, stop, ...) take precedence over the arguments. Several Experiments run
    one after another, each with a copy of the searcher and the scheduler; the analysis has all their trials.

    Args:
        run_or_experiment: The trainable: a function, a class or a registered name; or Experiments.
        name: The experiment's name, as in RunConfig.
        metric: The metric to optimize, as in TuneConfig.
        mode: "min" or "max".
        stop: When trials end, as in RunConfig.
        time_budget_s: Seconds for the whole experiment, as in TuneConfig.
        config: The search space.
        resources_per_trial: What each trial reserves, as in `with_resources`.
        num_samples: How many trials, as in TuneConfig.
        storage_path: Where results are stored, as in RunConfig.
        storage_filesystem: The file system of `storage_path`.
        search_alg: Suggests configurations, as in TuneConfig.
        scheduler: Stops and pauses trials, as in TuneConfig.
        checkpoint_config: When checkpoints are saved and which are kept.
        verbose: How much is printed, as in RunConfig.
        progress_reporter: Prints the progress.
        log_to_file: Whether trials' output goes to files.
        trial_name_creator: Returns the name of a trial.
        trial_dirname_creator: Returns the directory name of a trial.
        sync_config: How files are copied to `storage_path`.
        export_formats: What `export_model` writes at the end of a trial.
        max_failures: How often a failed trial is retried, as in FailureConfig.
        fail_fast: Whether the first failed trial stops the experiment.
        restore: A checkpoint that every trial starts from.
        resume: Whether to resume: True, "AUTO" or one of Ray's words.
        resume_config: Which trials a resumed experiment continues or restarts.
        reuse_actors: Whether trials share processes.
        raise_on_failed_trial: Whether a failed trial is an error.
        callbacks: Called with every event of the experiment.
        max_concurrent_trials: How many trials run at a time.
        keep_checkpoints_num: Older form of `checkpoint_config`.
        checkpoint_score_attr: Older form of `checkpoint_config`.
        checkpoint_freq: Older form of `checkpoint_config`.
        checkpoint_at_end: Older form of `checkpoint_config`.
        chdir_to_trial_dir: Removed by Ray; use the variable it names.
        local_dir: Older form of `storage_path`.

    Returns:
        The trials and their results.

    Raises:
        TuneError: A trial failed, and `raise_on_failed_trial` is True.
    """
    arguments = dict(locals())
    _accept_older_arguments(arguments)
    if isinstance(run_or_experiment, list | tuple) and run_or_experiment:
        return _run_each(as_experiments(run_or_experiment), arguments)
    experiment = _experiment(arguments)
    launched = _launched(experiment, arguments)
    analysis = launched.analysis(*goal_of(metric, mode, launched.state.plugins.search))
    _raise_if_asked([launched], analysis, arguments)
    return analysis


def _accept_older_arguments(arguments: dict[str, Any]) -> None:
    upload_dir, callbacks = accept_run_arguments(arguments.pop("older"))
    arguments["storage_path"] = arguments["storage_path"] or upload_dir
    arguments["callbacks"] = [*(arguments["callbacks"] or ()), *callbacks] or None
    if arguments["local_dir"] is not None:
        accept_older("tune.run(local_dir=...)", "use storage_path")
        arguments["storage_path"] = arguments["storage_path"] or arguments["local_dir"]


def _run_each(experiments: Sequence[Experiment], arguments: Mapping[str, Any]) -> ExperimentAnalysis:
    """Run experiments one after another; returns the analysis of the first, with the trials of all."""
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
    """Run several experiments, each with a copy of the scheduler; return all their trials.

    They run one after another, each with all the resources.

    Args:
        experiments: The experiments, or their specs by name.
        scheduler: The scheduler; each experiment gets a copy.
        verbose: How much is printed, as in RunConfig.
        progress_reporter: Prints the progress.
        resume: Whether to resume: True, "AUTO" or one of Ray's words.
        resume_config: Which trials a resumed experiment continues or restarts.
        reuse_actors: Whether trials share processes.
        raise_on_failed_trial: Whether a failed trial is an error.
        concurrent: False: experiments after a failed one do not start. True: the error comes after the last.
        callbacks: Called with every event of every experiment.

    Returns:
        The trials of all experiments.

    Raises:
        TuneError: A trial failed, and `raise_on_failed_trial` is True.
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
    """Return what to run, from the arguments of run()."""
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
    if arguments["chdir_to_trial_dir"] != DEPRECATED:
        accept_chdir(arguments["chdir_to_trial_dir"], "tune.run")
    if (limit := arguments["max_concurrent_trials"]) is not None and limit < 0:
        raise ValueError(f"tune.run(max_concurrent_trials={limit}): must be at least 1, or None for no limit")


def _checkpoint_config(arguments: Mapping[str, Any]) -> CheckpointConfig:
    """Return the config with the arguments of the old form added."""
    given = arguments["checkpoint_config"]
    config = CheckpointConfig() if given is None else copy(given)
    if not isinstance(config, CheckpointConfig):
        fault = ray_object_hint(config) or f"must be a CheckpointConfig, not {type_text(config)}"
        raise ValueError(f"tune.run(checkpoint_config=...): {fault}")
    return with_older_policy(config, {name: arguments[name] for name in OLDER_POLICY}, "tune.run")


def _launched(experiment: Experiment, arguments: Mapping[str, Any]) -> ExperimentOutcome:
    """Run one experiment; `arguments` are the arguments of run() or run_experiments()."""
    from muster.tune.execution.launch import ExperimentSpec, launch
    from muster.tune.trainable.function_trainable import packed
    from muster.tune.trainable.util import with_export

    trainable, formats = experiment.trainable, experiment.export_formats
    trainable = with_export(trainable, formats) if formats else trainable
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
    """A resumed run continues with the checkpoint settings it was started with, unless it is given others."""
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


def _overrides(experiment: Experiment) -> dict[str, Any]:
    """Return what only run() can set for its trials."""
    found = {"resources_per_trial": experiment.resources_per_trial, "restore_path": experiment.restore}
    found["export_formats"] = tuple(experiment.export_formats or ()) or None
    return {name: value for name, value in found.items() if value is not None}


def _tune_config(experiment: Experiment, arguments: Mapping[str, Any]) -> TuneConfig:
    asked = ("mode", "metric", "search_alg", "scheduler", "max_concurrent_trials")
    given: dict[str, Any] = {name: arguments.get(name) for name in asked}
    own = ("num_samples", "time_budget_s", "trial_name_creator", "trial_dirname_creator")
    return TuneConfig(
        reuse_actors=arguments["reuse_actors"] and not experiment.export_formats,  # its own end exports
        **given,
        **{name: getattr(experiment, name) for name in own},
    )


def _run_config(experiment: Experiment, arguments: Mapping[str, Any]) -> RunConfig:
    from muster.base.clock import SystemClock
    from muster.host.machine import environment
    from muster.tune.execution.paths import dated_name

    dated = dated_name(experiment.run_identifier, SystemClock().now(), environment())
    fail_fast = arguments.get("fail_fast", False)
    own = ("storage_path", "storage_filesystem", "checkpoint_config", "sync_config", "stop", "log_to_file")
    return RunConfig(
        name=experiment.name or dated,
        failure_config=FailureConfig(max_failures=experiment.max_failures, fail_fast=fail_fast),
        verbose=VERBOSE if arguments["verbose"] is None else arguments["verbose"],
        callbacks=arguments["callbacks"],
        progress_reporter=arguments["progress_reporter"],
        **{name: getattr(experiment, name) for name in own},
    )


def _incomplete(launched: ExperimentOutcome) -> list[Trial]:
    """Return the trials that did not end well; those of an interrupted run have not ended at all."""
    if launched.is_interrupted:
        return []
    return [trial for trial in launched.state.index.order if trial.status != trial.TERMINATED]


def not_completed(failed: list[Trial]) -> TuneError:
    """Return an error with the trials, as in Ray, and in its text why the first of them failed."""
    from muster.tune.reporting.tally import error_line

    file = failed[0].error_file
    why = ""
    if file is not None and os.path.isfile(file):
        with open(file, encoding="utf-8", errors="replace") as stream:
            why = f" with {error_line(stream.read().rpartition('Failure # ')[2])}; see {file}"
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
