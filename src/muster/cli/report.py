"""PlanReport: what `muster plan --json` prints, and what `render` draws. The schema is in docs/plan.md.

Fields may be added; a field is never renamed or given another meaning without a new `format`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from muster.base.resources import Resources
from muster.cluster.plan import Reason

FORMAT = 1
SERVED = frozenset(
    {Reason.PLACED, Reason.WAITING_FOR_NODE, Reason.WAITING_FOR_LAUNCH, Reason.WAITING_FOR_RESIZE}
)


class Why(Struct, frozen=True, kw_only=True):
    """`count` of an item's requests share this fate."""

    reason: Reason
    count: int
    target: str  # node, or node type
    detail: str
    lacks: Mapping[str, float]  # what the nearest type is short of


class Item(Struct, frozen=True, kw_only=True):
    """One demand, gang or constraint and the reasons of its requests; their counts add up to `count`."""

    name: str
    count: int
    resources: Resources | None  # of one request; null for a gang
    strategy: str  # of a gang, else ""
    served: int
    why: tuple[Why, ...]
    rejected: Mapping[str, Reason]  # node type -> why it was not used; for a gang empty


class Launch(Struct, frozen=True, kw_only=True):
    node_type: str
    machine_type: str
    market: str
    count: int
    price_per_hour: float | None  # of one
    total_per_hour: float | None


class Stop(Struct, frozen=True, kw_only=True):
    node: str
    node_type: str
    reason: Reason
    detail: str
    price_per_hour: float | None


class Node(Struct, frozen=True, kw_only=True):
    """A node that stays, or goes: every node is here."""

    node: str
    node_type: str
    reason: Reason
    detail: str


class TypeVerdict(Struct, frozen=True, kw_only=True):
    node_type: str
    reason: Reason
    detail: str


class Price(Struct, frozen=True, kw_only=True):
    """$ per hour; machines of `unpriced` types are left out of every sum."""

    now: float
    launch: float
    stop: float
    after: float
    unpriced: tuple[str, ...]


class PlanReport(Struct, frozen=True, kw_only=True):
    """The whole answer of `muster plan`."""

    format: int = FORMAT
    cluster: str
    objective: str
    satisfied: bool  # every request is placed or planned
    head_assumed: bool
    launch: tuple[Launch, ...]
    stop: tuple[Stop, ...]
    price: Price
    demands: tuple[Item, ...]
    gangs: tuple[Item, ...]
    constraints: tuple[Item, ...]
    nodes: tuple[Node, ...]
    node_types: tuple[TypeVerdict, ...]
