"""Define Searcher, the base class of user-written search algorithms, with Ray's hook names."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from muster.base import by_value
from muster.base.untrusted import error_text
from muster.errors import MusterError, RestoreError, TuneError, public, public_constructor
from muster.trials.metrics import flatten
from muster.trials.model import Trial
from muster.tune.older import without_max_concurrent
from muster.tune.plugin_state import restore_by_path, saved_by_path
from muster.tune.search.search_algorithm import (
    Names,
    newest_state_file,
    stored_search_state,
    write_state_file,
)

pickled = by_value.dumps  # a plug-in's own state, with lambdas and classes of the user's script


logger = logging.getLogger(__name__)

UNRESOLVED_SEARCH_SPACE = (
    "{cls} was given `{par}` with domains of muster's search space; they are converted. "
    "Or pass the space to the Tuner as `param_space`, or {cls}'s own kind of space."
)
UNDEFINED_SEARCH_SPACE = (
    "{cls} has no search space: pass one when you make it (`{space}`), or to the Tuner as `param_space`."
)
UNDEFINED_METRIC_MODE = (
    "{cls} does not know what to optimize: pass `metric` and `mode` when you make it, or to TuneConfig "
    "(metric={metric!r}, mode={mode!r})."
)


class SearcherNotReady(TuneError, RuntimeError):
    """A searcher was asked before it had a space, a metric and a mode."""


class Searcher:
    """Suggests configurations and learns from results.

    Subclasses implement `suggest` and `on_trial_complete`. Everything else has a default; in particular, the
    whole object is saved by pickling its attributes unless `save` and `restore` are overridden.

    Args:
        metric: The result key to optimize, or a list of keys.
        mode: "min" or "max"; for a list of metrics a list of "min", "max" or "obs" (observed only).
    """

    FINISHED: ClassVar[str] = "FINISHED"
    CKPT_FILE_TMPL: ClassVar[str] = "searcher-state-{}.pkl"

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**options)
        takes_limit = "max_concurrent" in inspect.signature(cls.__init__).parameters
        public_constructor(cls, None if takes_limit else without_max_concurrent)

    @public
    def __init__(self, metric: Names = None, mode: Names = None) -> None:
        check_metric_and_mode(metric, mode)
        self._metric, self._mode = metric, mode

    @property
    def metric(self) -> Any:  # noqa: ANN401 - a name or several
        """The metric to optimize."""
        return getattr(self, "_metric", None)

    @property
    def mode(self) -> Any:  # noqa: ANN401
        """ "min" or "max"."""
        return getattr(self, "_mode", None)

    def set_search_properties(
        self, metric: Names, mode: Names, config: dict[str, Any], **spec: object
    ) -> bool:
        """Take the experiment's settings; False when this searcher cannot, or has its own already.

        Args:
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
            config: The search space.
            spec: Further settings.
        """
        del metric, mode, config, spec
        return False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return a configuration; None: not now, ask again; FINISHED: no more."""
        raise NotImplementedError

    def why(self, trial_id: str) -> str:
        """Return why `suggest` has just returned this configuration, in words."""
        del trial_id
        return ""

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Called with an intermediate result.

        Args:
            trial_id: The trial's id.
            result: The result.
        """

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called at the end of a trial; without a result it failed, was stopped while paused, or never ran.

        An override with a parameter `stopped` gets `stopped=True` for a trial that the scheduler stopped.

        Args:
            trial_id: The trial's id.
            result: The last result; None for a failed trial.
            error: Whether the trial failed.
        """
        raise NotImplementedError

    def set_rungs(self, levels: tuple[float, ...] | None, time_attr: str) -> None:
        """Called before the first trial, and after a restore, with the scheduler's milestones.

        Args:
            levels: The milestones of all brackets, ascending; () without any, None when they are unknown.
            time_attr: The result key that they count.
        """

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        """Learn from a point that was evaluated elsewhere.

        Args:
            parameters: The configuration, flat.
            value: The result, or None for a failed trial.
            error: Whether the trial failed.
            pruned: Whether a scheduler stopped it.
            intermediate_values: Earlier results in their order.
        """
        raise NotImplementedError

    @public
    def add_evaluated_trials(
        self,
        trials_or_analysis: Any,  # noqa: ANN401 - see _trials_of
        metric: str | list[str],
    ) -> None:
        """Learn from an earlier experiment.

        Args:
            trials_or_analysis: The experiment's directory, its ExperimentAnalysis or ResultGrid, or trials.
            metric: The result key that counts, its last value; several for several objectives.

        Trials without a number there teach nothing; those outside of the space are left out with a warning.
        """
        if type(self).add_evaluated_point is Searcher.add_evaluated_point:
            raise NotImplementedError(
                f"{type(self).__name__} cannot learn from evaluated points: override add_evaluated_point"
            )
        found, outside = False, []
        for trial in _trials_of(trials_or_analysis):
            value = _value_of(trial, metric)
            is_error = trial.status == "ERROR"
            found = found or value is not None
            if value is None and not is_error:
                continue
            # A trial read from a directory does not record if a scheduler stopped it: its last value counts.
            is_done = not isinstance(trial, Trial) or bool(trial.last_result.get("done"))
            pruned = trial.status == "TERMINATED" and not is_done
            try:
                self.add_evaluated_point(trial.config, value, error=is_error, pruned=pruned)
            except ValueError as error:
                outside.append(error)
        warn_of_outside(self, outside)
        if not found:
            warnings.warn(f"no trial reported '{metric}': is the name right?", stacklevel=3)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Return True when the searcher limits the number of unfinished trials itself from now on."""
        del max_concurrent
        return False

    def get_state(self) -> dict[str, Any]:
        """Return what a restored searcher needs."""
        return dict(self.__dict__)

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned."""
        self.__dict__.update(state)

    def save_state(self) -> bytes:
        """Return everything that decides the next suggestion; by default all attributes, pickled."""
        return pickled(self.get_state())

    def restore_state(self, state: bytes) -> None:
        """Load a state."""
        self.set_state(pickle.loads(state))

    def save(self, checkpoint_path: str) -> None:
        """Write the state to a file."""
        write_state_file(Path(checkpoint_path), self.save_state())

    def restore(self, checkpoint_path: str) -> None:
        """Load the state from a file."""
        self.restore_state(Path(checkpoint_path).read_bytes())

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Write a new state file, atomically; a searcher that cannot be saved is skipped with a warning.

        Args:
            checkpoint_dir: The directory.
            session_str: Part of the file's name.
        """
        try:
            content = saved_searcher(self)
        except NotImplementedError:
            if not getattr(self, "_has_warned_unsavable", False):
                self._has_warned_unsavable = True
                logger.warning(
                    "%s is not saved: its `save` is not implemented, so a resumed experiment restarts it",
                    type(self).__name__,
                )
            return
        write_state_file(Path(checkpoint_dir) / self.CKPT_FILE_TMPL.format(session_str), content)

    def restore_from_dir(self, checkpoint_dir: str) -> None:
        """Read the newest state file of a directory, or what an experiment saved in its own."""
        found = newest_state_file(checkpoint_dir, self.CKPT_FILE_TMPL.split("-{}", maxsplit=1)[0])
        state: bytes | None = None
        if found is not None:
            state = found.read_bytes()
        elif (saved := stored_search_state(checkpoint_dir)) is not None:
            parts = msgspec.msgpack.decode(saved)  # of a SearchGenerator
            state = parts.get("searcher") if isinstance(parts, dict) else None
        if state is None:
            raise RuntimeError(
                f"{checkpoint_dir} has no {self.CKPT_FILE_TMPL.format('*')} and is not an experiment of a "
                "searcher: nothing to restore"
            )
        restore_searcher(self, state)


def warn_of_outside(searcher: Searcher, outside: Sequence[ValueError]) -> None:
    """Log once which points are not in the space: an earlier experiment may have had another one."""
    if outside:
        more = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
        logger.warning("%s: an evaluated point is left out: %s%s", type(searcher).__name__, outside[0], more)


def check_metric_and_mode(metric: Any, mode: Any) -> None:  # noqa: ANN401 - users may pass anything
    """Raise an AssertionError or ValueError, as Ray does, when the two do not go together."""
    if not metric or not mode:
        return
    if isinstance(metric, str) != isinstance(mode, str):
        raise AssertionError(
            f"metric and mode must both be strings or both lists, not {metric!r} and {mode!r}"
        )
    if isinstance(mode, str):
        if mode not in ("min", "max"):
            raise AssertionError(f"mode must be 'min' or 'max', not {mode!r}")
    elif isinstance(mode, (list, tuple)):
        if len(mode) != len(metric):
            raise AssertionError(f"{len(metric)} metrics need as many modes, not {len(mode)}")
        if any(one not in ("min", "max", "obs") for one in mode):
            raise AssertionError(f"every mode must be 'min', 'max' or 'obs', not {mode!r}")
    else:
        raise ValueError(f"mode must be a string or a list, not {mode!r}")


def _value_of(trial: Any, metric: str | list[str]) -> Any:  # noqa: ANN401
    """Return the last value of a metric, or a list of several; None when one is missing."""
    flat = flatten(trial.last_result)
    if isinstance(metric, str):
        return flat.get(metric)
    values = [flat.get(one) for one in metric]
    return None if None in values else values


def _trials_of(source: Any) -> Iterable[Any]:  # noqa: ANN401
    if isinstance(source, Trial) or (hasattr(source, "trial_id") and hasattr(source, "last_result")):
        return [source]  # one of a controller, or of an analysis
    if isinstance(source, (str, os.PathLike)):
        from muster.tune.analysis import ExperimentAnalysis

        return ExperimentAnalysis(source).trials
    source = getattr(source, "_experiment_analysis", source)  # of a ResultGrid
    if isinstance(source, (list, tuple)):
        return source
    trials = getattr(source, "trials", None)
    if trials is None:
        raise NotImplementedError(
            f"cannot take trials from {source!r}: "
            "pass an experiment's directory, an ExperimentAnalysis, or trials"
        )
    return trials  # type: ignore[no-any-return]


def saved_searcher(searcher: Searcher) -> bytes:
    """Return `save_state()`, or what a class that only overrides Ray's `save(path)` writes."""
    try:
        return saved_by_path(searcher.save) if _uses_paths(searcher) else searcher.save_state()
    except (MusterError, NotImplementedError):
        raise
    except Exception as error:
        raise TuneError(
            f"the searcher {type(searcher).__name__} cannot be saved ({error_text(error)}): "
            "implement save(path) and restore(path), or keep only picklable attributes"
        ) from error


