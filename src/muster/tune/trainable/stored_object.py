"""Keeps large parameters of a trainable in files, named by a hash of their content.

`with_parameters` writes them to a directory of this process. `execution.restore` keeps them with the experiment,
for drivers that resume it. Trials map the file that they can reach: the process's, the experiment's, or a copy
that they fetch from its remote storage.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import hashlib
import mmap
import os
import pickle
import shutil
import stat
import tempfile
import threading
from typing import Any

from muster.base import by_value
from muster.base.clock import SystemClock
from muster.errors import StoreError, TuneError
from muster.host.atomic_write import replacing
from muster.session.session import current
from muster.stores.storage import Storage, with_retries
from muster.tune.trainable.packing import keep_owners_of_refs

SMALL = 16 * 1024  # bytes that may as well travel with the code
FOLDER = "parameters"  # of the experiment's directory
_ALIGN = 64  # what numpy likes its data to begin at
_NAME = "muster-parameters"
_known: dict[str, StoredObject] = {}  # of this process, by digest
_opened: dict[tuple[str, str], Any] = {}
_opening = threading.Lock()
_own: list[str] = []  # the directory of this process, once it has one


class StoredObject:
    """A StoredObject is pickled as the digest of a file with its value, or as the value when that is small."""

    __slots__ = ("_content", "_path", "digest", "name")

    def __init__(self, value: object, name: str) -> None:
        """Stores a value; ValueError when it cannot be pickled, TuneError when it cannot be written."""
        parts = _pickled(value, name)
        self.name, self.digest, self._path = name, "", ""
        self._content: bytes | None = None
        if sum(map(len, parts)) <= SMALL:
            self._content = pickle.dumps([bytes(part) for part in parts])
        else:
            self._path = _written(parts, name)
            self.digest = os.path.basename(self._path)
            _known[self.digest] = self

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            setattr(self, name, value)
        if self.digest:
            _known.setdefault(self.digest, self)

    def load(self) -> Any:  # noqa: ANN401 - the user's value
        """Returns the value, which is read once per process."""
        if self._content is not None:
            head, *buffers = pickle.loads(self._content)
            return pickle.loads(head, buffers=[bytearray(buffer) for buffer in buffers])
        with _opening:
            key = self.name, self.digest  # a trial may write to one of two equal arrays
            if key not in _opened:
                _opened[key] = _mapped(self._file(), self.name)
            return _opened[key]

    @property
    def is_here(self) -> bool:
        """Returns whether the process that made this object still keeps it on this machine."""
        return os.path.exists(self._path)

    def is_in(self, folder: str | os.PathLike[str]) -> bool:
        """Returns whether an experiment's directory holds this object, undamaged."""
        return _digest_of(os.path.join(folder, FOLDER, self.digest)) == self.digest

    def keep_in(self, folder: str | os.PathLike[str]) -> None:
        """Writes the file into an experiment's directory, in one step; raises OSError."""
        if self.is_here:
            target = os.path.join(folder, FOLDER, self.digest)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with replacing(target) as draft:
                _link_or_copy(self._path, draft)

    def fetch(self, storage: Storage, folder: str | os.PathLike[str]) -> str:
        """Returns a copy of the file on the experiment's storage; StoreError when it is missing or damaged."""
        target = os.path.join(folder, self.digest)
        os.makedirs(folder, exist_ok=True)
        with replacing(target) as draft:
            with_retries(lambda: storage.download_file(f"{FOLDER}/{self.digest}", draft), SystemClock())
            if _digest_of(draft) != self.digest:
                raise StoreError(f"{storage.join(FOLDER, self.digest)}: is damaged")
        return target

    def _file(self) -> str:
        """Returns a file with the value that this process can read."""
        session = current()
        place = None if session is None or self.is_here else session.context.get_storage()
        if place is None:
            return self._path
        here = os.path.join(os.path.dirname(place.trial_working_directory), FOLDER, self.digest)
        if place._remote is None or os.path.exists(here):
            return here
        scratch = _scratch()
        for other in glob.glob(os.path.join(os.path.dirname(scratch), "*", self.digest)):
            with contextlib.suppress(OSError):  # another process of this node, which may end now, fetched it
                os.link(other, os.path.join(scratch, self.digest))
                return os.path.join(scratch, self.digest)
        return self.fetch(Storage(*place._remote), scratch)


