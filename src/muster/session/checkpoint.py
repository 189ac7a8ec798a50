"""Define Checkpoint, a handle on a directory, local or on any fsspec filesystem. Knows no engine.

Files are locked with `fcntl.flock` where several processes share one download; on a platform without it
(Windows) each of them downloads for itself into a private directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from muster.errors import public
from muster.host.atomic_write import atomic_write
from muster.session import older

METADATA_FILE = ".metadata.json"
_ASK_DIRECTORY = "a Checkpoint is a directory: write files and use Checkpoint.from_directory(path)"
_READ_DIRECTORY = "a Checkpoint is a directory: read its files with `with checkpoint.as_directory() as path:`"
_URI = "use Checkpoint(uri) and checkpoint.path"
_PREPROCESSOR = "keep the preprocessor as a file in the checkpoint, or in its metadata"
_REMOVED = {
    **dict.fromkeys(("from_dict", "from_bytes", "from_object_ref"), _ASK_DIRECTORY),
    **dict.fromkeys(("from_uri", "to_uri", "uri"), _URI),
    **dict.fromkeys(("to_dict", "to_bytes", "to_object_ref", "get_internal_representation"), _READ_DIRECTORY),
    **dict.fromkeys(("get_preprocessor", "set_preprocessor"), _PREPROCESSOR),
}


def _removed(name: str) -> str:
    return f"Checkpoint.{name} does not exist any more; {_REMOVED[name]}"


class _ExplainRemoved(type):
    @public
    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401
        if name == "from_dict" and older.is_on():
            return lambda data: cls(older.dict_directory(data))
        if name == "from_uri" and older.is_on():
            older.accept_older("Checkpoint.from_uri", _URI)
            return cls
        if name in _REMOVED:
            raise AttributeError(_removed(name))
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


@public
class Checkpoint(metaclass=_ExplainRemoved):
    """A directory that holds the state of a trial.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> checkpoint = Checkpoint.from_directory(folder)
        >>> with checkpoint.as_directory() as path:
        ...     path == folder
        True
    """

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:  # noqa: ANN401
        """Take a path, or a URL that fsspec knows; with `filesystem`, a path on that filesystem."""
        self.path = os.fspath(path)
        self._filesystem = as_fsspec(filesystem)
        self._token = os.urandom(16).hex()  # travels with pickles: copies of a handle share one download
        if filesystem is None and "://" in self.path:
            self._open_url(self.path)
        elif filesystem is None and os.path.isfile(self.path):
            self.path = older.directory_of(self.path, _ASK_DIRECTORY)

    def _open_url(self, url: str) -> None:
        if url.startswith("file://"):
            self.path = url[len("file://") :]
            return
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        self._filesystem, self.path = url_to_fs(url)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a handle on a local directory; nothing is copied."""
        return cls(path)

    @property
    def filesystem(self) -> Any:  # noqa: ANN401 - fsspec has no types
        """The fsspec filesystem on which `path` is."""
        if self._filesystem is None:
            from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

            self._filesystem = LocalFileSystem()
        return self._filesystem

    @property
    def _is_local(self) -> bool:
        return self._filesystem is None or "file" in _protocols(self._filesystem)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy to `path` (default: a temporary directory, shared by concurrent callers) and return it."""
        target = self._temporary_directory() if path is None else os.path.normpath(os.fspath(path))
        with only_one(f"{target}.lock", removes=True):
            if path is not None or not os.path.isdir(target):
                self._fetch(target)
        return target

    def _fetch(self, target: str) -> None:
        import shutil

        if self._is_local and not os.path.isdir(self.path):
            raise FileNotFoundError(f"{self!r}: there is no such directory (any more)")
        existed = os.path.isdir(target)
        partial = target if existed else f"{target}.{os.getpid()}.partial"
        try:
            if self._is_local:
                shutil.copytree(self.path, partial, dirs_exist_ok=True)
            else:
                self.filesystem.get(self.path.rstrip("/") + "/", partial, recursive=True)
            if not existed:
                os.rename(partial, target)
        except BaseException:
            if not existed:
                shutil.rmtree(partial, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local directory with the files: the directory itself if local, else a shared download."""
        if self._is_local:
            yield self.path
            return
        target = self._temporary_directory()
        reading = f"{target}.del_lock_{os.getpid()}"
        with open(reading, "w", encoding="utf-8"):
            pass
        try:
            yield self.to_directory()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(reading)
            # Removes a shared download when no process reads it any more.
            import glob
            import shutil

            if not glob.glob(f"{glob.escape(target)}.del_lock_*"):
                shutil.rmtree(target, ignore_errors=True)

    def _temporary_directory(self) -> str:
        import tempfile

        return os.path.join(tempfile.gettempdir(), f"checkpoint_tmp_{self._token}")

    def get_metadata(self) -> dict[str, Any]:
        """Return what `set_metadata` wrote; empty when nothing was written."""
        import json

        file = self._metadata_path()
        if self._is_local:
            if not os.path.exists(file):
                return {}
            with open(file, encoding="utf-8") as stream:
                found: dict[str, Any] = json.load(stream)
                return found
        if not self.filesystem.exists(file):
            return {}
        return dict(json.loads(self.filesystem.cat_file(file)))

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata, kept as JSON inside the checkpoint."""
        import json

        text = json.dumps(dict(metadata)).encode()
        if self._is_local:
            atomic_write(self._metadata_path(), text)
        else:
            self.filesystem.pipe_file(self._metadata_path(), text)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to the metadata."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def _metadata_path(self) -> str:
        return f"{self.path.rstrip('/')}/{METADATA_FILE}"

    @public
    def __fspath__(self) -> str:
        if not older.is_on() or not self._is_local:
            raise TypeError(f"a Checkpoint is not a path; {_READ_DIRECTORY}")
        older.accept_older("a Checkpoint as a path", "use checkpoint.path")
        return older.returned_path(self.path)

    @public
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name in older.CHECKPOINT and older.is_on():
            return older.checkpoint_attribute(self, name)
        if name in _REMOVED:
            raise AttributeError(_removed(name))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        same_place = (self._is_local and other._is_local) or self._filesystem == other._filesystem
        return self.path == other.path and bool(same_place)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        kind = "local" if self._is_local else _protocols(self._filesystem)[0]
        return f"Checkpoint(filesystem={kind}, path={self.path})"


class TrainingResult:
    """What `Trainable.save` returns and `restore` takes: a checkpoint and its result."""

    __slots__ = ("checkpoint", "metrics")

    def __init__(self, checkpoint: Checkpoint, metrics: Mapping[str, Any]) -> None:
        self.checkpoint = checkpoint
        self.metrics = dict(metrics)

    def __repr__(self) -> str:
        return f"TrainingResult(checkpoint={self.checkpoint!r}, metrics={self.metrics!r})"


def _protocols(filesystem: Any) -> tuple[str, ...]:  # noqa: ANN401
    names = getattr(filesystem, "protocol", type(filesystem).__name__)
    return (names,) if isinstance(names, str) else tuple(names)


@contextlib.contextmanager
def only_one(lock_file: str, *, removes: bool = False) -> Iterator[None]:
    """Let one process at a time in, where the platform has file locks; may remove the file at the end."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with contextlib.ExitStack() as stack:
        is_held = False
        while not is_held:  # whoever had the lock before may have removed its file
            stream = stack.enter_context(open(lock_file, "w", encoding="utf-8"))
            fcntl.flock(stream, fcntl.LOCK_EX)  # until the file is closed
            with contextlib.suppress(FileNotFoundError):
                is_held = os.path.samestat(os.fstat(stream.fileno()), os.stat(lock_file))
        try:
            yield
        finally:
            if removes:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(lock_file)


