"""Makes a worker's ExitReport: an exception becomes kind, message, traceback and pickle."""

from __future__ import annotations

import traceback
from types import TracebackType

from muster.base.framing import pickled
from muster.engines.worker.protocol import ExitReport
from muster.engines.worker.run_trainable import CheckpointMissing, ResetRefused
from muster.engines.worker.session import UnsendableResult

MESSAGE_LINES = 20


class CodeUnreadable(Exception):
    """A CodeUnreadable means that the trainable or its config cannot be unpickled in this process."""


def failed_exit(error: BaseException, *, whole_message: bool = False) -> ExitReport:
    """Returns the report of a trial that raised."""
    cause = error.__cause__ if isinstance(error, CodeUnreadable) and error.__cause__ else error
    lines = traceback.format_exception(type(cause), cause, _user_part(cause.__traceback__))
    text = "".join(lines).rstrip("\n")
    message = text if whole_message else shortened(text)
    kind = next(kind for known, kind in _KINDS.items() if isinstance(error, known))
    return ExitReport(False, False, kind, message, text, _pickle_of(cause))


def shortened(text: str) -> str:
    """Returns the first line and, up to 20 lines, the last ones, because the error stands at the end."""
    lines = text.splitlines()
    if len(lines) <= MESSAGE_LINES:
        return text
    return "\n".join([lines[0], "  ...", *lines[-(MESSAGE_LINES - 2) :]])


_KINDS: dict[type[BaseException], str] = {
    MemoryError: "out-of-memory",
    ResetRefused: "reset-refused",
    CheckpointMissing: "start",
    UnsendableResult: "unpicklable",
    CodeUnreadable: "unpicklable",
    BaseException: "user-error",
}


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without muster's frames at the top; all of it when nothing else is left."""
    here = trace
    while here is not None and "muster.engines." in here.tb_frame.f_globals.get("__name__", ""):
        here = here.tb_next
    return here or trace


def _pickle_of(error: BaseException) -> bytes | None:
    import pickle

    try:
        data = pickled(error)
        pickle.loads(data)  # many exceptions pickle well and then cannot be built again
    except Exception:  # noqa: BLE001 - user exceptions may refuse in any way
        return None
    return data
