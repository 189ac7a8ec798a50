"""Launch: one experiment put together and run on this machine. `Tuner.fit` and `tune.run` end up here.

The composition root of tuning: it makes the engine, the store, the log writer, the reporter and the plug-ins,
joins them, and takes them down in order whatever happens. It decides nothing about trials.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine, LocalOptions
from muster.engines.local.surroundings import environment
from muster.errors import TuneError
from muster.stores.checkpoints import CheckpointStore, delete_directory
from muster.stores.deletions import DeletionQueue
from muster.stores.lock import holder_of
from muster.stores.trial_reading import STORE_NAME
from muster.stores.trials import SqliteTrialStore
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef
from muster.trials.plugins import Plugins
from muster.trials.restore import MakeTrial
from muster.trials.template import TrialTemplate
from muster.tune.assembly import (
    scheduler_of,
    search_of,
    settings_of,
    stopper_of,
    template_of,
    thread_limit,
)
from muster.tune.callback import CallbackList
from muster.tune.config import ResumeConfig, RunConfig, TuneConfig, log_files, seconds
from muster.tune.execution import Execution
from muster.tune.interrupts import gentle_stop
from muster.tune.logger.defaults import default_callbacks
from muster.tune.logger.writer import LogWriter
from muster.tune.naming import directory_namer
from muster.tune.patient_store import PatientStore
from muster.tune.place import Place
from muster.tune.reporting import RunInfo, reporter_for
from muster.tune.resumption import Resumption
from muster.tune.saved_tuner import SavedTuner
from muster.tune.settings_record import settings_record
from muster.tune.sound_start import SoundStart
from muster.tune.upkeep import Upkeep
from muster.tune.uploading import Uploads

logger = logging.getLogger(__name__)

_GONE_VARIABLES = ("TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR")


@dataclass(kw_only=True)
class Launch:
    """Everything one experiment is run with. `run` has a name; `resume` None: a new experiment."""

    trainable: Any
    trainable_name: str
    code: bytes  # the trainable, pickled
    param_space: dict[str, Any]
    tune: TuneConfig
    run: RunConfig
    resume: ResumeConfig | None = None
    overrides: dict[str, Any] = field(default_factory=dict)  # of TrialTemplate: resources, restore_path, ...
    has_new_space: bool = False  # a restore was given a space: its objects go to old trials too
    must_be_resumable: bool = True  # else a part that cannot be pickled is only warned about
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        self.place = place_of(self.run)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What became of it."""

    state: ExperimentState
    place: Place
    is_interrupted: bool
    is_uploaded: bool = True  # False: the storage lacks something that `place.directory` has


def place_of(run: RunConfig) -> Place:
    return Place(str(run.storage_path), str(run.name), run.storage_filesystem)


def launch(asked: Launch) -> Launched:
    """Run it to its end, or until Ctrl-C; failed trials are results too."""
    if asked.run.engine == "ray":
        raise TuneError("RunConfig(engine='ray'): not built yet. Leave it out to run on this machine")
    _refuse_gone_variables()
    asked.place.prepare()
    if asked.resume is None:
        set_old_store_aside(asked.place.directory)
        _write_down(asked)
    with ExitStack() as stack:
        return _Launch(asked, stack).run()


def _refuse_gone_variables() -> None:
    """Who sets one expects the results there: better no run than one whose results are elsewhere."""
    for name in _GONE_VARIABLES:
        if environment().get(name):
            raise DeprecationWarning(
                f"the environment variable {name} is not used any more: unset it and use storage_path"
            )


