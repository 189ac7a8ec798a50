"""Define Callback, whose hooks a user may override, and CallbackList, which calls them in order.

The core fires hooks on the control thread and knows nothing of what they do. A callback that raises is named;
in `on_checkpoint` the error is logged, in `on_trial_complete` it fails the trial, elsewhere the experiment.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from muster.base import by_value
from muster.base.untrusted import error_text, message_text
from muster.errors import TuneError, as_plugin_error, public_constructor

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial

RAY_HOOKS = (
    *("setup", "on_step_begin", "on_step_end", "on_trial_start", "on_trial_restore", "on_trial_save"),
    *("on_trial_result", "on_trial_complete", "on_trial_recover", "on_trial_error", "on_checkpoint"),
    *("on_experiment_end", "get_state", "set_state"),
)
_FIRED = (*(name for name in RAY_HOOKS if name.startswith("on_")), "on_trial_failure")
_STEPS = frozenset({"on_step_begin", "on_step_end"})
_CHANGED = frozenset({"on_trial_start", "on_checkpoint", "on_experiment_end"})  # fired with other arguments
_Handler = Callable[..., Any]


class Callback:
    """Reacts to events of an experiment. Override what you need; every hook is called by keyword.

    Hooks run on the control thread, in the order of `RunConfig.callbacks`. A result given to
    `on_trial_result` may be changed in place: what is added is logged, and a true `should_checkpoint` makes
    the trial save.

    Example:
        >>> class Count(Callback):
        ...     seen = 0
        ...     def on_trial_result(self, iteration, trials, trial, result, **info):
        ...         self.seen += 1
        >>> count = Count()
        >>> CallbackList([count]).fire("on_trial_result", iteration=0, trials=[], trial=None, result={})
        >>> count.seen
        1
    """

    IS_CALLBACK_CONTAINER: ClassVar[bool] = False  # a class that holds callbacks must pass every hook on

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        public_constructor(cls)
        if cls.IS_CALLBACK_CONTAINER:
            missing = [name for name in RAY_HOOKS if getattr(cls, name) is getattr(Callback, name)]
            if missing:
                raise TypeError(f"{cls.__name__} holds callbacks, so it must define {', '.join(missing)}")

    def setup(
        self,
        stop: Any = None,  # noqa: ANN401 - whatever the user gave as `stop`
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: object,
    ) -> None:
        """Called once, before the first trial; `info` holds `time_budget_s` among others.

        Args:
            stop: What the user passed as `stop`.
            num_samples: The `num_samples` of the experiment.
            total_num_samples: How many trials that makes, the grid included.
            info: Further settings, `time_budget_s` among them.
        """

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: object) -> None:
        """Called at the start of each turn of the control loop.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            info: Room for arguments of later versions.
        """

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        """Called at the end of each turn of the control loop.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            info: Room for arguments of later versions.
        """

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Called when a trial's process is up: the first time, after a pause, after a failure.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            info: Room for arguments of later versions.
        """

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Called when a trial has loaded its checkpoint; right after its `on_trial_start`.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            info: Room for arguments of later versions.
        """

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Called after `on_checkpoint`, with `trial.checkpoint` set; also after a pause without one.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            info: Room for arguments of later versions.
        """

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        """Called with every result of a trial.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            result: The result, with the keys that muster adds.
            info: Room for arguments of later versions.
        """

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Called when a trial ended well: by itself, or because it was stopped.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            info: Room for arguments of later versions.
        """

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Called when a trial failed and will be tried again.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            info: Room for arguments of later versions.
        """

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Called when a trial failed for good.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            info: Room for arguments of later versions.
        """

    def on_trial_failure(
        self, iteration: int, trials: list[Trial], trial: Trial, failure: TrialFailure, **info: object
    ) -> None:
        """Called with every failure, before `on_trial_recover` or `on_trial_error`; Ray has no such hook.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            failure: The kind of the failure and its text.
            info: Room for arguments of later versions.
        """

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: object
    ) -> None:
        """Called when a trial has a new checkpoint.

        Args:
            iteration: The turn of the control loop.
            trials: All trials of the experiment so far.
            trial: The trial.
            checkpoint: The new checkpoint.
            info: Room for arguments of later versions.
        """

    def on_experiment_end(self, trials: list[Trial], **info: object) -> None:
        """Called once, after the last trial or after the error that stops the experiment."""

    def get_state(self) -> dict[str, Any] | None:
        """Return what the callback needs after a restart; None: nothing."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""


