"""Defines the callback with which trials that call a trainer of Ray Train report what its workers report.

Ray Train calls it in a process of its own, on the node of the trial. So it sends each result to the trial's
process, over a socket that only this user can open, and waits until the tuner has answered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from muster.session.session import Session, TrialStopped, current

__all__ = ["TuneReportCallback"]

_LOOK_S = 1.0  # how often the server checks whether the trial has ended


def _user_callback() -> type:
    """Returns Ray Train's base class; this module can be imported where Ray Train is not installed, too."""
    try:
        from ray.train import UserCallback
    except ImportError:
        return object
    found: type = UserCallback
    return found


class TuneReportCallback(_user_callback()):  # type: ignore[misc]
    """A TuneReportCallback reports what the worker of rank 0 reports: metrics, and where its checkpoint is.

    Make it inside the function of a trial: `ray.train.RunConfig(callbacks=[TuneReportCallback()])`.
    """

    def __init__(self) -> None:
        from ray import cloudpickle

        # The class goes by value, because its process may lack this package; what it names would go with it.
        module: Any = sys.modules[__name__]
        cloudpickle.register_pickle_by_value(module)
        self._path = module.ReportServer().path

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, Any]], checkpoint: Any) -> None:  # noqa: ANN401 - Ray's
        """Sends the result to the trial; raises, which ends the training, when the trial is to end."""
        from ray import cloudpickle

        result = dict(metrics[0])
        if checkpoint is not None:
            result["checkpoint_path"] = checkpoint.path
        try:
            with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as stream:
                connection.connect(self._path)
                cloudpickle.dump(result, stream)
                stream.flush()
                why_not = pickle.load(stream)
        except (OSError, EOFError):  # the trial has ended
            why_not = ""
        if why_not is not None:
            if not why_not:
                logging.disable()  # a stop is no error, and this process has nothing more to say
            raise RuntimeError(why_not or "the trial has been stopped")

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:  # noqa: ANN401
        """Does nothing: `fit()` raises, which ends the trial, unless Ray Train tries again."""


class ReportServer:
    """A ReportServer reports what a callback sends, in a thread of the trial, until the trial ends."""

    def __init__(self) -> None:
        session = current()
        if session is None:
            raise RuntimeError(
                "TuneReportCallback was made outside of a trial: make it inside the function of a trial, "
                "which calls the trainer's fit()"
            )
        self._session: Session = session
        self._folder = tempfile.mkdtemp(prefix="muster-train-")  # only this user may enter it
        self.path = os.path.join(self._folder, "socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._serve, name="muster-train", daemon=True).start()

    def _serve(self) -> None:
        with self._server:
            while current() is self._session:
                if select.select([self._server], [], [], _LOOK_S)[0]:
                    connection, _ = self._server.accept()
                    with contextlib.suppress(OSError), connection, connection.makefile("rwb") as stream:
                        self._answer(stream)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self, stream: Any) -> None:  # noqa: ANN401 - a socket's file
        """Reports one result; the answer is None, or why there is no next one, empty for a stop."""
        why_not: str | None = None
        try:
            self._session.report(pickle.load(stream))
        except TrialStopped:
            why_not = ""  # the workers end, fit() raises, and the trial with it
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a result is the trial's error
            why_not = f"{type(error).__name__}: {error}"
        pickle.dump(why_not, stream)
        stream.flush()
