"""Derive randomness by named stream, and bundles all nondeterminism; the only file to build a `Random`."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.base.clock import Boot, Clock
    from muster.base.ids import IdSource

Stream = random.Random  # the type of a stream, for annotations


@dataclass(frozen=True)
class Seed:
    """The one number from which every stream of a run is derived.

    Streams are independent by name, so a new consumer never shifts another's draws.
    """

    value: int

    def derive(self, name: str) -> Stream:
        digest = hashlib.sha256(f"{self.value}/{name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))


@contextmanager
def global_generators_at(seed: int) -> Iterator[None]:
    """Make Python's and numpy's global generators follow `seed` inside the block.

    For a user's function that draws from them: with the same seed it returns the same, and afterwards the
    generators continue as if the function had not been called.
    """
    before = random.getstate()
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    numpy_before = None if numpy is None else numpy.get_state()
    random.seed(seed)
    if numpy is not None:
        numpy.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        if numpy is not None:
            numpy.set_state(numpy_before)


@dataclass(frozen=True)
class Ambient:
    """Time, fresh ids and randomness: a composition root builds it once and hands it down."""

    clock: Clock
    ids: IdSource
    seed: Seed
    boot: Boot | None = None  # None: not known, so a restart has the wall clock alone
