"""Run an experiment, and resumes one that was interrupted."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from muster.base.untrusted import error_text, ray_object_hint, type_text
from muster.errors import MusterError, TuneError, public
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.config import RunConfig
from muster.tune.execution.launch import ExperimentSpec
from muster.tune.execution.restore import (
    DEFAULT_NAME,
    can_restore,
    checked_space,
    keep_parameters,
    open_experiment,
    saved_trainable,
    write_spec,
)
from muster.tune.result_grid import ResultGrid
from muster.tune.tune_config import (
    ResumeConfig,
    TuneConfig,
    analysis_defaults,
    checked_budget,
    checked_deadline,
)

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.sim.quote.quote import Quote
    from muster.tune.ask_tell import AskedTrial, AskTell

_Part = TypeVar("_Part", TuneConfig, RunConfig)


class _OnClassOnly:
    """An _OnClassOnly method refuses calls on an object: `tuner.restore(...)` would ignore the object."""

    def __init__(self, function: Any) -> None:  # noqa: ANN401
        self._function = function
        self.__doc__ = function.__doc__

    @public
    def __get__(self, instance: object, owner: type) -> Any:  # noqa: ANN401
        if instance is not None:
            raise AttributeError("restore is a class method: call Tuner.restore(path, trainable=...)")
        return self._function.__get__(owner, type(owner))


@public
class Tuner:
    """Searches the best configuration of a trainable.

    Args:
        trainable: A function of a config, a Trainable class, or a registered name.
        param_space: The search space: values, domains and grids, nested to any depth.
        tune_config: What to optimize and how to search.
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
        _tuner_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from muster.base.clock import SystemClock
        from muster.host.machine import environment
        from muster.tune.execution.paths import dated_name
        from muster.tune.registry import get_trainable
        from muster.tune.trainable.function_trainable import checked_trainable, packed, trainable_name

        space = _as_space(param_space)
        # Refused here rather than in each of its trials.
        check = get_trainable if isinstance(trainable, str) else checked_trainable
        resolved = None if trainable is None else check(trainable)
        name = DEFAULT_NAME if trainable is None else trainable_name(trainable)
        code = b"" if trainable is None else packed(resolved)
        tune = _checked_part("tune_config", tune_config, TuneConfig) or TuneConfig()
        tune = replace(tune, **_tuner_kwargs) if _tuner_kwargs else tune
        _checked_part("run_config", run_config, RunConfig)
        run = copy(run_config) if run_config is not None else RunConfig()
        run.name = run.name or dated_name(name, SystemClock().now(), environment())
        self._spec = ExperimentSpec(
            trainable=resolved, trainable_name=name, code=code, param_space=space, tune=tune, run=run
        )
        self._grid: ResultGrid | None = None
        self._by_hand: AskTell | None = None
        if run_config is not None and run_config.name and trainable is not None:
            self._keep()

    def _keep(self) -> None:
        """Write what a restore needs into a new local directory; `fit()` does too, and reports problems."""
        with suppress(MusterError, OSError):
            spec = self._asked()
            place = spec.place
            if place.is_remote or can_restore(place.directory):
                return
            place.directory.mkdir(parents=True, exist_ok=True)
            keep_parameters(spec.references, place, spec.clock)  # first: what can be restored has them
            write_spec(spec)

    def fit(self) -> ResultGrid:
        """Run the experiment to its end; failed trials are results too. Ctrl-C stops gently."""
        from muster.tune.execution.launch import begun_in_chain, launch

        spec = self._asked()
        begun = begun_in_chain(spec)
        launched = launch(spec if begun is None else Tuner.restore(begun, spec.trainable)._asked())
        self._grid = ResultGrid(launched.analysis(**self._defaults()), launched.state.ended_by)
        failure = self._spec.run.failure_config
        if failure is not None and failure.raises_first and self._grid.num_errors:
            error = self._grid.errors[0]
            raise error if isinstance(error, Exception) else TuneError(error_text(error))
        failed = [trial for trial in launched.state.index.order if trial.status == trial.ERROR]
        if failed and not self._spec.run.verbose:  # no reporter has shown it
            from muster.tune.tune import not_completed

            logging.getLogger(__name__).error("%s", not_completed(failed))
        return self._grid

    def _asked(self) -> ExperimentSpec:
        """Return the spec; TuneError when there is no trainable to run."""
        if self._spec.trainable is None:
            raise TuneError(
                "Tuner(None): did you call it? Pass the function itself, Tuner(train), not Tuner(train())",
                fix="without a trainable use ask() and tell() instead of fit()",
            )
        return self._spec

    def quote(  # noqa: PLR0913 - keywords, each one something that a user may know
        self,
        cluster: str | os.PathLike[str],
        *,
        minutes: float = 3.0,
        step_s: float | None = None,
        starts: int = 10,
        boot_s: float | None = None,
        start_s: float | None = None,
        history: str | os.PathLike[str] | None = None,
        like: str | os.PathLike[str] | None = None,
    ) -> Quote:
        """Return what `fit()` will cost on a cluster, and how long it will take, before it is run.

        Args:
            cluster: A cluster file with the prices of its node types.
            minutes: How long trials are run on this computer to see how long a step takes.
            step_s: The seconds that one step takes; given, nothing is run.
            starts: How often each variant is simulated.
            boot_s: The seconds from a new machine to its node; None: 90 s, and 60 s to set it up.
            start_s: The seconds from a trial's place on a node to its first step; None: 5 s.
            history: The directory `history` of a cluster like this one: for boot times.
            like: The directory of an experiment that ran there: for start times of trials.

        The answer has a line for the experiment as it is and for changes that cost or take less:
        `print(tuner.quote("cluster.yaml"))`, or `muster estimate` for a table and a picture.
        """
        from pathlib import Path

        from muster.providers.kind import load_spec
        from muster.sim.quote.quote import assumptions_of, quote

        asked, spec = self._asked(), load_spec(Path(cluster))
        assumed = assumptions_of(
            starts=starts,
            boot_s=boot_s,
            start_s=start_s,
            history=None if history is None else Path(history),
            like=None if like is None else Path(like),
        )
        return quote(asked, spec, minutes=minutes, step_s=step_s, assumed=assumed)

    def ask(self) -> AskedTrial | None:
        """Return the next trial to run in a loop of the user; None: not now, or the end.

        None before the end means that results must be reported first. See `AskTell.ask`.
        """
        return self._asking().ask()

    def tell(
        self,
        trial: AskedTrial | str,
        metrics: Mapping[str, Any] | None = None,
        *,
        done: bool = False,
        checkpoint: Checkpoint | None = None,
        error: BaseException | None = None,
    ) -> str:
        """Report a result of a trial that `ask` returned; returns "CONTINUE", "PAUSE" or "STOP".

        See `AskTell.tell`.

        Args:
            trial: What `ask` returned, or its id.
            metrics: The result.
            done: Whether the trial is complete.
            checkpoint: A checkpoint of this result.
            error: The exception that ended the trial.
        """
        return self._asking().tell(trial, metrics, done=done, checkpoint=checkpoint, error=error)

    def _asking(self) -> AskTell:
        if self._by_hand is None:
            from muster.tune.ask_tell import AskTell

            spec = self._spec
            self._by_hand = AskTell(
                spec.param_space,
                tune_config=spec.tune,
                run_config=spec.run,
                trainable=spec.trainable,
                resume=spec.resume,
            )
        return self._by_hand

    def get_results(self) -> ResultGrid:
        """Return the results of the last fit, of the reports so far, or of the restored experiment."""
        if self._by_hand is not None:
            return self._by_hand.results()
        if self._grid is None and self._spec.resume is not None:
            place = self._spec.place
            self._grid = ResultGrid(
                ExperimentAnalysis(place.address, storage_filesystem=place.filesystem, **self._defaults())
            )
        if self._grid is None:
            raise RuntimeError("there are no results yet: call fit() first")
        return self._grid

    @_OnClassOnly
    @public
    def restore(  # noqa: PLR0913, PLR0917 - Ray's signature
        cls,
        path: str | os.PathLike[str],
        trainable: Any = None,  # noqa: ANN401 - function, class or name
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
        _resume_config: ResumeConfig | None = None,
        *,
        cost_budget: float | None = None,
        deadline: datetime | timedelta | float | None = None,
    ) -> Tuner:
        """Return a Tuner that resumes the experiment in `path`.

        Args:
            path: The experiment's directory, here or at a URL; it may have been moved.
            trainable: The same as before, by its name. Default: the one that the experiment saved.
            resume_unfinished: Run trials that had not ended, from their newest checkpoint.
            resume_errored: Run failed trials again, from their newest checkpoint.
            restart_errored: Run failed trials again, from the beginning.
            param_space: The same space, with other objects where it holds any.
            storage_filesystem: An fsspec file system that `path` is in.
            cost_budget: Another budget, which includes what was spent before; None: that of the TuneConfig.
            deadline: Another deadline; None: that of the TuneConfig.
        """
        kinds = ResumeConfig.ResumeType
        again = kinds.RESTART if restart_errored else kinds.SKIP
        rules = _resume_config or ResumeConfig(
            unfinished=kinds.RESUME if resume_unfinished else kinds.SKIP,
            errored=kinds.RESUME if resume_errored else again,
        )
        tuner = _restored(cls, os.fspath(path), trainable, rules, param_space, storage_filesystem)  # type: ignore[arg-type]
        if cost_budget is not None:
            tuner._spec.tune.cost_budget = checked_budget(cost_budget, "Tuner.restore")
        if deadline is not None:
            tuner._spec.tune.deadline = checked_deadline(deadline, "Tuner.restore")
        return tuner

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:  # noqa: ANN401
        """Return whether `path` is the directory of an experiment.

        Args:
            path: The directory of an experiment.
            storage_filesystem: A pyarrow or fsspec file system for `path`.
        """
        return can_restore(path, storage_filesystem)

    def _defaults(self) -> dict[str, Any]:
        return analysis_defaults(self._spec.tune, self._spec.tune.search_alg)


