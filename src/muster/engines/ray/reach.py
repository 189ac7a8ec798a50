"""Reach: what a node is told of a remote storage, and whether it can use it. Goes pickled into `Terms`."""

from __future__ import annotations

import os
import pickle
from typing import Any, NamedTuple

from muster.errors import MusterError
from muster.stores.storage import MARKER, Storage


class Reach(NamedTuple):
    """A storage that every machine reaches, and the driver's directory that is copied there."""

    uri: str  # of the experiment
    filesystem: Any  # the user's own, or None
    root: str  # the driver's directory of the experiment
    with_artifacts: bool = False  # what trials write beside their checkpoints goes there too
    reserved: tuple[str, ...] = ()  # files of a trial's directory that only the driver writes

    def pickled(self) -> bytes:
        """Raises what pickling the user's file system raises."""
        import cloudpickle  # type: ignore[import-untyped]

        blob: bytes = cloudpickle.dumps(tuple(self))
        return blob

    @staticmethod
    def unpickled(blob: bytes) -> Reach:
        return Reach(*pickle.loads(blob))

    def storage(self) -> Storage:
        return Storage(self.uri, self.filesystem)

    def name_of(self, path: str) -> str | None:
        """What a path of the driver's is called in the storage; None for one that is not copied there."""
        prefix = f"{self.root.rstrip(os.sep)}{os.sep}"
        return path[len(prefix) :].replace(os.sep, "/") if path.startswith(prefix) else None

    def problem(self) -> str:
        """Why this node cannot use it; empty when it can."""
        try:
            if self.storage().exists(MARKER):
                return ""
        except MusterError as error:
            return str(error)
        return (
            f"what the driver wrote to {self.uri} is not there: it is not the same storage on every machine"
        )
