"""Ray's older name for the Keras callback of `muster.tune.integration.keras`."""

from __future__ import annotations

from muster.tune.integration.keras import ReportCheckpointCallback

__all__ = ["ReportCheckpointCallback"]
