"""Export the Keras callback of `muster.tune.integration.keras` under Ray's older name."""

from __future__ import annotations

from muster.tune.integration.keras import ReportCheckpointCallback

__all__ = ["ReportCheckpointCallback"]
