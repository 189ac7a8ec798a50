"""AskTell: the search for people with their own loop. They ask for a configuration and tell what came of it.

The same experiment as Tuner.fit runs, with the same store, schedulers, loggers and restore; only that its
trials run wherever the caller runs them. Tuner.ask and Tuner.tell delegate to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.resources import Resources
from muster.engines.local.surroundings import environment
from muster.engines.own_loop import OwnLoopEngine
from muster.errors import TuneError
from muster.session.checkpoint import Checkpoint
from muster.stores.checkpoints import delete_directory
from muster.stores.deletions import DeletionQueue
from muster.stores.trial_reading import STORE_NAME
from muster.stores.trials import SqliteTrialStore
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import CONTINUE, PAUSE, STOP, Plugins
from muster.trials.states import FINISHED, TrialState
from muster.trials.template import TrialTemplate
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.assembly import scheduler_of, search_of, settings_of, stopper_of, template_of
from muster.tune.callback import CallbackList
from muster.tune.config import RunConfig, TuneConfig
from muster.tune.execution import Execution
from muster.tune.logger.catching_up import Witness
from muster.tune.logger.defaults import default_callbacks
from muster.tune.logger.writer import LogWriter
from muster.tune.naming import dated_name, directory_namer
from muster.tune.result_grid import ResultGrid

TUNER_FILE = "tuner.pkl"
DEFAULT_NAME = "ask"


@dataclass(frozen=True)
class AskedTrial:
    """A configuration to try.

    Attributes:
        trial_id: What `tell` wants to hear; or give it this object.
        config: The configuration, yours to change.
        checkpoint: Where to go on from, when the trial was paused or interrupted and had told one.
        training_iteration: How many results stand so far: those up to the checkpoint.
        directory: The trial's own directory, for files of yours.
    """

    trial_id: str
    config: dict[str, Any]
    checkpoint: Checkpoint | None = None
    training_iteration: int = 0
    directory: str = ""


class AskTell:
    """Suggests configurations and judges what is told of them; you run them.

    Args:
        param_space: The search space, as for Tuner.
        tune_config: What to optimise and how to search.
        run_config: Where to write, when to stop, what to keep.
        name: What trials are called, in place of a trainable's name.

    Use it from one thread; tell the results of parallel workers there. Every result is on disk when `tell`
    returns: after a crash `AskTell.restore(path)` stands where it stood.

    Example:
        >>> import tempfile
        >>> from muster import tune
        >>> space, goal = {"x": tune.grid_search([1, 2, 3])}, tune.TuneConfig(metric="y", mode="max")
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = tune.RunConfig(name="by_hand", storage_path=folder.name)
        >>> with AskTell(space, tune_config=goal, run_config=run) as search:
        ...     while (trial := search.ask()) is not None:
        ...         _ = search.tell(trial, {"y": -((trial.config["x"] - 2) ** 2)}, done=True)
        ...     search.results().get_best_result().config
        {'x': 2}
        >>> folder.cleanup()
    """

    _is_open: bool

    def __init__(
        self,
        param_space: Mapping[str, Any] | None = None,
        *,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        name: str = DEFAULT_NAME,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._tune = tune_config or TuneConfig()
        self._run = copy(run_config) if run_config is not None else RunConfig()
        self._run.name = self._run.name or dated_name(name, self._clock.now(), environment())
        _refuse_what_a_loop_cannot(self._run)
        self._name, self._space = name, dict(param_space or {})
        self._thread = threading.get_ident()
        if (self.directory / STORE_NAME).exists():
            raise TuneError(
                f"{self.directory} already holds an experiment: AskTell.restore({str(self.directory)!r}) "
                "goes on with it; for a new one choose another RunConfig(name=...)"
            )
        self._open(is_resumed=False)

    @classmethod
    def restore(cls, path: str | os.PathLike[str], *, clock: Clock | None = None) -> AskTell:
        """Go on with the experiment in `path`: trials that were asked for and not ended come back from `ask`.

        They go on from their last checkpoint; without one they begin again. Runs code that was pickled in the
        directory: restore only what is yours.
        """
        file = Path(os.path.expanduser(os.fspath(path))) / TUNER_FILE
        if not file.is_file():
            raise FileNotFoundError(f"{file}: not there, so {file.parent} is no experiment that can go on")
        saved = cloudpickle.loads(file.read_bytes())
        made = cls.__new__(cls)
        made._clock = clock or SystemClock()
        made._tune, made._run = saved["tune_config"], saved["run_config"]
        made._run.name, made._run.storage_path = file.parent.name, str(file.parent.parent)
        made._name, made._space = saved["trainable_name"], saved["param_space"]
        made._thread = threading.get_ident()
        made._open(is_resumed=True)
        return made

    @property
    def directory(self) -> Path:
        """Where the experiment's files are."""
        return Path(os.path.expanduser(str(self._run.storage_path))) / str(self._run.name)

    @property
    def is_finished(self) -> bool:
        """Nothing is left to ask for, and everything that was asked for has ended."""
        return self._state.is_finished

    def ask(self) -> AskedTrial | None:
        """The next trial to run: one to go on with, else a new suggestion.

        None means: not now. Either the search is over (`is_finished`), or `tell` must come first, because the
        searcher or `max_concurrent_trials` allows no more trials at once.
        """
        self._check_usable()
        roster = self._state.roster
        before = set(self._engine.running)
        roster.capacity = Resources.of({"CPU": float(roster.with_process + 1)})  # room for one more
        self._execution.step(0.0)
        self._settle()
        new = [trial_id for trial_id in self._engine.running if trial_id not in before]
        return _asked(self._state.trials[new[0]], self._engine) if new else None

    def tell(
        self,
        trial: AskedTrial | str,
        metrics: Mapping[str, Any] | None = None,
        *,
        done: bool = False,
        checkpoint: Checkpoint | None = None,
        error: BaseException | None = None,
    ) -> str:
        """Report a result, the end, or a failure of a trial; what to do with it now.

        Args:
            trial: What `ask` gave, or its trial id.
            metrics: One result: a dict with the metric that is optimised. Not needed with `done` or `error`.
            done: This was the last one.
            checkpoint: Copied into the trial's directory; a paused or interrupted trial goes on from it.
            error: What went wrong; the trial is asked for again while `max_failures` allows it.

        Returns:
            "CONTINUE": train on and tell again. "PAUSE": leave it; `ask` may hand it out again later.
            "STOP": it is over. A trial that was stopped or paused while you were busy with it gets that
            answer, and this result is not recorded.
        """
        self._check_usable()
        trial_id = trial if isinstance(trial, str) else trial.trial_id
        known = self._trial(trial_id)
        if trial_id in self._engine.recalled:
            del self._engine.recalled[trial_id]
            return _decision(known)
        if trial_id not in self._engine.running:
            raise ValueError(_not_out(known))
        self._say(trial_id, metrics, done=done, checkpoint=checkpoint, error=error)
        self._settle()
        self._engine.recalled.pop(trial_id, None)  # it hears of it now
        return _decision(known)

    def results(self) -> ResultGrid:
        """What is known so far, also while trials are running."""
        self._writer.flush()
        metric, mode = self._tune.metric, self._tune.mode
        return ResultGrid(
            ExperimentAnalysis(
                self.directory,
                trials=self._state.roster.order,
                default_metric=metric if isinstance(metric, str) else None,
                default_mode=mode if isinstance(mode, str) else None,
            )
        )

    def close(self) -> None:
        """Save everything and close the files. Safe to call twice; `results` works on."""
        if self._is_open:
            self._is_open = False
            try:
                self._execution.save()
                self._trash.close()
                state = self._state
                state.hooks.fire("on_experiment_end", iteration=state.iteration, trials=state.roster.order)
            finally:
                self._store.close()
                self._engine.close()
                self._writer.close()

    def __enter__(self) -> AskTell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, *, is_resumed: bool) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if not is_resumed:
            self._write_down()
        template = self._template()
        search, _ = search_of(self._tune, template)
        settings = settings_of(self._tune, self._run, str(self.directory), 1, environment())
        # One suggestion per ask, as late as can be: each knows everything that was told before it.
        settings = replace(settings, max_pending=1)
        self._writer = LogWriter(self._clock)
        self._engine = OwnLoopEngine(self._clock)
        callbacks = default_callbacks(self._run.callbacks, environment())
        hooks = CallbackList(callbacks, writer=self._writer, experiment_dir=str(self.directory))
        plugins = Plugins(
            search=search,
            scheduler=scheduler_of(self._tune),
            stopper=stopper_of(self._tune, self._run),
            hooks=hooks,
        )
        self._state = ExperimentState(
            settings,
            plugins,
            capacity=self._engine.capacity(),
            directory_for=directory_namer(self.directory, self._clock),
        )
        self._store = SqliteTrialStore(self.directory, clock=self._clock, trust_pickles=True)
        self._is_open = True
        try:
            self._begin(template, hooks, is_resumed)
        except BaseException:
            self._is_open = False
            self._store.close()
            self._writer.close()
            raise

    def _begin(self, template: TrialTemplate, hooks: CallbackList, is_resumed: bool) -> None:
        self._trash = DeletionQueue(_delete, self._store.sync, clock=self._clock)
        self._execution = Execution(
            self._state,
            engine=self._engine,
            store=self._store,
            clock=self._clock,
            discard=_into(self._trash),
            logs=self._writer,
        )
        if is_resumed:
            witness = Witness()
            self._execution.resume(self._store.load(), template.make, witness)
            kinds = 0
            for each in hooks.callbacks:
                kinds |= getattr(each, "kinds", 0)
            witness.tell(self._writer, kinds, str(self.directory), self._clock.now())
        hooks.setup(stop=self._run.stop, num_samples=self._tune.num_samples)
        self._execution.save()  # before the first suggestion: replay starts from here

    def _template(self) -> TrialTemplate:
        """Without resources: the loop knows itself what it can run."""

        def loop(config: dict[str, Any]) -> None: ...

        loop.__name__ = self._name
        return replace(template_of(loop, self._space, self._tune, self._run), resources=None)

    def _write_down(self) -> None:
        """What `restore` needs, with the plug-ins as they are before the first trial."""
        saved = {
            "trainable_name": self._name,
            "param_space": self._space,
            "tune_config": self._tune,
            "run_config": self._run,
        }
        (self.directory / TUNER_FILE).write_bytes(cloudpickle.dumps(saved))

    def _say(
        self,
        trial_id: str,
        metrics: Mapping[str, Any] | None,
        *,
        done: bool,
        checkpoint: Checkpoint | None,
        error: BaseException | None,
    ) -> None:
        if metrics is None and not done and error is None:
            raise ValueError("tell: nothing was told: pass metrics={...}, done=True or error=...")
        if metrics is None and checkpoint is not None:
            raise ValueError("tell(checkpoint=...): a checkpoint comes with the metrics it was made at")
        if metrics is not None:
            if not isinstance(metrics, Mapping):
                raise TypeError(f"tell: metrics must be a dict, not a {type(metrics).__name__}")
            is_last = done and error is None
            self._engine.report(trial_id, metrics, done=is_last, checkpoint=checkpoint)
        if error is not None:
            self._engine.fail(trial_id, error)
        elif metrics is None:
            self._engine.finish(trial_id)

    def _settle(self) -> None:
        """Let everything that was said have its consequences; nobody new is let in."""
        while not self._engine.is_quiet:
            self._execution.step(0.0, admits=False)

    def _trial(self, trial_id: str) -> Trial:
        found = self._state.trials.get(trial_id)
        if found is None:
            raise ValueError(
                f"tell: there is no trial {trial_id!r} in {self.directory}: pass what ask() gave"
            )
        return found

    def _check_usable(self) -> None:
        if not self._is_open:
            raise TuneError(
                f"this search is closed: AskTell.restore({str(self.directory)!r}) goes on with it"
            )
        if threading.get_ident() != self._thread:
            raise TuneError(
                "ask and tell must be called from the thread that made the search: let your workers hand "
                "their results to it, for example through concurrent.futures"
            )


