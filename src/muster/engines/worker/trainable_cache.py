"""The trainables of a zygote or worker: pickles that are opened once, and kept for retry when that fails."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TrainableCache:
    """Name to trainable."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._opened: dict[str, Any] = {}

    def put(self, name: str, blob: bytes) -> None:
        """A later one of the same name replaces the earlier."""
        self._blobs[name] = blob
        self._opened.pop(name, None)

    def get(self, name: str) -> Any:  # noqa: ANN401 - a function or class of the user
        """Open it if it is not; raises what unpickling raises, KeyError when nobody brought it."""
        if name not in self._opened:
            if name not in self._blobs:
                raise KeyError(f"no trainable is registered as {name!r}")
            self._opened[name] = pickle.loads(self._blobs[name])
        return self._opened[name]

    @contextmanager
    def lent(self, name: str, trainable: Any) -> Iterator[None]:  # noqa: ANN401 - as above
        """Have this one too, for a while."""
        self._opened[name] = trainable
        try:
            yield
        finally:
            del self._opened[name]

    def load_all(self) -> None:
        """Open all that can be opened, so that what they import is warm. The rest fails where it is used."""
        for name in self._blobs:
            try:
                self.get(name)
            except BaseException:  # noqa: BLE001 - user code; told to the trial that needs it
                continue
