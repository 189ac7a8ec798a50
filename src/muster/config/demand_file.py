"""Read the demand file of `muster plan`: pending work and, if known, the nodes that exist now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.cluster.model import (
    ClusterSpec,
    Constraint,
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeKind,
    NodeType,
    Strategy,
)
from muster.cluster.planner.pack import PlannedDemand
from muster.cluster.planner.request import PackNode
from muster.cluster.states import InstanceState
from muster.config.check import Section, checked, nearest, shortened
from muster.config.document import Document, Path_
from muster.config.schema import Quantity, Seconds

Amount = Annotated[int, Meta(ge=1, le=100_000_000)]
MAX_NODES = 100_000  # of all entries together; each of them is looked at on its own
MAX_BUNDLES = 10_000  # of one gang


class Phase(Enum):
    """Says whether a node runs already."""

    RUNNING = "running"
    COMING = "coming"


class NodeEntry(Section, frozen=True, kw_only=True):
    """A NodeEntry is `count` equal nodes of the cluster as it is now."""

    type: str
    id: str = ""  # with a count: what their ids begin with
    count: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 1
    head: bool = False
    state: Phase = Phase.RUNNING
    total: dict[str, Quantity] | None = None  # None: what its type has
    available: dict[str, Quantity] | None = None  # None: all of it is free
    labels: dict[str, str] = field(default_factory=dict)  # beside those of its type
    idle_s: Seconds = 0.0


class NodesFile(Section, frozen=True, kw_only=True):
    """A file for `--nodes`."""

    nodes: tuple[NodeEntry, ...]


def load_nodes(path: Path, spec: ClusterSpec) -> tuple[PackNode, ...]:
    """Read a `--nodes` file; ConfigError names file, line, key and fix."""
    document = Document.load(path)
    return pack_nodes(document, checked(document, (), document.data or {}, NodesFile).nodes, spec)


def pack_nodes(document: Document, entries: tuple[NodeEntry, ...], spec: ClusterSpec) -> tuple[PackNode, ...]:
    """Return every node of every entry, with sizes and labels of its type."""
    nodes: dict[str, PackNode] = {}
    heads = 0
    for index, entry in enumerate(entries):
        path: Path_ = ("nodes", index)
        heads += entry.count if entry.head else 0
        if heads > 1:
            raise document.error((*path, "head"), "a cluster has one head; set 'head: true' on one node only")
        if len(nodes) + entry.count > MAX_NODES:
            raise document.error((*path, "count"), f"makes more than {MAX_NODES:,} nodes in all; lower it")
        for node in _of_entry(document, path, entry, spec):
            if node.key in nodes:
                raise document.error(
                    (*path, "id"), f"{shortened(node.key)} is used by another node; ids must differ"
                )
            nodes[node.key] = node
    return tuple(nodes.values())


def _of_entry(document: Document, path: Path_, entry: NodeEntry, spec: ClusterSpec) -> Iterator[PackNode]:
    known = _known_type(document, path, entry, spec)
    total = Resources.of(entry.total) if entry.total is not None or known is None else known.resources
    available = total if entry.available is None else _available(document, path, entry.available, total)
    prefix = entry.id or entry.type
    for number in range(1, entry.count + 1):
        yield PackNode(
            key=entry.id if entry.id and entry.count == 1 else f"{prefix}-{number}",
            node_type=entry.type,
            total=total,
            available=available,
            state=InstanceState.RAY_RUNNING if entry.state is Phase.RUNNING else InstanceState.ALLOCATED,
            kind=NodeKind.HEAD if entry.head else NodeKind.WORKER,
            labels={**(known.labels if known else {}), **entry.labels},
            idle_s=entry.idle_s,
        )


def _known_type(document: Document, path: Path_, entry: NodeEntry, spec: ClusterSpec) -> NodeType | None:
    """Return the node's type; None for one that left the cluster file and whose size the entry has."""
    known = spec.node_type(entry.type)
    if known is None and entry.total is None:
        hint = nearest(entry.type, (node_type.name for node_type in spec.node_types))
        raise document.error(
            (*path, "type"),
            f"{shortened(entry.type)} is not in available_node_types; {hint} (a removed type needs 'total')",
        )
    return known


def _available(document: Document, path: Path_, quantities: dict[str, float], total: Resources) -> Resources:
    """Return what is free; more than the total is a mistake."""
    free = Resources.of(quantities)
    for name, units in free.items():
        if units > total.units(name):
            raise document.error(
                (*path, "available", name),
                f"{quantities[name]:g} is more than the node's total; lower it or raise 'total'",
            )
    return free


LabelValues = str | tuple[str, ...]

_FUNCTION = re.compile(r"(?P<negated>!?)in\((?P<values>[^()]*)\)")


