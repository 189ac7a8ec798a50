"""Randomness by named stream; the only file allowed to build a `Random`."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

Stream = random.Random  # the type of a stream, for those who are handed one


@dataclass(frozen=True)
class Seed:
    """One number from which every stream of a run is derived.

    Streams are independent by name, so a new consumer never shifts another's draws.
    """

    value: int

    def derive(self, name: str) -> Stream:
        digest = hashlib.sha256(f"{self.value}/{name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))