def as_fsspec(given: Any) -> Any:  # noqa: ANN401 - neither library has types
    """Return an fsspec file system; None stays None. ValueError for anything but fsspec's and pyarrow's."""
    if given is None or callable(getattr(given, "pipe_file", None)):
        return given
    inner = getattr(getattr(given, "handler", None), "fs", None)
    if inner is not None:  # pyarrow.fs.PyFileSystem(FSSpecHandler(...)): the one that was wrapped
        return as_fsspec(inner)
    if type(given).__module__.partition(".")[0] == "pyarrow":
        return _wrapped(given)
    raise ValueError(
        f"a file system must be one of fsspec or of pyarrow.fs, not a {type(given).__name__}: {given!r}"
    )


def as_arrow(given: Any) -> Any:  # noqa: ANN401
    """Return a file system of fsspec, None for this machine's, as pyarrow's; without pyarrow, as it is."""
    from fsspec.implementations.local import LocalFileSystem

    try:
        from pyarrow import fs  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return LocalFileSystem() if given is None else given
    if given is None or isinstance(given, LocalFileSystem):
        return fs.LocalFileSystem()
    is_wrapped = isinstance(given, _arrow_class())  # one of pyarrow's own: the user's
    return given.fs if is_wrapped else fs.PyFileSystem(fs.FSSpecHandler(given))


def _wrapped(given: Any) -> Any:  # noqa: ANN401
    from pyarrow.fs import LocalFileSystem  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if isinstance(given, LocalFileSystem):
        from fsspec.implementations.local import LocalFileSystem as Local

        return Local()
    return _arrow_class()(given)


@cache
def _arrow_class() -> Any:  # noqa: ANN401
    """Load fsspec and pyarrow, so it runs only when a user passes a file system of pyarrow."""
    from fsspec.implementations.arrow import ArrowFSWrapper  # type: ignore[import-untyped]

    class ArrowFiles(ArrowFSWrapper):  # type: ignore[misc] # fsspec has no types
        """ArrowFiles strips leading slashes: pyarrow lists names without, and fsspec compares text."""

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path)).lstrip("/")

    return ArrowFiles
