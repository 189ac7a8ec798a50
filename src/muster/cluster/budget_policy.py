"""Define what a cluster may cost, and how what tuners expect is used to spend less; data."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Budget(Struct, frozen=True, kw_only=True):
    """What a cluster may cost; nothing is launched that could exceed it."""

    per_hour: float | None = None  # $ per hour of all machines at once
    total: float | None = None  # $ in all, or within each period
    period_s: float | None = None  # None: one budget forever; else how often it starts over


# A node that is emptied is given so long: its trials leave it with their next checkpoint, without hurry.
NEXT_CHECKPOINT_S = 600.0


class Consolidation(Enum):
    """Whether nodes with trials that can be moved are emptied to save money."""

    OFF = "off"
    CONSERVATIVE = "conservative"  # when the saving is more than twice the cost of the moves
    EAGER = "eager"  # when the saving is more than the cost of the moves


class ForecastPolicy(Struct, frozen=True, kw_only=True):
    """What tuners' forecasts are used for."""

    is_used: bool = True
    boot_s: float = 150.0  # from the request to a serving node, before any was measured
    least_probability: float = 0.5  # work less likely than this is not launched for
    keep_s: float = 15.0  # an idle node that nothing will need any more goes after this
    most_boot_share: float = 0.1  # so much of what new machines cost may be spent on their boot
    first_slots: int = 16  # trials of one shape to buy room for before it is known how long they take
