"""ExperimentRun: an experiment put together around an engine that is already starting. Made by `launch`.

It makes the store, the log writer and the plug-ins, joins them, and takes them down in order whatever
happens. It decides nothing about trials.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from muster.base.clock import Clock, SystemClock
from muster.host.machine import environment
from muster.stores.checkpoints import DeletionQueue
from muster.stores.experiment.full_disk import FullDiskStore
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Plugins
from muster.trials.restore import MakeTrial
from muster.trials.template import TrialTemplate
from muster.tune.callback import Callback, CallbackList
from muster.tune.config import seconds
from muster.tune.execution.assemble import (
    scheduler_of,
    search_of,
    settings_of,
    stopper_of,
    template_of,
)
from muster.tune.execution.checkpoint_check import CheckpointCheckingEngine
from muster.tune.execution.launch import ExperimentOutcome, ExperimentSpec
from muster.tune.execution.loop import Execution
from muster.tune.execution.paths import directory_namer
from muster.tune.execution.restore import Restorer
from muster.tune.execution.upload import delete_checkpoint, uploads_for
from muster.tune.logger.defaults import attach_loggers, default_callbacks
from muster.tune.logger.files.writer import LogWriter
from muster.tune.plugin_state import settings_record
from muster.tune.reporting import RunInfo
from muster.tune.reporting.snapshot import LiveAmounts

if TYPE_CHECKING:
    from muster.engines.local.engine import LocalEngine
    from muster.engines.ray.engine import RayEngine
    from muster.trials.model import Trial
    from muster.tune.reporting.reporter import Reporter


NO_HANDLER = "TUNE_DISABLE_SIGINT_HANDLER"


@contextmanager
def gentle_stop(environment: Mapping[str, str]) -> Iterator[threading.Event]:
    """An event that is set when somebody wants the experiment to end. Only the main thread can be told."""
    wanted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    signals = [] if environment.get(NO_HANDLER, "0") not in ("", "0") else [signal.SIGINT]
    if hasattr(signal, "SIGUSR1"):
        signals.append(signal.SIGUSR1)
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


EVERY_S = 5.0


class HasProblems(Protocol):
    """Works in the background and remembers what failed."""

    def take_problems(self) -> tuple[str, ...]: ...


class BackgroundProblems(Callback):
    """Asks the background workers for their problems; a problem is shown once, then every ten minutes."""

    AGAIN_S = 600.0

    def __init__(self, sources: Sequence[HasProblems], reporter: Reporter, clock: Clock) -> None:
        self._sources, self._reporter, self._clock = tuple(sources), reporter, clock
        self._due_at = clock.monotonic() + EVERY_S
        self._shown: dict[str, float] = {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        now = self._clock.monotonic()
        if now >= self._due_at:
            self._due_at = now + EVERY_S
            self._tell(now)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        self._tell(self._clock.monotonic())

    def _tell(self, now: float) -> None:
        for source in self._sources:
            for problem in source.take_problems():
                key = problem.partition(" (failure")[0]
                if now - self._shown.get(key, float("-inf")) >= self.AGAIN_S:
                    self._shown[key] = now
                    self._reporter.note(f"warning: {problem}")


class ExperimentRun:
    """The parts of one run, made in the order in which they need each other."""

    def __init__(
        self, asked: ExperimentSpec, stack: ExitStack, reporter: Reporter, engine: LocalEngine | RayEngine
    ) -> None:
        self._asked, self._stack = asked, stack
        self._reporter, self._engine = reporter, engine
        self._clock = SystemClock()
        named = {**asked.overrides, "trainable_name": asked.trainable_name}  # it may be registered by another
        self._template = template_of(asked.trainable, asked.param_space, asked.tune, asked.run, named)
        self._search, ahead = search_of(asked.tune, self._template)
        self._scheduler = scheduler_of(asked.tune)
        self._settings = settings_of(asked.tune, asked.run, str(asked.place.directory), ahead, environment())
        self._writer = LogWriter()
        stack.callback(self._writer.close)
        self._uploads = uploads_for(self._asked.place, self._asked.run, self._clock)
        self._hooks = self._callbacks()
        self._stopper = stopper_of(asked.tune, asked.run)
        self.state = self._make_state()
        if self._stopper is not None:
            engine.ends_in(self._stopper._left_s)

    def run(self) -> ExperimentOutcome:
        asked, state = self._asked, self.state
        store = self._stack.enter_context(SqliteTrialStore(asked.place.directory, trust_pickles=True))
        store.save_settings(settings_record(asked.trainable_name, asked.tune, state))
        wanted = self._stack.enter_context(gentle_stop(environment()))
        patient = FullDiskStore(store, self._clock, self._reporter.note, wanted.is_set, asked.place.directory)
        self._stack.callback(patient.close)
        trash = DeletionQueue(
            partial(delete_checkpoint, uploads=self._uploads), store.sync, clock=self._clock
        )
        execution = Execution(
            state,
            engine=CheckpointCheckingEngine(self._engine, asked.place.checkpoints(), state.roster.trials.get),
            store=patient,
            clock=self._clock,
            discard=trash.discard_now,
            logs=self._writer,
        )
        if asked.resume is not None:
            resumption = Restorer(asked.resume, asked.place, self._clock)
            resumption.revive(execution, state, store.load(), self._make_trial())
            resumption.repair_logs(self._writer, self._hooks)
            if self._uploads is not None:
                self._uploads.note(state.roster.order)
        self._announce()
        execution.run(wanted.is_set)
        is_interrupted = wanted.is_set() and not state.is_finished
        if is_interrupted:
            self._reporter.note("Stopping: everything is saved, trials end. Ctrl-C again stops at once.")
        trash.close()
        return self._finish(is_interrupted)

    def _finish(self, is_interrupted: bool) -> ExperimentOutcome:
        """Processes end, files are completed and, where that is wanted, copied; then it is told."""
        state, trials = self.state, self.state.roster.order
        state.hooks.fire("on_experiment_end", iteration=state.iteration, trials=trials)
        self._engine.close()
        self._writer.close()
        is_uploaded = self._uploads is None or self._uploads.finish(self._reporter.note)
        self._reporter.end(interrupted=is_interrupted, trials=trials)
        return ExperimentOutcome(
            state=state,
            place=self._asked.place,
            is_interrupted=is_interrupted,
            is_uploaded=is_uploaded,
        )

    def _callbacks(self) -> CallbackList:
        chosen = default_callbacks(self._asked.run.callbacks, environment(), self._reporter)
        sources: list[Any] = [self._writer]
        if self._uploads is not None:
            chosen.append(self._uploads)
            sources.append(self._uploads)
        if hasattr(self._scheduler, "take_log_rows"):
            from muster.tune.schedulers.pbt_log import PolicyLog

            directory, is_new = str(self._asked.place.directory), self._asked.resume is None
            scheduler: Any = self._scheduler
            chosen.append(PolicyLog(scheduler, directory, is_new=is_new))
        chosen.append(BackgroundProblems(sources, self._reporter, self._clock))
        place = self._asked.place
        attach_loggers(chosen, self._writer, str(place.directory))
        return CallbackList(chosen, find=place.checkpoint)

    def _make_state(self) -> ExperimentState:
        asked = self._asked
        plugins = Plugins(
            search=self._search,
            scheduler=self._scheduler,
            stopper=self._stopper,
            hooks=self._hooks,
        )
        return ExperimentState(
            self._settings,
            plugins,
            capacity=self._engine.capacity(),
            directory_for=directory_namer(asked.place.directory, self._clock),
        )

    def _make_trial(self) -> MakeTrial:
        if not self._asked.has_new_space:
            return self._template.make
        from muster.tune.search.placeholders import renewing

        return renewing(self._template.make, self._asked.param_space)

    def _announce(self) -> None:
        asked = self._asked
        budget = seconds(asked.tune.time_budget_s, "TuneConfig(time_budget_s=...)")
        total = getattr(self._search, "total_samples", None)
        self._reporter.begin(_info(asked, self.state, self._template, total, budget))
        self._hooks.setup(
            stop=asked.run.stop,
            num_samples=asked.tune.num_samples,
            total_num_samples=total,
            time_budget_s=budget,
        )


def _info(
    asked: ExperimentSpec,
    state: ExperimentState,
    template: TrialTemplate,
    total: int | None,
    budget: float | None,
) -> RunInfo:
    from muster.tune.search.variant_generator import searched_keys

    settings, roster = state.settings, state.roster
    search: Any = state.search
    scheduler: Any = state.scheduler
    return RunInfo(
        name=settings.name,
        directory=asked.place.address,
        metric=settings.metric,
        mode=settings.mode,
        searcher=type(getattr(search, "searcher", search)).__name__,
        scheduler=type(scheduler).__name__,
        total=total if total and template.num_samples != -1 else None,
        capacity=LiveAmounts(lambda: roster.capacity.to_floats()),  # noqa: PLW0108 - another object at times
        used=lambda: state.roster.used.to_floats(),  # noqa: PLW0108 - `used` is another object each time
        parameters=searched_keys(template.param_space),
        is_resumed=asked.resume is not None,
        scheduler_debug=getattr(scheduler, "debug_string", str),
        time_budget_s=budget,
    )
