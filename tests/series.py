"""How much of a long series a test runs: a sample in `make test`, the whole of it in `make series`."""

from __future__ import annotations

import os

IS_WHOLE = bool(os.environ.get("MUSTER_SERIES"))


def length(sample: int, whole: int) -> int:
    """How many seeds, kills or runs."""
    return whole if IS_WHOLE else sample


def step(sample: int) -> int:
    """Every so many-th of a list is the sample."""
    return 1 if IS_WHOLE else sample
