"""Improve the end of a purchase."""

from __future__ import annotations

from muster.cluster.binpack.cost.arrays import Floats
from muster.cluster.binpack.cost.purchase import Till


def improve_tail(till: Till, value: Floats, rent: Floats) -> None:
    return
