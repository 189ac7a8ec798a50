"""Arrange the planner's answer as a PlanReport, by subject. Decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, NodeType, Offer
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.planner.explain import rejections
from muster.cluster.planner.pack import WhatIfAnswer, objective_of
from muster.cluster.planner.request import ItemOutcome

FORMAT = 1


class ReasonRow(Struct, frozen=True, kw_only=True):
    """The reason that `count` of an item's requests share."""

    reason: Reason
    count: int
    target: str  # node, or node type
    detail: str
    lacks: Mapping[str, float]  # what the nearest type is short of


class RequestRow(Struct, frozen=True, kw_only=True):
    """One demand, gang or constraint with its reasons; their counts add up to `count`."""

    name: str
    count: int
    resources: Resources | None  # of one request; null for a gang
    strategy: str  # of a gang, else ""
    served: int
    why: tuple[ReasonRow, ...]
    rejected: Mapping[str, Reason]  # node type -> why it was not used; for a gang empty


class LaunchRow(Struct, frozen=True, kw_only=True):
    """One node type, or one offer of it, of which machines would be launched."""

    node_type: str
    machine_type: str
    market: str
    count: int
    price_per_hour: float | None  # of one
    total_per_hour: float | None
    zone: str = ""  # of the offer; "" when the type has none


class StopRow(Struct, frozen=True, kw_only=True):
    """One node that would be removed."""

    node: str
    node_type: str
    reason: Reason
    detail: str
    price_per_hour: float | None


class PlanNode(Struct, frozen=True, kw_only=True):
    """One node of the cluster, whether it stays or goes."""

    node: str
    node_type: str
    reason: Reason
    detail: str


class TypeRow(Struct, frozen=True, kw_only=True):
    """Why a node type is launched or not."""

    node_type: str
    reason: Reason
    detail: str


class Price(Struct, frozen=True, kw_only=True):
    """In $ per hour; machines of `unpriced` types are left out of every sum."""

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
    launch: tuple[LaunchRow, ...]
    stop: tuple[StopRow, ...]
    price: Price
    demands: tuple[RequestRow, ...]
    gangs: tuple[RequestRow, ...]
    constraints: tuple[RequestRow, ...]
    nodes: tuple[PlanNode, ...]
    node_types: tuple[TypeRow, ...]
    unknown_sizes: tuple[str, ...]  # node types that could be launched, if their resources were known


_DECIMALS = 6  # of a dollar: hides rounding errors of sums, and no price


def build_report(answer: WhatIfAnswer) -> PlanReport:
    """Arrange the planner's answer; decides nothing."""
    reasons = _Reasons(answer.verdicts)
    demands = _items(answer, reasons, Subject.DEMAND)
    constraints = _items(answer, reasons, Subject.CONSTRAINT)
    gangs = tuple(
        _gang(gang, outcome, reasons)
        for gang, outcome in zip(answer.request.gangs, answer.packing.gangs, strict=True)
    )
    nodes = []
    for node in answer.request.nodes:
        why = reasons.of(Subject.NODE, node.key)[0]
        row = PlanNode(node=node.key, node_type=node.node_type, reason=why.reason, detail=why.detail)
        nodes.append(row)
    return PlanReport(
        cluster=answer.spec.cluster_name,
        objective=objective_of(answer.request).value,
        satisfied=all(item.served == item.count for item in (*demands, *gangs, *constraints)),
        head_assumed=answer.head_assumed,
        launch=_launches(answer),
        stop=_stops(answer, reasons),
        price=_price(answer),
        demands=demands,
        gangs=gangs,
        constraints=constraints,
        nodes=tuple(nodes),
        node_types=type_rows(answer.verdicts),
        unknown_sizes=_unknown_sizes(answer),
    )


def _unknown_sizes(answer: WhatIfAnswer) -> tuple[str, ...]:
    """Return the types without resources that may have workers."""
    head = answer.spec.head_node_type
    return tuple(
        known.name
        for known in answer.spec.node_types
        if not known.resources and known.max_nodes > int(known.name == head)
    )


def type_rows(verdicts: Iterable[Verdict]) -> tuple[TypeRow, ...]:
    """Return the verdicts about node types as rows."""
    return tuple(
        TypeRow(node_type=verdict.subject_id, reason=verdict.reason, detail=verdict.detail)
        for verdict in verdicts
        if verdict.subject is Subject.NODE_TYPE
    )


class _Reasons:
    """Verdicts by their subject."""

    def __init__(self, verdicts: Iterable[Verdict]) -> None:
        self._by_subject: dict[tuple[Subject, str], list[Verdict]] = {}
        for verdict in verdicts:
            self._by_subject.setdefault((verdict.subject, verdict.subject_id), []).append(verdict)

    def of(self, subject: Subject, name: str) -> Sequence[Verdict]:
        return self._by_subject.get((subject, name), ())


