"""Follow Ray's scoring rule and Ray's choices, computing each distinct case once."""

from __future__ import annotations

from muster.cluster.planner.utilization.solve import solve_utilization

__all__ = ["solve_utilization"]
