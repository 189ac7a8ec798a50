"""Make the objects of one experiment from what the user configured: template, plug-ins, settings.

Called by Tuner; decides nothing that the core decides. Nothing is started here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from muster.base.untrusted import ray_object_hint
from muster.errors import TuneError
from muster.trials.model import CheckpointPolicy, FailurePolicy, TrialPolicies
from muster.trials.plugins import SchedulerPlugin, SearchPlugin
from muster.trials.template import Limits, Settings, TrialTemplate
from muster.tune.config import RunConfig, log_files, seconds
from muster.tune.constants import idle_warning_in, number_in
from muster.tune.trainable.function_trainable import trainable_name
from muster.tune.trainable.util import checkpoint_policy, trial_resources
from muster.tune.tune_config import TuneConfig, constraints_of

if TYPE_CHECKING:
    from muster.tune.stopper.stopper import Stopper

logger = logging.getLogger(__name__)

PENDING_AHEAD = 200  # at least, of a searcher that does not learn; others are asked one by one


def template_of(
    trainable: Any,  # noqa: ANN401 - function or class
    param_space: dict[str, Any],
    tune: TuneConfig,
    run: RunConfig,
    overrides: Mapping[str, Any] | None = None,
) -> TrialTemplate:
    """Return what all trials share; `overrides` are attributes that only tune.run() has."""
    more = dict(overrides or {})
    given = more.pop("resources_per_trial", None)
    criteria_of: Mapping[str, Any] = {}
    if run.stop is not None:
        from muster.tune.stopper.function_stopper import resolve_stop

        criteria_of = resolve_stop(run.stop).criteria
    return TrialTemplate(
        trainable_name=more.pop("trainable_name", None) or trainable_name(trainable),
        param_space=param_space,
        num_samples=tune.num_samples,
        resources=trial_resources(trainable, given),
        stopping_criterion=criteria_of,
        policies=TrialPolicies(
            max_failures=run.failure_config.max_failures if run.failure_config else 0,
            checkpoint_policy=checkpoint_policy(trainable, run.checkpoint_config),
            restore_path=more.pop("restore_path", None),
            log_to_file=log_files(run.log_to_file),
        ),
        trial_name_creator=tune.trial_name_creator,
        trial_dirname_creator=tune.trial_dirname_creator,
        **more,
    )


def settings_of(
    tune: TuneConfig, run: RunConfig, directory: str, ahead: int, environment: Mapping[str, str]
) -> Settings:
    """Return the settings of the core; the environment variables are Ray's."""
    failure = run.failure_config
    whole, seconds_in = partial(number_in, environment, int), partial(number_in, environment, float)
    return Settings(
        name=str(run.name),
        experiment_dir=directory,
        metric=tune.metric if isinstance(tune.metric, str) else None,
        mode=tune.mode if isinstance(tune.mode, str) else None,
        failure=FailurePolicy(
            max_failures=failure.max_failures if failure else 0,
            fail_fast=bool(failure and failure.fail_fast),
            raise_first=bool(failure and failure.raises_first),
            restore_retries=whole("TUNE_RESTORE_RETRY_NUM"),
            count_preemption=environment.get("RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE") == "1",
        ),
        reuse_actors=tune.reuse_actors,
        max_pending=max(1, whole("TUNE_MAX_PENDING_TRIALS_PG", ahead)),
        result_buffer=(
            whole("TUNE_RESULT_BUFFER_LENGTH"),
            seconds_in("TUNE_RESULT_BUFFER_MIN_TIME_S"),
            seconds_in("TUNE_RESULT_BUFFER_MAX_TIME_S"),
        ),
        force_cleanup_s=seconds_in("TUNE_FORCE_TRIAL_CLEANUP_S") or inf,
        idle_warning_s=idle_warning_in(environment),
        max_len_identifier=whole("TUNE_MAX_LEN_IDENTIFIER"),
        strict_metrics=environment.get("TUNE_DISABLE_STRICT_METRIC_CHECKING") != "1",
        trial_time_limit_s=seconds(run.trial_time_limit_s, "RunConfig(trial_time_limit_s=...)"),
        limits=limits_of(tune),
    )


def checked_buffers(settings: Settings, scheduler: object, policy: CheckpointPolicy) -> Settings:
    """Return the settings with as many buffered results as can be used; warns when these are fewer."""
    length, every = settings.result_buffer[0], policy.frequency
    if length > 1 and not getattr(scheduler, "supports_buffered_results", True):
        most, why = 1, type(scheduler).__name__
    elif policy.at_end:
        most, why = 1, "checkpoint_at_end"
    else:
        most, why = every or length, f"checkpoint_frequency={every}"
    if most >= length:
        return settings
    logger.warning("TUNE_RESULT_BUFFER_LENGTH=%d: %s allows %d; lower or unset it", length, why, most)
    return replace(settings, result_buffer=(most, *settings.result_buffer[1:]))


def limits_of(tune: TuneConfig) -> Limits:
    """Return what the experiment may cost, and until when it may run."""
    deadline = tune.deadline  # a moment: TuneConfig turned seconds into one
    return Limits(
        cost_budget=tune.cost_budget,
        deadline=deadline.timestamp() if isinstance(deadline, datetime) else None,
    )


def pending_ahead(cpus: float) -> int:
    """Return how many trials may wait, on so many CPUs, of a searcher that does not learn."""
    return max(PENDING_AHEAD, int(1.1 * cpus))


