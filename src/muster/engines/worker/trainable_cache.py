"""TrainableCache keeps the trainables of a fork server or worker: pickles that are opened once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TrainableCache:
    """Maps names to trainables."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._opened: dict[str, Any] = {}

    def put(self, name: str, blob: bytes) -> None:
        """Store a pickled trainable; a later one of the same name replaces the earlier."""
        self._blobs[name] = blob
        self._opened.pop(name, None)

    def get(self, name: str) -> Any:  # noqa: ANN401 - a function or class of the user
        """Return the trainable; raise what unpickling raises, and KeyError for an unknown name."""
        if name not in self._opened:
            if name not in self._blobs:
                raise KeyError(f"no trainable is registered as {name!r}")
            self._opened[name] = pickle.loads(self._blobs[name])
        return self._opened[name]

    @contextmanager
    def lent(self, name: str, trainable: Any) -> Iterator[None]:  # noqa: ANN401 - as above
        """Add a trainable for the duration of the block."""
        self._opened[name] = trainable
        try:
            yield
        finally:
            del self._opened[name]

    def load_all(self) -> None:
        """Open all that can be opened, so that their imports are done; the rest fails where it is used."""
        for name in self._blobs:
            try:
                self.get(name)
            except BaseException:  # noqa: BLE001 - user code; the trial that needs it reports it
                continue
