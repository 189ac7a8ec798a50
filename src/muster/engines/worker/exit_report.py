"""Make a worker's ExitReport: an exception becomes kind, message, traceback and pickle."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from muster.base.framing import pickled
from muster.base.untrusted import message_text
from muster.engines.worker.protocol import ExitReport
from muster.engines.worker.run_trainable import IMPORT_OURS, CheckpointMissing, ResetRefused
from muster.engines.worker.session import UnsendableResult
from muster.errors import NeverReported, hide_frames
from muster.host.machine import environment

MESSAGE_LINES = 20


class CodeUnreadable(Exception):
    """The trainable or its config cannot be unpickled in this process."""


def failed_exit(error: BaseException, *, whole_message: bool = False) -> ExitReport:
    """Return the report of a trial that raised."""
    cause = error.__cause__ if isinstance(error, CodeUnreadable) and error.__cause__ else error
    hide_frames(cause)
    _explain_relative_path(cause)
    _explain_old_report(cause)
    lines = traceback.format_exception(type(cause), cause, _user_part(cause.__traceback__))
    text = "".join(lines).rstrip("\n")
    message = text if whole_message else shortened(text)
    kind = next(kind for known, kind in _KINDS.items() if isinstance(error, known))
    return ExitReport(False, False, kind, message, text, _pickle_of(cause))


def _explain_relative_path(error: BaseException) -> None:
    """Add where a file was looked for: most scripts open files beside them, and trials work elsewhere."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    home = environment().get("TUNE_ORIG_WORKING_DIR", "")
    is_here = not home or environment().get("RAY_CHDIR_TO_TRIAL_DIR", "1") == "0"
    is_program = any(frame.name == "_execute_child" for frame in traceback.extract_tb(error.__traceback__))
    if not isinstance(name, str) or os.path.isabs(name) or is_here or is_program:
        return
    there = os.path.join(home, name)
    fix = f"use {there!r}" if os.path.exists(there) else "use an absolute path"
    error.strerror = f"{error.strerror} in the trial's own directory, where it runs; {fix}"  # type: ignore[attr-defined]
    error.args = (error.args[0], error.strerror, *error.args[2:])  # type: ignore[attr-defined]  # it is pickled


def _explain_old_report(error: BaseException) -> None:
    """Add what to write to the errors of `report(loss=0.5)` and `ray.train.report`; a right call is free."""
    text = message_text(error)
    if type(error) is TypeError and text.startswith("report() got an unexpected keyword argument "):
        name = text.rpartition(" ")[2]
        error.args = (f"{text}: metrics are given in one dict, report({{{name}: ...}})",)
    elif type(error) is TypeError and text.startswith("report() takes from 0 to 1 positional"):
        error.args = (f"{text}: write report({{'loss': ...}}, checkpoint=...)",)
    elif type(error) is RuntimeError and "outside of a Ray Train training function" in text:
        name = text.partition("`")[2].partition("`")[0]
        error.args = (f"ray.train.{name}() works in Ray Train's workers only: in a trial, {IMPORT_OURS}",)


def shortened(text: str) -> str:
    """Return the first line and, up to 20 lines, the last ones, because the error stands at the end."""
    lines = text.splitlines()
    if len(lines) <= MESSAGE_LINES:
        return text
    return "\n".join([lines[0], "  ...", *lines[-(MESSAGE_LINES - 2) :]])


_KINDS: dict[type[BaseException], str] = {
    MemoryError: "out-of-memory",
    NeverReported: "never-reported",
    ResetRefused: "reset-refused",
    CheckpointMissing: "start",
    UnsendableResult: "unpicklable",
    CodeUnreadable: "unpicklable",
    BaseException: "user-error",
}


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without muster's frames at the top; all of it when nothing else is left."""
    here = trace
    while here is not None and "muster.engines." in here.tb_frame.f_globals.get("__name__", ""):
        here = here.tb_next
    return here or trace


def _pickle_of(error: BaseException) -> bytes | None:
    import pickle

    try:
        if not error.args and not message_text(error):  # as of a MemoryError
            frames = traceback.extract_tb(_user_part(error.__traceback__))
            place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
            error.args = (f"{type(error).__name__}{place}",)
        data = pickled(error)
        pickle.loads(data)  # many exceptions pickle well and then cannot be built again
    except Exception:  # noqa: BLE001 - user exceptions may refuse in any way
        return None
    return data
