"""Serve the most demand with the cheapest machines: the `cost` objective. Entry point: `solve_cost`."""

from muster.cluster.planner.cost.solve import solve_cost, solve_detailed

__all__ = ["solve_cost", "solve_detailed"]