def objects_in(code: bytes) -> list[StoredObject]:
    """Returns the objects in files that a trainable, pickled or unpickled in this process, refers to."""
    return [each for digest, each in _known.items() if digest.encode() in code]


def _digest_of(path: str) -> str:
    """Returns the hash of a file's content; "" when there is no such file."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def _pickled(value: object, name: str) -> list[Any]:
    """Returns the pickle, and the buffers that stay out of it."""
    keep_owners_of_refs()
    buffers: list[Any] = []

    def keep_out(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True  # not in one piece: goes into the pickle
        return False

    try:
        head = by_value.dumps(value, keep_out)
    except Exception as error:
        raise ValueError(
            f"with_parameters: {name}, a {type(value).__name__}, cannot be pickled "
            f"({type(error).__name__}: {error}); make it inside of the trainable instead"
        ) from error
    return [head, *buffers]


def _written(parts: list[Any], name: str) -> str:
    """Writes a file, named by its digest: the lengths of all parts, then each of them at an aligned place."""
    folder, digest = _scratch(), hashlib.sha256()
    lengths = pickle.dumps([len(part) for part in parts])
    draft = os.path.join(folder, f"{threading.get_ident()}.partial")
    try:
        with open(draft, "wb") as stream:
            at = 0
            for part in (len(lengths).to_bytes(8, "little") + lengths, *parts):
                for piece in (bytes(-at % _ALIGN), part):
                    stream.write(piece)
                    digest.update(piece)
                    at += len(piece)
        path = os.path.join(folder, digest.hexdigest())
        os.replace(draft, path)
    except OSError as error:
        size = sum(map(len, parts)) / 1e6
        raise TuneError(
            f"with_parameters: {name} ({size:.0f} MB) cannot be written to {folder} ({error}); "
            "free some space there, or set TMPDIR to a directory with more"
        ) from error
    return path


def _mapped(path: str, name: str) -> Any:  # noqa: ANN401
    try:
        with open(path, "rb") as stream:
            # Private pages: writing to an array changes neither the file nor what other trials see.
            view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise TuneError(
            f"with_parameters: {name} cannot be read here ({error}); Tuner.restore(path, "
            f"trainable=tune.with_parameters(..., {name}=...)) passes it again"
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
    """Returns the directory of this process; those of processes that were killed are removed on the way."""
    if _own and _own[0].endswith(f"-{os.getpid()}") and os.path.isdir(_own[0]):
        return _own[0]
    user = os.getuid() if hasattr(os, "getuid") else "user"
    home = os.path.join(tempfile.gettempdir(), f"{_NAME}-{user}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(home, mode=0o700)
    if not _is_private(home):
        raise TuneError(
            f"with_parameters: {home} is no directory that only you can write to; another user may "
            "have put it there: remove it, or set TMPDIR to a directory of yours"
        )
    _remove_orphans(home)
    folder = tempfile.mkdtemp(prefix="", suffix=f"-{os.getpid()}", dir=home)
    _own[:] = [folder]
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def _is_private(path: str) -> bool:
    """Returns whether this is a true directory, no link to one, that belongs to this user alone."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return False
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a fork must not take its parent's files along
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(home: str) -> None:
    for name in os.listdir(home):
        pid = name.rpartition("-")[2]
        folder = os.path.join(home, name)
        if pid.isdigit() and _is_private(folder) and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # there, signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's, or a platform without pids
    return True


