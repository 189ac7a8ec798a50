"""Ray's other import path of the same names."""

from __future__ import annotations

from muster.tune.utils.diagnose_serialization import (
    diagnose_serialization,
    validate_save_restore,
)
from muster.tune.utils.gpu import wait_for_gpu
from muster.tune.utils.slowness import date_str, warn_if_slow

__all__ = ["date_str", "diagnose_serialization", "validate_save_restore", "wait_for_gpu", "warn_if_slow"]
