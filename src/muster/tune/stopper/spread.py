"""The population standard deviation, as numpy.std has it; NaN when a value is not finite."""

from __future__ import annotations

import math
from collections.abc import Collection


def spread(values: Collection[float]) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
