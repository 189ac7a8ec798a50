"""The `utilization` objective: Ray's scoring rule and Ray's choices, at the cost of the distinct cases."""

from __future__ import annotations

from muster.cluster.binpack.utilization.solve import solve_utilization

__all__ = ["solve_utilization"]
