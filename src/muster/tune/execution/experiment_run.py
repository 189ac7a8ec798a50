"""Run an experiment around an engine that is already starting; `launch` imports this lazily on purpose.

The store, the log writer and the plug-ins are made here, joined, and closed in order whatever happens.
Nothing is decided about trials here.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.base.clock import Clock, SteadyClock
from muster.base.text import counted, money
from muster.errors import LedgerLocked, TuneError
from muster.host.atomic_write import atomic_write
from muster.host.file_lock import holder_of
from muster.host.machine import environment, program
from muster.host.running_experiments import RunningExperiment, promised_twice, recorded
from muster.stores.checkpoints import DeletionQueue
from muster.stores.experiment.reader import STORE_NAME, open_trials
from muster.stores.experiment.store import FullDiskStore, SqliteTrialStore
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Plugins
from muster.trials.ports import Engine
from muster.trials.restore import MakeTrial
from muster.trials.template import Limits, TrialTemplate
from muster.tune.callback import CallbackList
from muster.tune.config import seconds
from muster.tune.constants import number_in
from muster.tune.execution.assemble import (
    PENDING_AHEAD,
    checked_buffers,
    limit_in,
    pending_ahead,
    scheduler_of,
    search_of,
    settings_of,
    stopper_of,
    template_of,
)
from muster.tune.execution.between_steps import (
    BackgroundProblems,
    CheckedCheckpoints,
    CriteriaCheck,
    ExperimentSaver,
    SlowCalls,
    delete_checkpoint,
)
from muster.tune.execution.launch import CHAIN, ExperimentOutcome, ExperimentSpec
from muster.tune.execution.paths import ExperimentPaths, directory_namer
from muster.tune.execution.restore import (
    TRAINABLE_FILE,
    Restorer,
    check_parameters,
    drop_old_parameters,
    keep_parameters,
    write_spec,
)
from muster.tune.execution.user_requests import UserRequests
from muster.tune.logger.files.writer import LogWriter
from muster.tune.logger.logger import attach_loggers, default_callbacks
from muster.tune.pareto import several_objectives
from muster.tune.plugin_state import settings_record
from muster.tune.reporting import RunInfo
from muster.tune.reporting.reporter import LiveAmounts
from muster.tune.tune_config import constraints_of, goal_of

if TYPE_CHECKING:
    from muster.tune.execution.upload import Uploads
    from muster.tune.reporting.reporter import Reporter
    from muster.tune.stopper.stopper import Stopper

logger = logging.getLogger(__name__)

NO_HANDLER = "TUNE_DISABLE_SIGINT_HANDLER"


@contextmanager
def gentle_stop(environment: Mapping[str, str]) -> Iterator[threading.Event]:
    """Yield an event that is set when the user asks for the end; only the main thread receives signals."""
    wanted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    signals = [] if environment.get(NO_HANDLER, "0") not in ("", "0") else [signal.SIGINT]
    if hasattr(signal, "SIGUSR1"):
        signals.append(signal.SIGUSR1)
    if environment.get(CHAIN):
        signals.append(signal.SIGTERM)  # `scancel` of a driver that runs in a job: its pilots leave first
    before = {number: signal.getsignal(number) for number in signals}

    def note(number: int, frame: FrameType | None) -> None:
        wanted.set()
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    for number in signals:
        signal.signal(number, note)
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


MANY_OBJECTS = 10_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Have Python look for cyclic garbage rarely: results are many small dicts without cycles.

    Looking for some among them took a tenth of the control thread's time. A larger threshold of the user's,
    or 0, is kept.
    """
    before = gc.get_threshold()
    if 0 < before[0] < MANY_OBJECTS:
        gc.set_threshold(MANY_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run_experiment(
    spec: ExperimentSpec, stack: ExitStack, reporter: Reporter, engine: Engine
) -> ExperimentOutcome:
    """Run an experiment to its end, or until Ctrl-C; `stack` closes what is opened here."""
    _prepare(spec, engine)
    run = _assemble(spec, stack, reporter, engine)
    state, clock, directory = run.state, run.clock, spec.place.directory
    store = stack.enter_context(_open_store(spec))
    _save_settings(spec, state, store)
    stop = stack.enter_context(gentle_stop(environment()))
    stack.enter_context(rare_collections())
    patient = FullDiskStore(store, clock, reporter.note, stop.is_set, directory)
    stack.callback(patient.close)
    deletions = DeletionQueue(partial(delete_checkpoint, uploads=run.uploads), store.sync, clock=clock)
    number = partial(number_in, environment(), float)
    saver = ExperimentSaver(state, store=patient, clock=clock, logs=run.writer)
    saver.min_period_s = number("TUNE_GLOBAL_CHECKPOINT_S", saver.min_period_s)
    controller = TrialController(
        state,
        engine=engine,
        store=patient,
        clock=clock,
        saver=saver,
        files=CheckedCheckpoints(engine, spec.place.checkpoints(), state.index.trials.get, deletions),
    )
    if spec.resume is not None:
        _restore(spec, run, Restorer(spec.resume, spec.place, clock), saver, store)
    _announce(spec, run, reporter)
    stack.callback(SlowCalls(state.plugins, run.hooks.callbacks, number("TUNE_WARN_THRESHOLD_S")).close)
    if not engine.traits().is_shared:
        _warn_of_others(spec, run, stack, reporter)
    save = partial(_save_settings, spec, state, store)
    requests = UserRequests(spec, state, clock, stop=stop, note=reporter.note, save=save)
    with _ending_hooks(state, lambda error: save(raised=error)):
        controller.run(_between_steps(state, engine, clock, requests))
    is_interrupted = stop.is_set() and not state.is_finished
    if end := _end_of(state):
        save(**end)
    if is_interrupted:
        reporter.note("Stopping: everything is saved, trials end. Ctrl-C again stops at once.")
    deletions.close()
    state.plugins.fire("on_experiment_end")
    engine.close()
    run.writer.close()
    is_uploaded = run.uploads is None or run.uploads.finish(reporter.note)
    if is_uploaded:
        drop_old_parameters(spec.references, spec.place)
    reporter.end(interrupted=is_interrupted or bool(state.ended_by), trials=state.index.order)
    return ExperimentOutcome(
        state=state, place=spec.place, is_interrupted=is_interrupted, is_uploaded=is_uploaded
    )


def _restore(
    spec: ExperimentSpec, run: _Assembled, restorer: Restorer, saver: ExperimentSaver, store: SqliteTrialStore
) -> None:
    """Bring the trials, the plug-ins and the log files to where the last run had them."""
    atomic_write(spec.place.directory / TRAINABLE_FILE, spec.code)  # the next resume runs what this one runs
    restorer.restore(saver, run.state, store.load(), _make_trial(spec, run.template))
    restorer.repair_logs(run.writer, run.hooks)
    if run.uploads is not None:
        run.uploads.note(run.state.index.order)


def _open_store(spec: ExperimentSpec) -> SqliteTrialStore:
    store = SqliteTrialStore(spec.place.directory, trust_pickles=True)
    if spec.resume is None and store.appended:  # since the old one was set aside
        store.close()
        raise LedgerLocked(f"{store.path}: another experiment began here", fix="choose another name")
    return store


def _save_settings(
    spec: ExperimentSpec, state: ExperimentState, store: SqliteTrialStore, **end: object
) -> None:
    record = settings_record(spec.trainable_name, spec.tune, state, spec.command)
    store.save_settings({**record, **end})


def _end_of(state: ExperimentState) -> dict[str, Any]:
    """Return what the settings keep of an end that is not the ordinary one."""
    if state.ended_by:
        return {"ended_by": state.ended_by, "cost_usd": state.spend.spent(state.spend.seen_at)}
    failed = state.failed_fast
    return {"raised": f"trial {failed.trial_id} failed, and fail_fast is set"} if failed else {}


@contextmanager
def _ending_hooks(state: ExperimentState, record: Callable[[str], None]) -> Iterator[None]:
    """Record an error that ends the experiment, and call `on_experiment_end` then too."""
    try:
        yield
    except Exception as error:
        with suppress(Exception):  # the store may be what failed
            record(f"{type(error).__name__}: {error}"[:2000])
        with suppress(TuneError):  # the first error is the one to show
            state.plugins.fire("on_experiment_end")
        raise


def _between_steps(
    state: ExperimentState, engine: Engine, clock: Clock, requests: UserRequests
) -> Callable[[], bool]:
    """Return what the controller asks between steps: whether to stop. On a cluster, forecasts go out."""
    if not engine.traits().is_shared:
        return requests.apply
    from muster.tune.execution.forecasts import ForecastPublisher

    publisher = ForecastPublisher(state, engine.publish, clock)

    def should_stop() -> bool:
        publisher.publish_if_due()
        return requests.apply()

    return should_stop


def _prepare(spec: ExperimentSpec, engine: Engine) -> None:
    """Make the directory; TuneError when it cannot be written, or the experiment could not be resumed."""
    if spec.tune.cost_budget is not None and not engine.traits().has_prices:
        raise TuneError(
            f"TuneConfig(cost_budget={spec.tune.cost_budget:g}) cannot be held, because nothing says what "
            "the machines cost: add RunConfig(price_per_hour=...), or prices to the cluster file"
        )
    check_parameters(spec.references, spec.trainable_name, spec.place)
    if spec.resume is None:
        set_old_experiment_aside(spec.place)
    spec.place.prepare()
    keep_parameters(spec.references, spec.place, spec.clock)
    if spec.resume is None and holder_of(spec.place.directory / STORE_NAME) is None:  # else opening refuses
        try:
            write_spec(spec)
        except TuneError as error:
            if spec.must_be_resumable:
                raise
            logger.warning("%s", error)


def set_old_experiment_aside(place: ExperimentPaths) -> None:
    """Rename the directory of an interrupted experiment of the same name, which can then be resumed.

    Of a finished or remote one only the store is renamed; the files of its trials stay.
    """
    directory = place.directory
    store = directory / STORE_NAME
    if not store.exists():
        return
    with SqliteTrialStore(directory):  # LedgerLocked while it is in use
        pass  # entries that a crash left in the log are written to the file
    with open_trials(directory) as reader:
        unfinished = sum(trial.status not in ("TERMINATED", "ERROR") for trial in reader.trials())
    target = directory if unfinished and not place.is_remote and not directory.is_mount() else store
    aside = next(name for number in count(1) if not (name := Path(f"{target}.{number}.old")).exists())
    target.rename(aside)
    again = f"; to resume it: {program()} tune resume {quote(str(aside))}" if target is directory else ""
    left = f" with {counted(unfinished, 'unfinished trial')}" * bool(unfinished)
    logger.warning(
        "%s already held an experiment%s; a new one starts. The old one is now %s%s",
        *(directory, left, aside, again),
    )


class _Assembled(NamedTuple):
    state: ExperimentState
    template: TrialTemplate
    hooks: CallbackList
    writer: LogWriter
    uploads: Uploads | None
    clock: SteadyClock


def _assemble(spec: ExperimentSpec, stack: ExitStack, reporter: Reporter, engine: Engine) -> _Assembled:
    """Make the parts of one run, in the order in which they need each other."""
    clock = spec.clock
    named = {**spec.overrides, "trainable_name": spec.trainable_name}  # it may be registered by another
    template = template_of(spec.trainable, spec.param_space, spec.tune, spec.run, named)
    cpus = engine.capacity().get("CPU", 0.0)
    search, ahead = search_of(spec.tune, template, cpus)
    scheduler = scheduler_of(spec.tune)
    settings = settings_of(spec.tune, spec.run, str(spec.place.directory), ahead, environment())
    settings = checked_buffers(settings, scheduler, template.policies.checkpoint_policy)
    if settings.max_pending == pending_ahead(cpus) > PENDING_AHEAD:
        advice = "set TUNE_MAX_PENDING_TRIALS_PG to a lower number if many trials are slow to schedule"
        logger.warning("up to %d trials wait, as there are %g CPUs; %s", settings.max_pending, cpus, advice)
    writer = LogWriter()
    stack.callback(writer.close)
    spec.place.flush_logs = writer.flush
    uploads = spec.uploads()
    hooks = _callbacks(spec, reporter, scheduler, writer, uploads, clock)
    stopper = stopper_of(spec.tune, spec.run)
    state = ExperimentState(
        settings,
        Plugins(search=search, scheduler=scheduler, stopper=stopper, hooks=hooks),
        capacity=engine.capacity(),
        directory_for=directory_namer(spec.place.directory, clock, settings.max_len_identifier),
        place=spec.place,
    )
    if stopper is not None or settings.limits.deadline is not None:
        engine.ends_in(lambda: _left_s(stopper, state.limits, clock))
    return _Assembled(state, template, hooks, writer, uploads, clock)


def _left_s(stopper: Stopper | None, limits: Limits, clock: Clock) -> float:
    """Return how long trials may still run: no machine is asked for that comes later."""
    left_s = inf if stopper is None else stopper._left_s()
    return left_s if limits.deadline is None else min(left_s, limits.deadline - clock.now())


def _callbacks(
    spec: ExperimentSpec,
    reporter: Reporter,
    scheduler: object,
    writer: LogWriter,
    uploads: Uploads | None,
    clock: Clock,
) -> CallbackList:
    kept = [] if uploads is None else [uploads]
    chosen = [*default_callbacks(spec.run.callbacks, environment(), reporter), *kept]
    directory = str(spec.place.directory)
    if hasattr(scheduler, "take_log_rows"):
        from muster.tune.schedulers.pbt_policy import PolicyLog

        chosen.append(PolicyLog(scheduler, directory, is_new=spec.resume is None))
    chosen.append(BackgroundProblems([writer, *kept], reporter, clock))
    chosen.append(CriteriaCheck(spec.run.stop, scheduler, reporter))
    if spec.run.page or environment().get("MUSTER_PAGE", "0") not in ("", "0"):
        from muster.tune.execution.page_process import PageProcess

        chosen.append(PageProcess(directory, reporter))
    attach_loggers(chosen, writer, directory)
    return CallbackList(chosen)


def _make_trial(spec: ExperimentSpec, template: TrialTemplate) -> MakeTrial:
    if not spec.has_new_space:
        return template.make
    from muster.tune.search.placeholders import renewing

    return renewing(template.make, spec.param_space)


def _announce(spec: ExperimentSpec, run: _Assembled, reporter: Reporter) -> None:
    budget = seconds(spec.tune.time_budget_s, "TuneConfig(time_budget_s=...)")
    total = getattr(run.state.plugins.search, "total_samples", None)
    reporter.begin(_info(spec, run, total, budget))
    run.hooks.setup(
        stop=spec.run.stop or {},
        num_samples=spec.tune.num_samples,
        total_num_samples=total,
        time_budget_s=budget,
    )


def _warn_of_others(spec: ExperimentSpec, run: _Assembled, stack: ExitStack, reporter: Reporter) -> None:
    """Warn once when another experiment on this machine may use the same CPUs or GPUs."""
    capacity, resources = run.state.index.capacity.to_floats(), run.template.resources
    each = {"CPU": 1.0} if resources is None or callable(resources) else resources.required_resources
    search: Any = run.state.plugins.search
    total = getattr(search, "total_samples", 0) if run.template.num_samples != -1 else 0
    limits = (getattr(search, "max_concurrent", 0), limit_in(search), total)
    most = min((limit for limit in limits if limit), default=inf)
    promised = {name: min(capacity.get(name, 0.0), count * most) for name, count in each.items() if count}
    own = RunningExperiment(directory=spec.place.address, promised=promised)
    home = environment().get("MUSTER_HOME") or "~/.muster"
    others = stack.enter_context(recorded(Path(home, "running").expanduser(), own))
    if warning := promised_twice(own, others, capacity, each):
        reporter.note(warning)


def _info(spec: ExperimentSpec, run: _Assembled, total: int | None, budget: float | None) -> RunInfo:
    from muster.tune.search.variant_generator import searched_keys

    state, template = run.state, run.template
    settings, index = state.settings, state.index
    search: Any = state.plugins.search
    scheduler: Any = state.plugins.scheduler
    return RunInfo(
        name=settings.name,
        directory=spec.place.address,
        metric=settings.metric,
        mode=settings.mode,
        objectives=several_objectives(goal_of(spec.tune.metric, spec.tune.mode, search)),
        constraints=constraints_of(spec.tune.constraints, search),
        searcher=type(getattr(search, "searcher", search)).__name__,
        scheduler=type(scheduler).__name__,
        total=total if total and template.num_samples != -1 else None,
        capacity=LiveAmounts(lambda: index.capacity.to_floats()),  # noqa: PLW0108 - another object at times
        used=lambda: state.index.used.to_floats(),  # noqa: PLW0108 - `used` is another object each time
        starting=lambda: len(index.starting),
        parameters=searched_keys(template.param_space),
        is_resumed=spec.resume is not None,
        scheduler_debug=getattr(scheduler, "debug_string", str),
        time_budget_s=budget,
        program=program(),
        cost=lambda: _cost_text(state, spec.clock),
        ended_by=lambda: state.ended_by,
    )


def _cost_text(state: ExperimentState, clock: Clock) -> str:
    """Return `cost $1.20 of $5.00`; "" when nothing is known of a price."""
    if not state.spend.is_used:
        return ""
    budget = state.settings.limits.cost_budget
    of = "" if budget is None else f" of {money(budget)}"
    return f"cost {money(round(state.spend.spent(clock.now()), 4))}{of}"