class RequestEntry(Section, frozen=True, kw_only=True):
    """A RequestEntry is `count` equal requests, each held by one node."""

    resources: dict[str, Quantity]
    count: Amount = 1
    name: str = ""
    labels: dict[str, LabelValues] = field(default_factory=dict)  # one selector
    selectors: tuple[dict[str, LabelValues], ...] = ()  # several, tried in order


class GangEntry(Section, frozen=True, kw_only=True):
    """A placement group: all bundles or none."""

    bundles: tuple[RequestEntry, ...]
    id: str = ""
    strategy: Strategy = Strategy.PACK
    fallbacks: tuple[tuple[RequestEntry, ...], ...] = ()  # other sets of bundles, tried in order
    locality_label: str = ""


class DemandFile(Section, frozen=True, kw_only=True):
    """The file as written."""

    demands: tuple[RequestEntry, ...] = ()
    gangs: tuple[GangEntry, ...] = ()
    constraints: tuple[RequestEntry, ...] = ()
    nodes: tuple[NodeEntry, ...] = ()


def load_demand(path: Path, spec: ClusterSpec) -> PlannedDemand:
    """Read a demand file; ConfigError names file, line, key and fix."""
    document = Document.load(path)
    file = checked(document, (), document.data or {}, DemandFile)
    constraints = _named(document, "constraints", file.constraints)
    return PlannedDemand(
        demands=_named(document, "demands", file.demands),
        gangs=_gangs(document, file.gangs),
        constraints=(Constraint(demands=constraints),) if constraints else (),
        nodes=pack_nodes(document, file.nodes, spec),
    )


def _named(document: Document, key: str, entries: tuple[RequestEntry, ...]) -> tuple[Demand, ...]:
    """Give every request a name: verdicts are found by it."""
    named: dict[str, Demand] = {}
    for index, entry in enumerate(entries):
        demand = _request(document, (key, index), entry)
        name = demand.name or f"{key[:-1]}-{index + 1}"
        if name in named:
            raise document.error(
                (key, index, "name"), f"{shortened(name)} is used by another entry; names must differ"
            )
        named[name] = replace(demand, name=name)
    return tuple(named.values())


def _request(document: Document, path: Path_, entry: RequestEntry) -> Demand:
    if entry.labels and entry.selectors:
        raise document.error((*path, "selectors"), "give either 'labels' or 'selectors', not both")
    wanted = (entry.labels,) if entry.labels else entry.selectors
    return Demand(
        shape=Resources.of(entry.resources),
        count=entry.count,
        selectors=tuple(
            tuple(_match(key, values) for key, values in selector.items()) for selector in wanted
        ),
        name=entry.name,
    )


def _gangs(document: Document, entries: tuple[GangEntry, ...]) -> tuple[Gang, ...]:
    gangs: dict[str, Gang] = {}
    for index, entry in enumerate(entries):
        path: Path_ = ("gangs", index)
        gang_id = entry.id or f"gang-{index + 1}"
        if gang_id in gangs:
            raise document.error(
                (*path, "id"), f"{shortened(gang_id)} is used by another gang; ids must differ"
            )
        fallbacks = [
            _bundles(document, (*path, "fallbacks", number), bundles)
            for number, bundles in enumerate(entry.fallbacks)
        ]
        gangs[gang_id] = Gang(
            gang_id=gang_id,
            strategy=entry.strategy,
            options=(_bundles(document, (*path, "bundles"), entry.bundles), *fallbacks),
            locality_label=entry.locality_label,
        )
    return tuple(gangs.values())


def _bundles(document: Document, path: Path_, entries: tuple[RequestEntry, ...]) -> tuple[Demand, ...]:
    if not entries:
        raise document.error(path, "is empty; a gang needs at least one bundle")
    if sum(entry.count for entry in entries) > MAX_BUNDLES:
        raise document.error(
            path, f"has more than {MAX_BUNDLES:,} bundles; lower their count, or split the gang"
        )
    return tuple(_request(document, (*path, index), entry) for index, entry in enumerate(entries))


def _match(key: str, values: LabelValues) -> LabelMatch:
    """Parse `a`, `[a, b]`, or Ray's strings: `!a`, `in(a,b)`, `!in(a,b)`."""
    if isinstance(values, tuple):
        return LabelMatch(key, LabelOperator.IN, values)
    function = _FUNCTION.fullmatch(values.strip())
    if function:
        names = tuple(part.strip() for part in function["values"].split(",") if part.strip())
        return LabelMatch(key, LabelOperator.NOT_IN if function["negated"] else LabelOperator.IN, names)
    if values.startswith("!"):
        return LabelMatch(key, LabelOperator.NOT_IN, (values[1:],))
    return LabelMatch(key, LabelOperator.IN, (values,))