class CallbackList:
    """Calls the hooks of an experiment; objects with only some of the hooks are accepted."""

    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        self.callbacks = tuple(callbacks)
        served = _merged(self.callbacks)
        self._served: dict[str, tuple[_Handler, ...]] = {name: _handlers(served, name) for name in _FIRED}

    def setup(self, **info: Any) -> None:  # noqa: ANN401 - Ray's keyword arguments
        """Call `setup` of every callback, with what is about to run."""
        for callback in self.callbacks:
            for handler in _handlers([callback], "setup"):
                if _accepts(handler, info):
                    _called(handler, "setup", **info)
                else:
                    _warn_old_setup(callback)
                    _called(handler, "setup")

    def fire(
        self,
        hook: str,
        *,
        iteration: int,
        trials: Sequence[Trial],
        result: dict[str, Any] | None = None,
        trial: Trial | None = None,
        **info: Any,  # noqa: ANN401
    ) -> None:
        """Call one hook of all callbacks; a hook that no callback has costs nothing."""
        if result is not None:  # every result comes here: no dict of arguments is made and merged
            for handler in self._served[hook]:
                try:
                    handler(iteration=iteration, trials=trials, trial=trial, result=result)
                except Exception as error:
                    raise _failed(handler, hook, error) from error
            return
        if hook in _STEPS:  # so does every step
            for handler in self._served[hook]:
                try:
                    handler(iteration=iteration, trials=trials)
                except Exception as error:
                    raise _failed(handler, hook, error) from error
            return
        if trial is not None:
            info["trial"] = trial
        if hook in _CHANGED:
            self._fire_changed(hook, iteration, trials, info)
        elif self._served.get(hook):
            self._call(hook, {"iteration": iteration, "trials": trials, **info})

    def _fire_changed(self, hook: str, iteration: int, trials: Sequence[Trial], info: dict[str, Any]) -> None:
        """Call hooks whose arguments differ; a restore follows the start of a trial with a checkpoint."""
        if not self._served[hook] and not self._served["on_trial_restore"]:
            return
        if hook != "on_experiment_end":
            info["iteration"] = iteration
        if hook == "on_checkpoint":
            info["checkpoint"] = info["trial"].handle(info["checkpoint"])
        self._call(hook, {"trials": trials, **info})
        if hook == "on_trial_start" and info["trial"].newest is not None:
            self._call("on_trial_restore", {"trials": trials, **info})

    def _call(self, hook: str, info: dict[str, Any]) -> None:
        for handler in self._served[hook]:
            _called(handler, hook, **info)

    def get_state(self) -> dict[int, Any] | None:
        """Return the states by position; None when no callback has any."""
        states: dict[int, Any] = {}
        for position, callback in enumerate(self.callbacks):
            for get_state in _handlers([callback], "get_state"):
                if (state := _called(get_state, "get_state")) is not None:
                    states[position] = state
        return states or None

    def set_state(self, states: dict[int, Any]) -> None:
        """Give each callback the state that the one at its position had saved."""
        for position, callback in enumerate(self.callbacks):
            for set_state in _handlers([callback], "set_state") if position in states else ():
                _called(set_state, "set_state", states[position])

    def save_state(self) -> bytes | None:
        """Return `get_state` as bytes, for the experiment's store; None: there is nothing to save."""
        states = self.get_state()
        if states is None:
            return None
        try:
            saved = by_value.dumps(states)
        except Exception as error:
            names = ", ".join(type(self.callbacks[position]).__name__ for position in states)
            raise TuneError(
                f"the state of {names} cannot be pickled ({message_text(error)}): return plain data"
            ) from error
        return saved

    def restore_state(self, state: bytes | None) -> None:
        """Restore what `save_state` returned; RuntimeError when nothing had been saved."""
        if state is None:
            raise RuntimeError("no callback had saved a state, so there is none to restore")
        import pickle

        self.set_state(pickle.loads(state))


def _merged(callbacks: Sequence[object]) -> list[object]:
    """Return callbacks with neighbours joined that can be served as one (our file loggers)."""
    served: list[object] = []
    for callback in callbacks:
        merge = getattr(served[-1], "merged_with", None) if served else None
        both = merge(callback) if merge is not None else None
        if both is None:
            served.append(callback)
        else:
            served[-1] = both
    return served


def _handlers(callbacks: Iterable[object], hook: str) -> tuple[_Handler, ...]:
    """Return the hook of each callback that overrides it: the empty ones of the base class are left out."""
    empty = getattr(Callback, hook)
    found = []
    for callback in callbacks:
        handler = getattr(callback, hook, None)
        if handler is not None and getattr(handler, "__func__", None) is not empty:
            found.append(handler)
    return tuple(found)


def _called(handler: _Handler, hook: str, *arguments: object, **info: object) -> Any:  # noqa: ANN401
    """Call a hook, and return what it returns; an error names the callback."""
    try:
        return handler(*arguments, **info)
    except Exception as error:
        raise _failed(handler, hook, error) from error


def _failed(handler: _Handler, hook: str, error: Exception) -> TuneError:
    """Return an error that names the callback, and is also of the type that it raised."""
    name = type(getattr(handler, "__self__", handler)).__name__
    return as_plugin_error(
        error,
        f"callback {name}.{hook} raised {error_text(error)}. "
        f"Fix the callback, or leave it out of RunConfig.callbacks",
    )


def _accepts(handler: Callable[..., Any], info: dict[str, Any]) -> bool:
    try:
        inspect.signature(handler).bind(**info)
    except TypeError:
        return False
    except ValueError:
        return True  # no signature
    return True


def _warn_old_setup(callback: object) -> None:
    warnings.warn(
        f"{type(callback).__name__}.setup does not accept the arguments it is called with; "
        f"write it as `def setup(self, stop=None, num_samples=None, total_num_samples=None, **info)`",
        FutureWarning,
        stacklevel=3,
    )