def _asked(trial: Trial, engine: OwnLoopEngine) -> AskedTrial:
    running = engine.running[trial.trial_id]
    ref = running.command.checkpoint
    return AskedTrial(
        trial_id=trial.trial_id,
        config=dict(running.command.config),
        checkpoint=None if ref is None else Checkpoint(ref.path),
        training_iteration=running.progress.iteration,
        directory=running.command.trial_dir,
    )


def _decision(trial: Trial) -> str:
    if trial.state in FINISHED:
        return STOP
    return CONTINUE if trial.state is TrialState.RUNNING else PAUSE


def _not_out(trial: Trial) -> str:
    if trial.state in FINISHED:
        return f"tell: trial {trial.trial_id} is over ({trial.status}); nothing more can be told of it"
    status = trial.status
    return f"tell: trial {trial.trial_id} is {status}, not in your hands: wait until ask() gives it out again"


def _refuse_what_a_loop_cannot(run: RunConfig) -> None:
    asked = {
        f"storage_path={run.storage_path!r} (only local paths)": "://" in str(run.storage_path),
        "storage_filesystem": run.storage_filesystem is not None,
        "trial_time_limit_s (nothing can end your own code)": run.trial_time_limit_s is not None,
        "log_to_file (the output of your loop is your own)": bool(run.log_to_file),
        "engine='ray'": run.engine == "ray",
        "progress_reporter": run.progress_reporter is not None,
    }
    wrong = [name for name, is_asked in asked.items() if is_asked]
    if wrong:
        raise TuneError(f"RunConfig: {', '.join(wrong)}: not possible with ask and tell. Leave it out.")


def _delete(ref: CheckpointRef) -> None:
    delete_directory(Path(ref.path))


def _into(trash: DeletionQueue) -> Callable[[Sequence[CheckpointRef]], None]:
    """The core gives up only what is safe to delete, so nothing more has to be waited for."""

    def discard(refs: Sequence[CheckpointRef]) -> None:
        trash.discard(refs, after=0)
        trash.settle(0)

    return discard
