"""The `utilization` objective: Ray's scoring rule, Ray's choices."""

from __future__ import annotations

from muster.cluster.binpack.request import PackProblem, PackSolution
from muster.cluster.binpack.utilization.plain import solve_naively


def solve_utilization(problem: PackProblem) -> PackSolution:
    """Where the demand goes, and which machines to buy for the rest."""
    return solve_naively(problem)
