"""Run a function as a class trainable, one report per step; function_trainable.py exports it.

A Tuner runs the function of such a class as it is; the thread here is for calls of `train()`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, ClassVar

from muster.engines.worker.run_trainable import report_output
from muster.session.checkpoint import Checkpoint
from muster.session.progress import Progress
from muster.session.session import PreemptionInfo, TrialStopped, TuneContext, current, install
from muster.tune.trainable.function_trainable import checked_function, trainable_name
from muster.tune.trainable.trainable import Trainable


class FunctionTrainable(Trainable):
    """A Trainable whose steps are the reports of a function; see wrap_function."""

    function: ClassVar[Callable[[dict[str, Any]], Any]]

    def setup(self, config: dict[str, Any]) -> None:
        self._outbox: SimpleQueue[dict[str, Any] | BaseException | None] = SimpleQueue()
        self._turn = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._outer = current()  # of the trial, when it runs in one
        self._is_stopped = False
        self._newest: Checkpoint | None = None
        self._last: dict[str, Any] = {}

    def step(self) -> dict[str, Any]:
        """Return the next report; after the last one, that one again with `done`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        answer = self._outbox.get()
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            self._outbox.put(None)  # whoever asks again gets the same answer
            return {**self._last, "done": True}
        self._last = answer
        return dict(answer)

    def _run(self) -> None:
        install(self)
        try:
            report_output(type(self).function(self.config), self.report)
        except TrialStopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by step(), in the thread that asks
            self._outbox.put(error)
            return
        self._outbox.put(None)

    @property
    def context(self) -> TuneContext:
        return self._context

    @property
    def progress(self) -> Progress:
        return self._progress

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Called in the function's thread; returns when the next step is asked for."""
        if checkpoint is not None:
            self._newest = checkpoint
        self._outbox.put(dict(metrics))
        self._turn.acquire()
        if self._is_stopped:
            raise TrialStopped

    def get_checkpoint(self) -> Checkpoint | None:
        return self._newest

    def get_preemption_info(self) -> PreemptionInfo | None:
        return None if self._outer is None else self._outer.get_preemption_info()

    def should_checkpoint(self) -> bool:
        return self._outer is not None and self._outer.should_checkpoint()

    def save_checkpoint(self, checkpoint_dir: str = "") -> None:
        """Copy the newest checkpoint that the function reported."""
        if self._newest is not None:
            with self._newest.as_directory() as folder:
                shutil.copytree(folder, checkpoint_dir, dirs_exist_ok=True)

    def load_checkpoint(self, checkpoint_result: str) -> None:
        self._newest = Checkpoint(checkpoint_result)

    def execute(self, fn: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - what `fn` returns
        return fn(self)

    def cleanup(self) -> None:
        self._is_stopped = True
        self._turn.release()


def wrap_function(train_func: Callable[..., Any], name: str | None = None) -> type[FunctionTrainable]:
    """Return a class whose steps are the reports of a function; a Tuner runs the function as it is.

    Example:
        >>> wrap_function(lambda config: {"y": config["x"] ** 2})({"x": 3}).train()["y"]
        9
    """
    own = name or trainable_name(train_func)
    body: dict[str, Any] = {
        "function": staticmethod(checked_function(train_func)),
        "__doc__": train_func.__doc__,
    }
    if own == trainable_name(train_func):
        body["_wrapped_function"] = staticmethod(train_func)  # see checked_trainable
    return type(own, (FunctionTrainable,), body)
