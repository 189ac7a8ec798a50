"""Tuner: fit an experiment on this machine, and go on with one that was interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.surroundings import environment
from muster.errors import TuneError
from muster.stores.checkpoints import delete_directory
from muster.stores.deletions import DeletionQueue
from muster.stores.trials import SqliteTrialStore
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef
from muster.trials.plugins import Plugins
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.assembly import scheduler_of, search_of, settings_of, stopper_of, template_of
from muster.tune.callback import CallbackList
from muster.tune.config import RunConfig, TuneConfig
from muster.tune.execution import Execution
from muster.tune.logger.defaults import default_callbacks
from muster.tune.logger.writer import LogWriter
from muster.tune.naming import dated_name, directory_namer
from muster.tune.result_grid import ResultGrid
from muster.tune.trainable.packing import packed
from muster.tune.trainable.registry import get_trainable, trainable_name

TUNER_FILE = "tuner.pkl"


class Tuner:
    """Searches the configuration of a trainable that does best.

    Args:
        trainable: A function of a config, a Trainable class, or a registered name.
        param_space: The search space: values, domains and grids, nested as you like.
        tune_config: What to optimise and how to search.
        run_config: Where to write, when to stop, what to keep.

    Example:
        >>> from muster import tune
        >>> tuner = tune.Tuner(lambda config: {"y": config["x"] ** 2}, param_space={"x": tune.choice([1])})
    """

    def __init__(
        self,
        trainable: Any = None,  # noqa: ANN401 - function, class or name
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        if trainable is None:
            raise TuneError("Tuner needs a trainable: a function of a config, or a Trainable class")
        if param_space is not None and not isinstance(param_space, Mapping):
            raise ValueError(f"Tuner(param_space=...): must be a dict, not a {type(param_space).__name__}")
        self._trainable = get_trainable(trainable) if isinstance(trainable, str) else trainable
        self._name = trainable_name(trainable)
        self._code = packed(self._trainable)
        self._space = dict(param_space or {})
        self._tune = tune_config or TuneConfig()
        self._run = copy(run_config) if run_config is not None else RunConfig()
        self._run.name = self._run.name or dated_name(self._name, SystemClock().now(), environment())
        self._is_resumed = False
        self._grid: ResultGrid | None = None

    @property
    def directory(self) -> Path:
        """Where the experiment's files are."""
        return Path(os.path.expanduser(str(self._run.storage_path))) / str(self._run.name)

    def fit(self) -> ResultGrid:
        """Run the experiment to its end; failed trials are results too. Ctrl-C stops gently."""
        _refuse_what_is_not_built(self._run)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_down()
        template = template_of(self._trainable, self._space, self._tune, self._run)
        search, ahead = search_of(self._tune, template)
        settings = settings_of(str(self._run.name), str(self.directory), self._tune, self._run, ahead)
        writer = LogWriter()
        engine = LocalEngine(clock=SystemClock(), trainables={self._name: self._code})
        try:
            hooks = CallbackList(
                default_callbacks(self._run.callbacks, environment()),
                writer=writer,
                experiment_dir=str(self.directory),
            )
            plugins = Plugins(
                search=search,
                scheduler=scheduler_of(self._tune),
                stopper=stopper_of(self._tune, self._run),
                hooks=hooks,
            )
            state = ExperimentState(
                settings,
                plugins,
                capacity=engine.capacity(),
                directory_for=directory_namer(self.directory, SystemClock()),
            )
            with SqliteTrialStore(self.directory, trust_pickles=True) as store, _gentle_stop() as stopping:
                trash = DeletionQueue(_delete, store.sync, clock=SystemClock())
                execution = Execution(
                    state, engine=engine, store=store, clock=SystemClock(), discard=_into(trash)
                )
                if self._is_resumed:
                    execution.resume(store.load(), template.make)
                hooks.setup(stop=self._run.stop, num_samples=self._tune.num_samples)
                execution.run(stopping.is_set)
                trash.close()
            hooks.fire("on_experiment_end", iteration=state.iteration, trials=state.roster.order)
        finally:
            engine.close()
            writer.close()
        self._grid = self._results(state)
        if settings.failure.raise_first and self._grid.num_errors:
            error = self._grid.errors[0]
            raise error if isinstance(error, Exception) else TuneError(str(error))
        return self._grid

    def get_results(self) -> ResultGrid:
        """Of the last fit."""
        if self._grid is None:
            raise RuntimeError("there are no results yet: call fit() first")
        return self._grid

    @classmethod
    def restore(cls, path: str | os.PathLike[str], trainable: Any) -> Tuner:  # noqa: ANN401
        """A Tuner that goes on with the experiment in `path`; the trainable must have the same name."""
        file = Path(os.path.expanduser(os.fspath(path))) / TUNER_FILE
        if not file.is_file():
            raise FileNotFoundError(f"{file}: not there, so {file.parent} is no experiment that can go on")
        saved = cloudpickle.loads(file.read_bytes())
        if trainable_name(trainable) != saved["trainable_name"]:
            raise ValueError(
                f"Tuner.restore: the experiment ran {saved['trainable_name']!r}, "
                f"not {trainable_name(trainable)!r}: pass the same trainable"
            )
        run = saved["run_config"]
        run.name, run.storage_path = file.parent.name, str(file.parent.parent)
        tuner = cls(
            trainable, param_space=saved["param_space"], tune_config=saved["tune_config"], run_config=run
        )
        tuner._is_resumed = True
        return tuner

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str]) -> bool:
        return (Path(os.path.expanduser(os.fspath(path))) / TUNER_FILE).is_file()

    def _write_down(self) -> None:
        """What `restore` needs, with the plug-ins as they are before the first trial."""
        saved = {
            "trainable_name": self._name,
            "param_space": self._space,
            "tune_config": self._tune,
            "run_config": self._run,
        }
        if not self._is_resumed:
            (self.directory / TUNER_FILE).write_bytes(cloudpickle.dumps(saved))

    def _results(self, state: ExperimentState) -> ResultGrid:
        return ResultGrid(
            ExperimentAnalysis(
                self.directory,
                trials=state.roster.order,
                default_metric=self._tune.metric if isinstance(self._tune.metric, str) else None,
                default_mode=self._tune.mode if isinstance(self._tune.mode, str) else None,
            )
        )


def _refuse_what_is_not_built(run: RunConfig) -> None:
    """What would be ignored is refused, so that nobody waits for something that does not come."""
    asked = {
        f"storage_path={run.storage_path!r} (only local paths)": "://" in str(run.storage_path),
        "storage_filesystem": run.storage_filesystem is not None,
        "engine='ray'": run.engine == "ray",
        "progress_reporter": run.progress_reporter is not None,
    }
    missing = [name for name, is_asked in asked.items() if is_asked]
    if missing:
        raise TuneError(f"RunConfig: {', '.join(missing)}: not built yet. Leave it out for now.")


def _delete(ref: CheckpointRef) -> None:
    delete_directory(Path(ref.path))


def _into(trash: DeletionQueue) -> Callable[[Sequence[CheckpointRef]], None]:
    """The core gives up only what is safe to delete, so nothing more has to be waited for."""

    def discard(refs: Sequence[CheckpointRef]) -> None:
        trash.discard(refs, after=0)
        trash.settle(0)

    return discard


@contextmanager
def _gentle_stop() -> Iterator[threading.Event]:
    """The first Ctrl-C ends the loop after its step; the second one acts as ever."""
    wanted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        wanted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)
