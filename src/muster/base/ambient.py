"""Bundles all nondeterminism; a composition root builds it once and hands it down."""

from __future__ import annotations

from dataclasses import dataclass

from muster.base.clock import Boot, Clock
from muster.base.ids import IdSource
from muster.base.rng import Seed


@dataclass(frozen=True)
class Ambient:
    """An Ambient holds time, fresh ids and randomness; nothing else may come from outside unannounced."""

    clock: Clock
    ids: IdSource
    seed: Seed
    boot: Boot | None = None  # None: not known, so a restart has the wall clock alone