def search_of(tune: TuneConfig, template: TrialTemplate, cpus: float = 0.0) -> tuple[SearchPlugin, int]:
    """Return the configured search algorithm, and how many trials to request before they can start."""
    from muster.tune.search import BasicVariantGenerator
    from muster.tune.search.variant_generator import has_unresolved_values

    limit = tune.max_concurrent_trials or 0
    if tune.search_alg is None:
        asked: Any = BasicVariantGenerator(max_concurrent=limit)
    else:
        asked = _given_search(tune.search_alg, limit)
    space = dict(template.param_space)
    properties = {
        "stop": dict(template.stopping_criterion) or None,
        "num_samples": template.num_samples,
        "time_budget_s": tune.time_budget_s,
        **({"constraints": tune.constraints} if tune.constraints else {}),
    }
    is_asked = bool(space) or _has_own_space(tune.search_alg)
    is_taken = not is_asked or asked.set_search_properties(tune.metric, tune.mode, space, **properties)
    if not is_taken and has_unresolved_values(space):  # constants need no searcher
        name = type(getattr(asked, "searcher", asked)).__name__  # not of the SearchGenerator around it
        raise ValueError(
            f"{name} already has its own metric, mode or space: give each of them once, "
            "either to the searcher or to TuneConfig and param_space"
        )
    asked.add_configurations([template])
    is_basic = isinstance(asked, BasicVariantGenerator)
    return asked, pending_ahead(cpus) if is_basic else limit_in(asked) or limit or 1


def _has_own_space(search: Any) -> bool:  # noqa: ANN401 - a Searcher, or wrappers around one
    """Return whether it may still lack a metric, without a space of the experiment that it would take."""
    if search is None or isinstance(search, str):
        return False
    from muster.tune.search.library_searcher import SpaceSearcher

    while not isinstance(search, SpaceSearcher | None):
        search = getattr(search, "searcher", None)
    return search is not None


def _given_search(asked: Any, limit: int) -> Any:  # noqa: ANN401 - a name, a Searcher or a SearchAlgorithm
    from muster.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher, create_searcher

    if isinstance(asked, str):
        asked = create_searcher(asked)
    if isinstance(asked, Searcher):
        return _generator(asked, limit)
    if isinstance(asked, BasicVariantGenerator):
        asked.max_concurrent = _one_limit(asked, limit)
    elif not isinstance(asked, SearchAlgorithm):
        kind = type(asked).__name__
        fault = ray_object_hint(asked) or f"{kind} is neither a Searcher nor a SearchAlgorithm"
        raise TuneError(f"TuneConfig(search_alg=...): {fault}")
    return asked


def limit_in(search: Any) -> int:  # noqa: ANN401 - wrappers around wrappers around a Searcher
    """Return what the outermost ConcurrencyLimiter allows; 0 when there is none."""
    while (inner := getattr(search, "searcher", None)) is not None:
        from muster.tune.search import ConcurrencyLimiter

        if isinstance(search, ConcurrencyLimiter):
            return int(search.max_concurrent)
        search = inner
    return 0


def _generator(searcher: Any, limit: int) -> Any:  # noqa: ANN401 - a Searcher, and what wraps it
    from muster.tune.search import ConcurrencyLimiter, SearchGenerator

    if not limit:
        return SearchGenerator(searcher)
    if not isinstance(searcher, ConcurrencyLimiter):
        return SearchGenerator(ConcurrencyLimiter(searcher, max_concurrent=limit))
    _one_limit(searcher, limit)
    return SearchGenerator(searcher)


def _one_limit(search: Any, limit: int) -> int:  # noqa: ANN401 - whatever has `max_concurrent`
    """Return the limit that was given in one of the two places; ValueError when they differ."""
    own = int(search.max_concurrent)
    if own and limit and own != limit:
        raise ValueError(
            f"TuneConfig(max_concurrent_trials={limit}) contradicts "
            f"{type(search).__name__}(max_concurrent={own}): give one of them"
        )
    return own or limit


def scheduler_of(tune: TuneConfig) -> SchedulerPlugin:
    from muster.tune import schedulers
    from muster.tune.schedulers.trial_scheduler import offer_search_properties, scheduler_goal

    asked = schedulers.create_scheduler(tune.scheduler) if isinstance(tune.scheduler, str) else tune.scheduler
    chosen: Any = asked or schedulers.FIFOScheduler()
    if not hasattr(chosen, "on_trial_result"):
        raise ValueError(f"TuneConfig(scheduler={chosen!r}): must be a TrialScheduler, or the name of one")
    if tune.reuse_actors and (why := getattr(chosen, "refuses_reuse", "")):
        raise ValueError(
            f"{type(chosen).__name__} cannot be used with TuneConfig(reuse_actors=True), because {why}: "
            "leave reuse_actors out"
        )
    metric, mode = scheduler_goal(chosen, tune.metric, tune.mode)
    constraints = constraints_of(tune.constraints, tune.search_alg)
    takes_them = constraints and getattr(chosen, "takes_several_objectives", False)
    spec = {"constraints": constraints} if takes_them else {}
    if not offer_search_properties(chosen, metric, mode, **spec):
        raise ValueError(
            f"{type(chosen).__name__} already has its own metric or mode: give them once, either to the "
            "scheduler or to TuneConfig"
        )
    return chosen  # type: ignore[no-any-return]  # the user's, with Ray's hooks


def stopper_of(tune: TuneConfig, run: RunConfig) -> Stopper | None:
    if run.stop is None and tune.time_budget_s is None:
        return None
    from muster.tune.stopper.function_stopper import resolve_stop

    return resolve_stop(run.stop, tune.time_budget_s).stopper
