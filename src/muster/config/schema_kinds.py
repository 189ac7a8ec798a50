"""Kinds of values in the cluster file, with the bounds beyond which a number is a slip of the pen."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from muster.base.resources import MAX_QUANTITY

TEN_YEARS_S = 315_360_000
MANY = 1_000_000  # machines: more than anybody has; where `inf` is allowed, it means this

Count = Annotated[int, Meta(ge=0, le=MANY)]
PositiveCount = Annotated[int, Meta(ge=1, le=MANY)]
Quantity = Annotated[float, Meta(ge=0, le=MAX_QUANTITY)]
Price = Annotated[float, Meta(ge=0, le=1_000_000)]
Speed = Annotated[float, Meta(ge=0, le=1_000_000)]
Minutes = Annotated[float, Meta(ge=0, le=5_256_000)]  # ten years
Seconds = Annotated[float, Meta(ge=0, le=TEN_YEARS_S)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=TEN_YEARS_S)]
Interval = Annotated[float, Meta(ge=0.05, le=86_400)]  # between two looks of the monitor
Priority = Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Bytes = Annotated[int, Meta(ge=0, le=2**50)]


class Market(Enum):
    """How a machine is bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