def _items(answer: WhatIfAnswer, reasons: _Reasons, subject: Subject) -> tuple[RequestRow, ...]:
    request, packing = answer.request, answer.packing
    demands: Sequence[Demand] = request.demands
    outcomes: Sequence[ItemOutcome] = packing.demands
    if subject is Subject.CONSTRAINT:
        demands = [demand for constraint in request.constraints for demand in constraint.demands]
        outcomes = packing.constraints
    rejected = _Rejected(answer)
    return tuple(
        RequestRow(
            name=demand.name,
            count=demand.count,
            resources=demand.shape,
            strategy="",
            served=demand.count - outcome.unplaced,
            why=_why(reasons.of(subject, demand.name)),
            rejected=rejected.types(demand, outcome),
        )
        for demand, outcome in zip(demands, outcomes, strict=True)
    )


class _Rejected:
    """Finds why other node types were not used, given what the plan leaves of the limits."""

    def __init__(self, answer: WhatIfAnswer) -> None:
        packing = answer.packing
        launched = Counter(packing.launch)
        self._before, self._room_before = packing.offers, packing.room
        self._after = [
            replace(offer, room=offer.room - launched[offer.node_type.name]) for offer in packing.offers
        ]
        self._room_after = None if packing.room is None else max(0, packing.room - sum(launched.values()))

    def types(self, demand: Demand, outcome: ItemOutcome) -> Mapping[str, Reason]:
        if outcome.unplaced:
            return rejections(demand, self._after, self._room_after, outcome.launched)
        return rejections(demand, self._before, self._room_before, outcome.launched)


def _gang(gang: Gang, outcome: ItemOutcome, reasons: _Reasons) -> RequestRow:
    """Return a gang's item: all bundles count, or none; of a fallback those that were placed."""
    verdicts = reasons.of(Subject.GANG, gang.gang_id)
    count = sum(verdict.count for verdict in verdicts)
    return RequestRow(
        name=gang.gang_id,
        count=count,
        resources=None,
        strategy=gang.strategy.value,
        served=count - outcome.unplaced,
        why=_why(verdicts),
        rejected={},
    )


def _why(verdicts: Iterable[Verdict]) -> tuple[ReasonRow, ...]:
    """Return the verdicts without their subject, which the item names."""
    names = ReasonRow.__struct_fields__
    return tuple(ReasonRow(**{name: getattr(verdict, name) for name in names}) for verdict in verdicts)


def _launches(answer: WhatIfAnswer) -> tuple[LaunchRow, ...]:
    """Return what would be launched, in the order of the cluster file; offers of a type cheapest first."""
    rows: list[LaunchRow] = []
    for known in answer.spec.node_types:
        offers = answer.packing.launched_offers.get(known.name)
        if offers:
            rows += [_launch(known, count, known.offer(name)) for name, count in offers.items()]
        elif answer.packing.launch.get(known.name):
            rows.append(_launch(known, answer.packing.launch[known.name]))
    return tuple(rows)


def _launch(known: NodeType, count: int, offer: Offer | None = None) -> LaunchRow:
    price = known.price_per_hour if offer is None else offer.price_per_hour
    return LaunchRow(
        node_type=known.name,
        machine_type=known.machine_type,
        market=known.market if offer is None else offer.market,
        count=count,
        price_per_hour=price,
        total_per_hour=None if price is None else round(price * count, _DECIMALS),
        zone="" if offer is None else offer.zone,
    )


def _stops(answer: WhatIfAnswer, reasons: _Reasons) -> tuple[StopRow, ...]:
    prices = _prices(answer)
    return tuple(
        StopRow(
            node=removal.instance_id,
            node_type=removal.node_type,
            reason=reasons.of(Subject.NODE, removal.instance_id)[0].reason,
            detail=removal.details,
            price_per_hour=prices.get(removal.node_type),
        )
        for removal in answer.packing.removals
    )


def _price(answer: WhatIfAnswer) -> Price:
    prices = _prices(answer)
    now = Counter(node.node_type for node in answer.request.nodes)
    launch = _launches(answer)
    stop = Counter(removal.node_type for removal in answer.packing.removals)
    paid, saved = (
        round(sum((prices.get(name, 0.0) * count for name, count in counts.items()), 0.0), _DECIMALS)
        for counts in (now, stop)
    )
    added = round(sum(row.total_per_hour or 0.0 for row in launch), _DECIMALS)
    unpriced = [name for name in now if name not in prices]
    unpriced += [row.node_type for row in launch if row.price_per_hour is None]
    return Price(
        now=paid,
        launch=added,
        stop=saved,
        after=round(paid + added - saved, _DECIMALS),
        unpriced=tuple(dict.fromkeys(unpriced)),
    )


def _prices(answer: WhatIfAnswer) -> dict[str, float]:
    return {
        known.name: known.price_per_hour
        for known in answer.spec.node_types
        if known.price_per_hour is not None
    }
