"""Converts file systems: those that users pass to fsspec, which our own code uses, and back to pyarrow."""

from __future__ import annotations

from functools import cache
from typing import Any


def as_fsspec(given: Any) -> Any:  # noqa: ANN401 - neither library has types
    """Returns an fsspec file system; None stays None. ValueError for anything but fsspec's and pyarrow's."""
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
    """Returns a file system of fsspec, None for this machine's, as pyarrow's; without pyarrow, as it is."""
    from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

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
        from fsspec.implementations.local import (
            LocalFileSystem as Local,
        )

        return Local()
    return _arrow_class()(given)


@cache
def _arrow_class() -> Any:  # noqa: ANN401
    """Loads fsspec and pyarrow, so it runs only when a user passes a file system of pyarrow."""
    from fsspec.implementations.arrow import ArrowFSWrapper  # type: ignore[import-untyped]

    class ArrowFiles(ArrowFSWrapper):  # type: ignore[misc] # fsspec has no types
        """ArrowFiles strips leading slashes: pyarrow lists names without, and fsspec compares text."""

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path)).lstrip("/")

    return ArrowFiles
