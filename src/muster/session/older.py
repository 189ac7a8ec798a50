"""Accept forms of the API that older versions of Ray had, each with a warning that names today's form.

MUSTER_OLDER_API=0 turns the layer off: the same sentences are errors then.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

VARIABLE = "MUSTER_OLDER_API"
_SKIPPED = ("muster.", "importlib.", "contextlib.", "posixpath.", "ray.")
DICT_CHECKPOINT = "_dict_checkpoint.pkl"  # what `save_checkpoint` returned
_RETURNED_FILE = ".returned_file"
pending: list[str] = []  # what `checkpoint_dir` has made and no report has taken


def is_on() -> bool:
    return os.environ.get(VARIABLE) != "0"  # noqa: TID251 - trials import this before `host`


def accept_older(what: str, now: str) -> None:
    """Warn that a form is of an older Ray; raise DeprecationWarning where the layer is off."""
    text = f"{what} does not exist any more in Ray: {now}"
    if not is_on():
        raise DeprecationWarning(text)
    warn_user(text)


def warn_user(text: str) -> None:
    """Show a DeprecationWarning at the line of the user's script."""
    warnings.warn(text, DeprecationWarning, stacklevel=_users_level())


def _users_level() -> int:
    """Return how far up the first frame is that is neither muster's nor of Python's own machinery."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(_SKIPPED):
        frame, level = frame.f_back, level + (not frame.f_code.co_filename.startswith("<frozen importlib"))
    return level


def older_metrics(metrics: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of `report(loss=1)`; TypeError where nothing is reported."""
    if not named or (metrics is not None and not isinstance(metrics, Mapping)):
        raise TypeError("report(): needs a dict with a name per value, e.g. report({'loss': 0.5})")
    accept_older(f"report({(first := next(iter(named)))}=...)", f"pass a dict, report({{{first!r}: ...}})")
    return {**(metrics or {}), **named}


@contextmanager
def checkpoint_dir(step: int | None = None) -> Iterator[str]:
    """Yield a directory for a checkpoint, which the next report takes: Ray 1's `tune.checkpoint_dir`."""
    import tempfile

    from muster.session.session import current

    accept_older("tune.checkpoint_dir", "pass report(metrics, checkpoint=Checkpoint.from_directory(path))")
    session = current()  # scripts read the trial's name in the path
    place = None if session is None else session.context.get_trial_dir()
    folder = tempfile.mkdtemp(prefix=f"checkpoint-{step}-", dir=place)
    yield folder
    pending.append(folder)


@contextmanager
def pending_directory() -> Iterator[str]:
    """Yield what `checkpoint_dir` has made, and delete it when it is reported."""
    import shutil

    try:
        yield pending[-1]
    finally:
        for folder in pending:
            shutil.rmtree(folder, ignore_errors=True)
        pending.clear()


def dict_directory(data: dict[str, Any]) -> str:
    """Return a directory of one file with the dict, for Ray 2.0's `Checkpoint.from_dict`."""
    import tempfile

    from muster.base import by_value

    accept_older("Checkpoint.from_dict", "write files and use Checkpoint.from_directory(path)")
    folder = tempfile.mkdtemp(prefix="checkpoint-dict-")
    with open(os.path.join(folder, DICT_CHECKPOINT), "wb") as stream:
        stream.write(by_value.dumps(data))
    return folder


def _to_dict(checkpoint: Any) -> dict[str, Any]:  # noqa: ANN401 - a Checkpoint
    with checkpoint.as_directory() as folder, open(os.path.join(folder, DICT_CHECKPOINT), "rb") as stream:
        return dict(pickle.load(stream))


def keep_returned_file(file: str, folder: str, who: str) -> None:
    """Remember which file of a checkpoint `save_checkpoint` returned, for `load_checkpoint`."""
    accept_older(f"{who}.save_checkpoint with a file as its value", "return the directory, or a dict")
    with open(os.path.join(folder, _RETURNED_FILE), "w", encoding="utf-8") as stream:
        stream.write(file)


def returned_path(folder: str) -> str:
    """Return the file of the checkpoint that `save_checkpoint` returned, else the directory."""
    try:
        with open(os.path.join(folder, _RETURNED_FILE), encoding="utf-8") as stream:
            return os.path.join(folder, stream.read())
    except FileNotFoundError:
        return folder


def directory_of(file: str, fix: str) -> str:
    """Return the checkpoint whose `save_checkpoint` returned this file; ValueError if no checkpoint did."""
    folder = os.path.dirname(file)
    if not is_on() or returned_path(folder) != file:
        raise ValueError(f"Checkpoint({file!r}): is a file, and {fix}")
    accept_older("a file of a checkpoint as the checkpoint", "pass its directory")
    return folder


_READ = "read its files with `with checkpoint.as_directory() as path:`"
_PATH = ("value", "dir_or_data", "local_path", "uri")
CHECKPOINT = {"to_dict": _READ, **dict.fromkeys(_PATH, "use checkpoint.path")}  # attributes, today's form


def checkpoint_attribute(checkpoint: Any, name: str) -> Any:  # noqa: ANN401 - one of CHECKPOINT
    accept_older(f"Checkpoint.{name}", CHECKPOINT[name])
    return checkpoint.path if name in _PATH else lambda: _to_dict(checkpoint)
