"""Short ways to ask the engine something and to read its answer."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.builders import offer

from muster.cluster.model import NodeType
from muster.cluster.planner.request import DemandKind, PackNode, PackProblem, PackSolution, TypeOffer
from muster.cluster.planner.utilization import solve_utilization


def ask(types: Sequence[NodeType | TypeOffer], nodes: Sequence[PackNode] = (), **changes) -> PackSolution:
    """What the engine answers; types become offers with all of their maximum free."""
    offers = tuple(t if isinstance(t, TypeOffer) else offer(t) for t in types)
    changes.setdefault("room", None)
    changes.setdefault("demands", ())
    return solve_utilization(
        PackProblem(nodes=tuple(nodes), offers=offers, **{k: _tupled(v) for k, v in changes.items()})
    )


def _tupled(value):
    return tuple(value) if isinstance(value, list) else value


def launched(*arguments, **changes) -> tuple[dict[str, int], int]:
    """The machines launched, and how many single requests found no place."""
    solution = ask(*arguments, **changes)
    return dict(solution.launch), sum(u.amount for u in solution.unplaced if not u.is_gang)


def on_nodes(solution: PackSolution, kind: DemandKind = DemandKind.DEMAND) -> dict[int, int]:
    """Node number -> requests placed there; -1 stands for new machines."""
    found: dict[int, int] = {}
    for placement in solution.placements:
        if placement.kind is kind:
            found[placement.node] = found.get(placement.node, 0) + placement.amount
    return dict(sorted(found.items()))


def lost_gangs(solution: PackSolution) -> dict[int, int]:
    """Gang -> bundles, of those not placed."""
    return {entry.item: entry.amount for entry in solution.unplaced if entry.is_gang}
