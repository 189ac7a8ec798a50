"""muster.autoscaler: a cluster autoscaler in the manner of Ray's. Names are imported on first use."""

from __future__ import annotations