class _Launch:
    """The parts of one run, made in the order in which they need each other."""

    def __init__(self, asked: Launch, stack: ExitStack) -> None:
        self._asked, self._stack = asked, stack
        self._clock = SystemClock()
        named = {**asked.overrides, "trainable_name": asked.trainable_name}  # it may be registered by another
        self._template = template_of(asked.trainable, asked.param_space, asked.tune, asked.run, named)
        self._search, ahead = search_of(asked.tune, self._template)
        self._scheduler = scheduler_of(asked.tune)
        self._settings = settings_of(asked.tune, asked.run, str(asked.place.directory), ahead, environment())
        self._reporter = reporter_for(asked.run, clock=self._clock, environment=environment())
        stack.callback(self._reporter.abort)
        # The engine before anything with a thread or a lock: its first process is a copy of ours. What trials
        # print goes where the reporter wants it.
        with self._reporter.catching():
            self._engine = LocalEngine(
                clock=self._clock,
                trainables={asked.trainable_name: asked.code},
                options=LocalOptions(env=thread_limit(self._template.resources, environment())),
            )
        stack.callback(self._engine.close)
        self._writer = LogWriter()
        stack.callback(self._writer.close)
        self._uploads = self._start_uploads()
        self._hooks = self._callbacks()
        self.state = self._make_state()

    def run(self) -> Launched:
        asked, state = self._asked, self.state
        store = self._stack.enter_context(SqliteTrialStore(asked.place.directory, trust_pickles=True))
        store.save_settings(settings_record(asked.trainable_name, asked.tune, state))
        wanted = self._stack.enter_context(gentle_stop(environment()))
        patient = PatientStore(store, self._clock, self._reporter.note, wanted.is_set, asked.place.directory)
        self._stack.callback(patient.close)
        trash = DeletionQueue(self._delete, store.sync, clock=self._clock)
        execution = Execution(
            state,
            engine=SoundStart(self._engine, CheckpointStore(asked.place.local), state.roster.trials.get),
            store=patient,
            clock=self._clock,
            discard=_into(trash),
            logs=self._writer,
        )
        if asked.resume is not None:
            resumption = Resumption(asked.resume, asked.place, self._clock)
            resumption.revive(execution, state, store.load(), self._make_trial())
            resumption.repair_logs(self._writer, self._hooks)
        self._announce()
        execution.run(wanted.is_set)
        is_interrupted = wanted.is_set() and not state.is_finished
        if is_interrupted:
            self._reporter.note("Stopping: everything is saved, trials end. Ctrl-C again stops at once.")
        trash.close()
        return self._finish(is_interrupted)

    def _finish(self, is_interrupted: bool) -> Launched:
        """Processes end, files are completed and, where that is wanted, copied; then it is told."""
        state, trials = self.state, self.state.roster.order
        state.hooks.fire("on_experiment_end", iteration=state.iteration, trials=trials)
        self._engine.close()
        self._writer.close()
        is_uploaded = self._uploads is None or self._uploads.finish(self._reporter.note)
        self._reporter.end(interrupted=is_interrupted, trials=trials)
        return Launched(
            state=state,
            place=self._asked.place,
            is_interrupted=is_interrupted,
            is_uploaded=is_uploaded,
        )

    def _start_uploads(self) -> Uploads | None:
        asked = self._asked
        if not asked.place.is_remote or asked.run.sync_config is None:
            return None
        return Uploads(asked.place, asked.run.sync_config, log_files(asked.run.log_to_file), self._clock)

    def _callbacks(self) -> CallbackList:
        chosen = default_callbacks(self._asked.run.callbacks, environment(), self._reporter)
        sources: list[Any] = [self._writer]
        if self._uploads is not None:
            chosen.append(self._uploads)
            sources.append(self._uploads)
        if hasattr(self._scheduler, "take_log_rows"):
            from muster.tune.schedulers.pbt_log import PolicyLog

            directory, is_new = str(self._asked.place.directory), self._asked.resume is None
            chosen.append(PolicyLog(self._scheduler, directory, is_new=is_new))
        chosen.append(Upkeep(sources, self._reporter, self._clock))
        return CallbackList(chosen, writer=self._writer, experiment_dir=str(self._asked.place.directory))

    def _make_state(self) -> ExperimentState:
        asked = self._asked
        plugins = Plugins(
            search=self._search,
            scheduler=self._scheduler,
            stopper=stopper_of(asked.tune, asked.run),
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
        from muster.tune.search.renewal import renewing

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

    def _delete(self, ref: CheckpointRef) -> None:
        delete_directory(Path(ref.path))
        if self._uploads is not None:
            self._uploads.discard(ref)


def _info(
    asked: Launch, state: ExperimentState, template: TrialTemplate, total: int | None, budget: float | None
) -> RunInfo:
    from muster.tune.search.unresolved import searched_keys

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
        capacity=roster.capacity.to_floats(),
        used=lambda: state.roster.used.to_floats(),  # noqa: PLW0108 - `used` is another object each time
        parameters=searched_keys(template.param_space),
        is_resumed=asked.resume is not None,
        scheduler_debug=getattr(scheduler, "debug_string", str),
        time_budget_s=budget,
    )


def set_old_store_aside(directory: Path) -> None:
    """A new experiment under an old name: the old one's record is kept beside it, its trials stay on disk."""
    store = directory / STORE_NAME
    if not store.exists() or holder_of(store) is not None:
        return  # in use: opening it says by whom
    with SqliteTrialStore(directory):
        pass  # what a crash left in its log goes into the file
    kept = next(
        name for number in count(1) if not (name := directory / f"{STORE_NAME}.{number}.old").exists()
    )
    store.rename(kept)
    logger.warning(
        "%s already held an experiment: a new one begins. The old record is %s; to go on with an experiment "
        "use Tuner.restore",
        directory,
        kept.name,
    )


def _write_down(asked: Launch) -> None:
    """What `restore` needs, with the plug-ins as they are before the first trial."""
    saved = SavedTuner(
        trainable_name=asked.trainable_name,
        param_space=asked.param_space,
        tune_config=asked.tune,
        run_config=asked.run,
        overrides=asked.overrides,
    )
    try:
        saved.write(asked.place.directory, asked.code)
    except TuneError as error:
        if asked.must_be_resumable:
            raise
        logger.warning("%s", error)


def _into(trash: DeletionQueue) -> Callable[[Sequence[CheckpointRef]], None]:
    """The core gives up only what is safe to delete, so nothing more has to be waited for."""

    def discard(refs: Sequence[CheckpointRef]) -> None:
        trash.discard(refs, after=0)
        trash.settle(0)

    return discard
