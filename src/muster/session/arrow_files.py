"""ArrowFiles: a file system of pyarrow as one of fsspec. Loads both, so it is imported only when needed."""

from __future__ import annotations

from fsspec.implementations.arrow import ArrowFSWrapper  # type: ignore[import-untyped]


class ArrowFiles(ArrowFSWrapper):  # type: ignore[misc] # fsspec has no types
    """Names never begin with a slash: pyarrow lists them without, and fsspec compares them as text."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path)).lstrip("/")
