"""The `cost` objective: the cheapest machines for the most demand. Entry point: `solve_cost`."""

from muster.cluster.binpack.cost.solve import solve_cost, solve_detailed

__all__ = ["solve_cost", "solve_detailed"]