def restore_searcher(searcher: Searcher, state: bytes) -> None:
    try:
        if _uses_paths(searcher):
            restore_by_path(searcher.restore, state)
        else:
            searcher.restore_state(state)
    except MusterError:
        raise
    except Exception as error:
        raise RestoreError(
            f"the searcher {type(searcher).__name__} cannot be restored ({error_text(error)}): "
            "was it saved by the same class with the same libraries?"
        ) from error


def _uses_paths(searcher: Searcher) -> bool:
    """Return whether the most derived class that saves itself does so by path."""
    for cls in type(searcher).__mro__:
        if "save_state" in vars(cls):
            return False
        if "save" in vars(cls):
            return True
    return False


class Wrapper(Searcher):
    """Forwards everything to the searcher inside; subclasses override what they change."""

    def __init__(self, searcher: Searcher) -> None:
        if not isinstance(searcher, Searcher):
            raise RuntimeError(
                f"{type(self).__name__} wraps a Searcher, not {searcher!r}: "
                "BasicVariantGenerator has its own `max_concurrent`"
            )
        self.searcher = searcher
        super().__init__(metric=searcher.metric, mode=searcher.mode)

    @property
    def metric(self) -> Any:  # noqa: ANN401 - the inner one may learn it later
        return self.searcher.metric

    @property
    def mode(self) -> Any:  # noqa: ANN401
        return self.searcher.mode

    def set_search_properties(
        self, metric: Names, mode: Names, config: dict[str, Any], **spec: object
    ) -> bool:
        return set_properties(self.searcher, metric, mode, config, spec)

    def why(self, trial_id: str) -> str:
        return self.searcher.why(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def set_rungs(self, levels: tuple[float, ...] | None, time_attr: str) -> None:
        self.searcher.set_rungs(levels, time_attr)

    def add_evaluated_point(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the inner one takes them
        self.searcher.add_evaluated_point(*args, **kwargs)

    def on_pause(self, trial_id: str) -> None:
        self._forward("on_pause", trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._forward("on_unpause", trial_id)

    def _forward(self, hook: str, trial_id: str) -> None:
        inner = getattr(self.searcher, hook, None)  # few searchers care
        if inner is not None:
            inner(trial_id)

    def save_state(self) -> bytes:
        return pickled((self.get_state(), saved_searcher(self.searcher)))

    def restore_state(self, state: bytes) -> None:
        own, inner = pickle.loads(state)
        self.set_state(own)
        restore_searcher(self.searcher, inner)


def set_properties(
    searcher: Searcher, metric: Names, mode: Names, config: dict[str, Any], spec: dict[str, Any]
) -> bool:
    """Call `set_search_properties`, also of classes written before it took the rest of the specification."""
    import inspect

    try:
        inspect.signature(searcher.set_search_properties).bind(metric, mode, config, **spec)
    except TypeError:
        return searcher.set_search_properties(metric, mode, config)
    return searcher.set_search_properties(metric, mode, config, **spec)