def _restored(
    kind: type[Tuner],
    path: str,
    trainable: Any,  # noqa: ANN401
    rules: ResumeConfig,
    param_space: Mapping[str, Any] | None,
    filesystem: Any,  # noqa: ANN401
) -> Tuner:
    from muster.tune.trainable.function_trainable import trainable_name

    place, saved = open_experiment(path, filesystem)
    if trainable is None and saved.trainable_name != DEFAULT_NAME:
        trainable = saved_trainable(place)
    given = DEFAULT_NAME if trainable is None else trainable_name(trainable)
    if given != saved.trainable_name:
        raise ValueError(
            f"Tuner.restore: the experiment ran {saved.trainable_name!r}, not {given!r}: "
            "pass the same trainable"
        )
    space = saved.param_space if param_space is None else checked_space(saved.param_space, param_space)
    tuner = kind(trainable, param_space=space, tune_config=saved.tune, run_config=saved.run)
    tuner._spec.has_new_space = param_space is not None
    tuner._spec.resume, tuner._spec.overrides = rules, saved.overrides
    tuner._spec.place = (
        place  # what was fetched is there; a storage without its marker would name another copy
    )
    return tuner


def _checked_part(name: str, given: _Part | None, kind: type[_Part]) -> _Part | None:
    if given is None or isinstance(given, kind):
        return given
    if theirs := ray_object_hint(given):
        raise ValueError(f"Tuner({name}=...): {theirs}")
    got, right = type(given).__name__, {"TuneConfig": "tune_config", "RunConfig": "run_config"}
    fix = f"pass it as {right[got]}=..." if got in right else f"pass {kind.__name__}(...)"
    raise ValueError(f"Tuner({name}=...): must be a {kind.__name__}, not a {got}: {fix}")


def _as_space(given: Any) -> dict[str, Any]:  # noqa: ANN401 - checked here
    """Return a dict, also from an object that can be converted to one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) and callable(getattr(given, "to_dict", None)):
        given = given.to_dict()
    if not isinstance(given, Mapping):
        raise ValueError(f"Tuner(param_space=...): must be a dict, not {type_text(given)}")
    from muster.tune.search.check_space import check_space

    check_space(given)
    return dict(given)
