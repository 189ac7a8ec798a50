"""Keep large parameters of a trainable in files, named by a hash of their content.

`with_parameters` writes them to a directory of this process; `execution.restore` keeps them with the
experiment, for drivers that resume it. Trials map the file that they can reach: the process's, the
experiment's, or a copy that they fetch from its remote storage.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import mmap
import os
import pickle
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from muster.base import by_value
from muster.base.clock import SystemClock
from muster.base.untrusted import error_text, type_text
from muster.errors import StoreError, TuneError
from muster.host.atomic_write import replacing
from muster.host.scratch_directory import ScratchDirectory
from muster.session.session import current
from muster.stores.storage import PARAMETERS, Storage, with_retries
from muster.tune.trainable.function_trainable import keep_owners_of_refs

SMALL = 16 * 1024  # bytes that may as well travel with the code
_ALIGN = 64  # what numpy likes its data to begin at
_known: dict[str, StoredObject] = {}  # of this process, by digest
_opening = threading.Lock()
_PREFIX = "muster-parameters-"
_scratch = ScratchDirectory(_PREFIX)


class StoredObject:
    """Pickled as the digest of a file with its value; a small value as it is."""

    __slots__ = ("_content", "_path", "_value", "digest", "name")

    def __init__(self, value: object, name: str) -> None:
        """Store a value; ValueError when it cannot be pickled, TuneError when it cannot be written."""
        parts = _pickled(value, name)
        is_small = sum(map(len, parts)) <= SMALL
        self._path = "" if is_small else _written(parts, name)
        self._content = by_value.dumps(value) if is_small else b""
        self.name, self.digest = name, os.path.basename(self._path)
        _known[self.digest] = self

    def __getstate__(self) -> tuple[str, str, str, bytes]:
        return self.name, self.digest, self._path, self._content

    def __setstate__(self, state: tuple[str, str, str, bytes]) -> None:
        self.name, self.digest, self._path, self._content = state
        _known.setdefault(self.digest, self)

    def load(self) -> Any:  # noqa: ANN401 - the user's value
        """Return the value, which is read once; a trial may write to one of two equal arrays."""
        if self._content:
            return pickle.loads(self._content)
        with _opening:
            if not hasattr(self, "_value"):
                self._value = _mapped(self._file(), self.name)
            return self._value

    @property
    def is_here(self) -> bool:
        """Return whether the process that made this object still keeps it on this machine."""
        return os.path.exists(self._path)

    def is_kept(self, folder: Path, storage: Storage | None) -> bool:
        """Return whether an experiment's directory holds the file; if not, fetches it from the storage."""
        if _digest_of(folder / PARAMETERS / self.digest) == self.digest:
            return True
        try:
            return storage is not None and bool(self._fetch(storage, folder / PARAMETERS))
        except (StoreError, OSError):
            return False

    def keep_in(self, folder: Path) -> Path:
        """Return the file in an experiment's directory, which is written in one step; raises OSError."""
        target = folder / PARAMETERS / self.digest
        if self.is_here:
            target.parent.mkdir(exist_ok=True)
            with replacing(target) as draft:
                try:
                    os.link(self._path, draft)
                except OSError:  # another file system
                    shutil.copyfile(self._path, draft)
        return target

    def _fetch(self, storage: Storage, folder: Path) -> str:
        """Copy the file from the experiment's storage; StoreError when it is missing or damaged."""
        name, target, clock = f"{PARAMETERS}/{self.digest}", os.path.join(folder, self.digest), SystemClock()
        if not with_retries(lambda: storage.exists(name), clock):
            raise StoreError(f"{storage.join(name)}: does not exist")
        folder.mkdir(exist_ok=True)
        with replacing(target) as draft:
            with_retries(lambda: storage.download_file(name, draft), clock)
            if _digest_of(draft) != self.digest:
                raise StoreError(f"{storage.join(name)}: is damaged")
        return target

    def _file(self) -> str:
        """Return a file with the value that this process can read."""
        session = current()
        place = None if session is None or self.is_here else session.context.get_storage()
        if place is None:
            return self._path
        here = os.path.join(os.path.dirname(place.trial_working_directory), PARAMETERS, self.digest)
        if place._remote is None or os.path.exists(here):
            return here
        target = _scratch.path(self.digest)
        for other in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*", self.digest)):
            with contextlib.suppress(OSError):  # another process of this node, which may end now, fetched it
                if os.stat(other).st_uid == os.getuid():
                    os.link(other, target)
                    return target
        return self._fetch(Storage(*place._remote), Path(_scratch.path()))


def objects_in(code: bytes) -> list[StoredObject]:
    """Return the objects in files that a trainable, pickled or unpickled in this process, refers to."""
    return [each for digest, each in _known.items() if digest and digest.encode() in code]


def _digest_of(path: str | Path) -> str:
    """Return the hash of a file's content; "" when there is no such file."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def _pickled(value: object, name: str) -> list[Any]:
    """Return the pickle, and the buffers that stay out of it."""
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
            f"with_parameters: {name}, {type_text(value)}, cannot be pickled "
            f"({error_text(error)}); make it inside of the trainable instead"
        ) from error
    return [head, *buffers]


def _written(parts: list[Any], name: str) -> str:
    """Write a file, named by its digest: the lengths of all parts, then each of them at an aligned place."""
    folder, digest = _scratch.path(), hashlib.sha256()
    lengths = pickle.dumps([len(part) for part in parts])
    draft = os.path.join(folder, f"{os.getpid()}-{threading.get_ident()}.partial")
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
            f"with_parameters: {name} ({size:.0f} MB) cannot be written to {folder} ({error})",
            fix="free some space there, or set TMPDIR to a directory with more",
        ) from error
    return path


def _mapped(path: str, name: str) -> Any:  # noqa: ANN401
    try:
        with open(path, "rb") as stream:
            # Private pages: writing to an array changes neither the file nor what other trials see.
            view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise TuneError(
            f"with_parameters: {name} cannot be read here ({error})",
            fix=(f"Tuner.restore(path, trainable=tune.with_parameters(..., {name}=...)) passes it again"),
        ) from error
    size = int.from_bytes(view[:8], "little")
    place = 8 + size
    parts: list[memoryview] = []
    for length in pickle.loads(view[8:place]):
        place += -place % _ALIGN
        parts.append(view[place : place + length])
        place += length
    return pickle.loads(parts[0], buffers=parts[1:])
