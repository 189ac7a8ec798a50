"""Large objects on their way to trials: written to a file once, mapped into each process that asks.

Arrays are not copied: every process maps the same pages, and a trial that writes to one changes only its own.
`with_parameters` is the one caller. Files live as long as the process that wrote them.
"""

from __future__ import annotations

import atexit
import mmap
import os
import pickle
import shutil
import tempfile
import threading
from typing import Any

from muster.errors import TuneError

SMALL = 16 * 1024  # bytes that may as well travel with the code
_ALIGN = 64  # what numpy likes its data to begin at
_NAME = "muster-parameters"
_opened: dict[str, Any] = {}
_opening = threading.Lock()
_own: list[str] = []  # the directory of this process, once it has one
_count: list[int] = [0]


class Spooled:
    """A value that is pickled as the name of a file, or as itself when it is small."""

    __slots__ = ("_content", "_path")

    def __init__(self, value: object, name: str) -> None:
        """ValueError when it cannot be pickled, TuneError when it cannot be written."""
        parts = _pickled(value, name)
        self._content: bytes | None = None
        self._path = ""
        if sum(map(len, parts)) <= SMALL:
            self._content = pickle.dumps([bytes(part) for part in parts])
        else:
            self._path = _written(parts, name)

    def load(self) -> Any:  # noqa: ANN401 - the user's value
        """The value: read once per process."""
        if self._content is not None:
            head, *buffers = pickle.loads(self._content)
            return pickle.loads(head, buffers=[bytearray(buffer) for buffer in buffers])
        with _opening:
            if self._path not in _opened:
                _opened[self._path] = _mapped(self._path)
            return _opened[self._path]


def _pickled(value: object, name: str) -> list[Any]:
    """The pickle, and the buffers that stay out of it."""
    import cloudpickle  # type: ignore[import-untyped]  # it has no types

    buffers: list[Any] = []

    def keep_out(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True  # not in one piece: goes into the pickle
        return False

    try:
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=keep_out)
    except Exception as error:
        raise ValueError(
            f"with_parameters: {name}, a {type(value).__name__}, cannot be pickled "
            f"({type(error).__name__}: {error}); make it inside of the trainable instead"
        ) from error
    return [head, *buffers]


def _written(parts: list[Any], name: str) -> str:
    """A file: the lengths of all parts, then each of them at an aligned place."""
    folder = _scratch()
    _count[0] += 1
    path = os.path.join(folder, f"{_count[0]}")
    lengths = pickle.dumps([len(part) for part in parts])
    try:
        with open(path, "wb") as stream:
            stream.write(len(lengths).to_bytes(8, "little") + lengths)
            for part in parts:
                stream.write(bytes(-stream.tell() % _ALIGN))
                stream.write(part)
    except OSError as error:
        size = sum(map(len, parts)) / 1e6
        raise TuneError(
            f"with_parameters: {name} ({size:.0f} MB) cannot be written to {folder} ({error}); "
            "free some space there, or set TMPDIR to a directory with more"
        ) from error
    return path


def _mapped(path: str) -> Any:  # noqa: ANN401
    try:
        with open(path, "rb") as stream:
            # Private pages: writing to an array changes neither the file nor what other trials see.
            view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise TuneError(
            f"with_parameters: {path} cannot be read here ({error}); it exists only on the machine that "
            "started the experiment, and while that process is alive"
        ) from error
    size = int.from_bytes(view[:8], "little")
    place = 8 + size
    parts: list[memoryview] = []
    for length in pickle.loads(view[8:place]):
        place += -place % _ALIGN
        parts.append(view[place : place + length])
        place += length
    return pickle.loads(parts[0], buffers=parts[1:])


def _scratch() -> str:
    """The directory of this process; those of processes that were killed are removed on the way."""
    if _own and _own[0].endswith(f"-{os.getpid()}") and os.path.isdir(_own[0]):
        return _own[0]
    user = os.getuid() if hasattr(os, "getuid") else "user"
    home = os.path.join(tempfile.gettempdir(), f"{_NAME}-{user}")
    os.makedirs(home, mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and os.stat(home).st_uid != os.getuid():
        raise TuneError(
            f"with_parameters: {home} belongs to somebody else; set TMPDIR to a directory of yours"
        )
    _remove_orphans(home)
    folder = tempfile.mkdtemp(prefix="", suffix=f"-{os.getpid()}", dir=home)
    _own[:] = [folder]
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a fork must not take its parent's files along
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(home: str) -> None:
    for name in os.listdir(home):
        pid = name.rpartition("-")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(os.path.join(home, name), ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # there, signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's, or a platform that does not tell
    return True
