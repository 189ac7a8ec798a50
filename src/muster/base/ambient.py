"""The one bundle of nondeterminism, built once in a composition root and handed down."""

from __future__ import annotations

from dataclasses import dataclass

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.base.rng import Seed


@dataclass(frozen=True)
class Ambient:
    """Time, fresh ids and randomness; nothing else in muster may come from outside unannounced."""

    clock: Clock
    ids: IdSource
    seed: Seed
