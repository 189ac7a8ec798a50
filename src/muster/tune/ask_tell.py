"""Let users with their own loop ask for configurations and report the results.

The experiment is the same as that of Tuner.fit, with the same store, schedulers, loggers and restore; only
its trials run wherever the caller runs them. Tuner.ask and Tuner.tell delegate to it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import type_text
from muster.errors import TuneError, public
from muster.trials.plugins import CONTINUE, PAUSE, STOP
from muster.trials.states import FINISHED, TrialState
from muster.tune.config import RunConfig
from muster.tune.tune_config import ResumeConfig, TuneConfig, analysis_defaults

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.trials.model import Trial
    from muster.tune.execution.launch import ExperimentSpec
    from muster.tune.result_grid import ResultGrid


@dataclass(frozen=True)
class AskedTrial:
    """A configuration to try.

    Attributes:
        trial_id: The argument of `tell`, which also takes this object.
        config: The configuration; the user may change it.
        checkpoint: Where to continue, when the trial was paused or interrupted and had reported one.
        training_iteration: Number of results up to the checkpoint.
        directory: The directory of the trial, for files of the user.
    """

    trial_id: str
    config: dict[str, Any]
    checkpoint: Checkpoint | None = None
    training_iteration: int = 0
    directory: str = ""


@public
class AskTell:
    """Suggests configurations and decides on their results; the user runs them.

    Args:
        param_space: The search space, as for Tuner.
        tune_config: What to optimize and how to search.
        run_config: Where to write, when to stop, what to keep.
        trainable: Only names the trials; it is not run.
        resume: Continue the experiment that is there, by these rules; `restore` is the simpler way.

    Use it from one thread; report the results of parallel workers there. Every result is on disk when `tell`
    returns: after a crash `AskTell.restore(path)` continues from there.

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

    def __init__(
        self,
        param_space: Mapping[str, Any] | None = None,
        *,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        trainable: Any = None,  # noqa: ANN401 - function, class or name
        resume: ResumeConfig | None = None,
    ) -> None:
        from muster.tune.execution.ask_tell_run import AskTellRun
        from muster.tune.search.check_space import check_space

        _refuse_limits(tune_config)
        check_space(param_space or {})
        self._wanted = _wanted(dict(param_space or {}), tune_config, run_config, trainable, resume)
        self._thread = threading.get_ident()
        self._parts = AskTellRun(self._wanted)
        self._state, self._engine = self._parts.state, self._parts.engine
        # When `close` is not called, nothing is lost, but the files should be complete.
        self._close = weakref.finalize(self, self._parts.close)

    @classmethod
    def restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> AskTell:  # noqa: ANN401
        """Resume the experiment in `path`: `ask` returns again the trials that were asked for and not ended.

        They continue from their last checkpoint; without one they start again. This runs code pickled
        in the directory: restore only your own experiments.
        """
        from muster.tune.execution.restore import open_experiment

        _, saved = open_experiment(os.fspath(path), storage_filesystem)
        return cls(
            saved.param_space,
            tune_config=saved.tune,
            run_config=saved.run,
            trainable=saved.trainable_name,
            resume=ResumeConfig(),
        )

    @property
    def directory(self) -> Path:
        """The directory in which the files of the experiment are made."""
        return self._wanted.place.directory

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to ask for, and everything that was asked for has ended."""
        return self._state.is_finished

    def ask(self) -> AskedTrial | None:
        """Return the next trial to run: one to continue, else a new suggestion.

        None means: not now. Either the search is over (`is_finished`), or `tell` must come first, because the
        searcher or `max_concurrent_trials` allows no more trials at once.
        """
        from muster.base.resources import Resources

        self._check_usable()
        index = self._state.index
        before = set(self._engine.running)
        index.capacity = Resources.of({"CPU": float(index.with_process + 1)})  # room for one more
        self._parts.controller.step(0.0)
        self._handle_reports()
        new = [trial_id for trial_id in self._engine.running if trial_id not in before]
        return self._asked(new[0]) if new else None

    def tell(
        self,
        trial: AskedTrial | str,
        metrics: Mapping[str, Any] | None = None,
        *,
        done: bool = False,
        checkpoint: Checkpoint | None = None,
        error: BaseException | None = None,
    ) -> str:
        """Report a result, the end, or a failure of a trial; returns what to do with the trial now.

        Args:
            trial: What `ask` returned, or its trial id.
            metrics: One result: a dict with the metric that is optimized. Not needed with `done` or `error`.
            done: This was the last one.
            checkpoint: Copied into the trial's directory; a paused or interrupted trial continues from it.
            error: The failure; `ask` returns the trial again while `max_failures` allows it.

        Returns:
            "CONTINUE": train and report again. "PAUSE": leave it; `ask` may return it again later. "STOP": it
            is over. A trial that was stopped or paused in the meantime gets that answer, and this result is
            not recorded.
        """
        self._check_usable()
        trial_id = trial if isinstance(trial, str) else trial.trial_id
        known = self._trial(trial_id)
        if trial_id in self._engine.recalled:
            del self._engine.recalled[trial_id]
            return _decision(known)
        if trial_id not in self._engine.running:
            hint = f"is {known.status}, not running: wait until ask() returns it again"
            if known.state in FINISHED:
                hint = f"is over ({known.status}); it takes no more reports"
            raise ValueError(f"tell: trial {trial_id} {hint}")
        _check_report(metrics, done, checkpoint, error)
        if metrics is not None:
            is_last = done and error is None
            self._engine.report(trial_id, metrics, done=is_last, checkpoint=checkpoint)
        if error is not None:
            self._engine.fail(trial_id, error)
        elif metrics is None:
            self._engine.finish(trial_id)
        self._handle_reports()
        self._engine.recalled.pop(trial_id, None)  # the caller learns of it now
        return _decision(known)

    def results(self) -> ResultGrid:
        """Return what is known so far, also while trials are running."""
        from muster.tune.analysis import ExperimentAnalysis
        from muster.tune.result_grid import ResultGrid

        self._parts.flush()
        defaults = analysis_defaults(self._wanted.tune, self._state.plugins.search)
        return ResultGrid(ExperimentAnalysis(self.directory, trials=self._state.index.order, **defaults))

    def close(self) -> None:
        """Save everything and close the files. Safe to call twice; `results` still works."""
        self._close()

    def __enter__(self) -> AskTell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handle_reports(self) -> None:
        """Carry out everything that follows from the reports so far; no new trial is admitted."""
        while not self._engine.is_quiet:
            self._parts.controller.step(0.0, admits=False)

    def _asked(self, trial_id: str) -> AskedTrial:
        from muster.session.checkpoint import Checkpoint

        running = self._engine.running[trial_id]
        command, ref = running.command, running.command.checkpoint
        return AskedTrial(
            trial_id=trial_id,
            config=dict(command.config),
            checkpoint=None if ref is None else Checkpoint(ref.path),
            training_iteration=running.progress.iteration,
            directory=command.trial_dir,
        )

    def _trial(self, trial_id: str) -> Trial:
        found = self._state.trials.get(trial_id)
        if found is None:
            raise ValueError(
                f"tell: there is no trial {trial_id!r} in {self.directory}: pass what ask() returned"
            )
        return found

    def _check_usable(self) -> None:
        if not self._close.alive:
            raise TuneError(f"this search is closed: AskTell.restore({str(self.directory)!r}) resumes it")
        if threading.get_ident() != self._thread:
            raise TuneError(
                "ask and tell must be called from the thread that made the search: let your workers pass "
                "their results to it, for example through concurrent.futures"
            )


def _refuse_limits(tune_config: TuneConfig | None) -> None:
    """Refuse limits that only a driver which runs its trials itself can hold."""
    if tune_config is not None and (tune_config.cost_budget is not None or tune_config.deadline is not None):
        raise ValueError(
            "TuneConfig(cost_budget=..., deadline=...) does not go with ask and tell, because the loop runs "
            "the trials itself: leave both out, or use Tuner.fit"
        )


def _wanted(
    space: dict[str, Any],
    tune: TuneConfig | None,
    run: RunConfig | None,
    trainable: Any,  # noqa: ANN401
    resume: ResumeConfig | None,
) -> ExperimentSpec:
    from muster.base import by_value
    from muster.base.clock import SystemClock
    from muster.host.machine import environment
    from muster.stores.experiment.reader import STORE_NAME
    from muster.tune.execution.ask_tell_run import stand_in
    from muster.tune.execution.launch import ExperimentSpec
    from muster.tune.execution.paths import dated_name
    from muster.tune.execution.restore import DEFAULT_NAME
    from muster.tune.trainable.function_trainable import packed, trainable_name

    name = DEFAULT_NAME if trainable is None else trainable_name(trainable)
    asked = copy(run) if run is not None else RunConfig()
    asked.name = asked.name or dated_name(name, SystemClock().now(), environment())
    _refuse_what_a_loop_cannot(asked)
    loop = stand_in(name)
    is_named = trainable is None or isinstance(trainable, str)
    spec = ExperimentSpec(
        trainable_name=name,
        param_space=space,
        tune=tune or TuneConfig(),
        run=asked,
        trainable=loop,
        code=by_value.dumps(loop) if is_named else packed(trainable),
        resume=resume,
    )
    place = spec.place
    if resume is None and (place.directory / STORE_NAME).exists():
        raise TuneError(
            (f"{place.address} already holds an experiment: AskTell.restore({place.address!r}) resumes it"),
            fix="for a new one choose another RunConfig(name=...)",
        )
    return spec


def _check_report(
    metrics: object, done: bool, checkpoint: Checkpoint | None, error: BaseException | None
) -> None:
    if metrics is None and not done and error is None:
        raise ValueError("tell: nothing was reported: pass metrics={...}, done=True or error=...")
    if metrics is None and checkpoint is not None:
        raise ValueError("tell(checkpoint=...): a checkpoint comes with the metrics it was made at")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"tell: metrics must be a dict, not {type_text(metrics)}")


def _decision(trial: Trial) -> str:
    if trial.state in FINISHED:
        return STOP
    return CONTINUE if trial.state is TrialState.RUNNING else PAUSE


def _refuse_what_a_loop_cannot(run: RunConfig) -> None:
    asked = {
        "trial_time_limit_s (nothing can end your own code)": run.trial_time_limit_s is not None,
        "log_to_file (the output of your loop is your own)": bool(run.log_to_file),
        "engine (trials run where you run them)": run.engine not in ("auto", "local"),
        "progress_reporter (your loop knows best what to show)": run.progress_reporter is not None,
    }
    wrong = [name for name, is_asked in asked.items() if is_asked]
    if wrong:
        raise TuneError(f"RunConfig: {', '.join(wrong)}: not possible with ask and tell. Leave it out.")
