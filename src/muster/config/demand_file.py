"""The demand file of `muster plan`: pending work and, if known, the nodes there are now."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.cluster.binpack.request import PackNode
from muster.cluster.model import (
    ClusterSpec,
    Constraint,
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    Selector,
    Strategy,
)
from muster.config.check import Section, checked
from muster.config.document import Document, Path_
from muster.config.nodes import Amount, NodeEntry, pack_nodes
from muster.config.schema_kinds import Quantity

LabelValues = str | tuple[str, ...]

_FUNCTION = re.compile(r"(?P<negated>!?)in\((?P<values>[^()]*)\)")


class RequestEntry(Section, frozen=True, kw_only=True):
    """`count` equal requests, each held by one node."""

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


class Wanted(Struct, frozen=True, kw_only=True):
    """The file as the planner takes it."""

    demands: tuple[Demand, ...] = ()
    gangs: tuple[Gang, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    nodes: tuple[PackNode, ...] = ()


def load_demand(path: Path, spec: ClusterSpec) -> Wanted:
    """Read a demand file; ConfigError names file, line, key and fix."""
    document = Document.load(path)
    file = checked(document, (), document.data or {}, DemandFile)
    constraints = _named(document, "constraints", file.constraints)
    return Wanted(
        demands=_named(document, "demands", file.demands),
        gangs=_gangs(document, file.gangs),
        constraints=(Constraint(demands=constraints),) if constraints else (),
        nodes=pack_nodes(document, file.nodes, spec),
    )


def _named(document: Document, key: str, entries: tuple[RequestEntry, ...]) -> tuple[Demand, ...]:
    """Requests with a name each: verdicts are found by it."""
    named: dict[str, Demand] = {}
    for index, entry in enumerate(entries):
        demand = _request(document, (key, index), entry)
        name = demand.name or f"{key[:-1]}-{index + 1}"
        if name in named:
            raise document.error(
                (key, index, "name"), f"{name!r} is used by another entry; names must differ"
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
        selectors=tuple(_selector(selector) for selector in wanted),
        name=entry.name,
    )


def _gangs(document: Document, entries: tuple[GangEntry, ...]) -> tuple[Gang, ...]:
    gangs: dict[str, Gang] = {}
    for index, entry in enumerate(entries):
        path: Path_ = ("gangs", index)
        gang_id = entry.id or f"gang-{index + 1}"
        if gang_id in gangs:
            raise document.error((*path, "id"), f"{gang_id!r} is used by another gang; ids must differ")
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
    return tuple(_request(document, (*path, index), entry) for index, entry in enumerate(entries))


def _selector(labels: dict[str, LabelValues]) -> Selector:
    return tuple(_match(key, values) for key, values in labels.items())


def _match(key: str, values: LabelValues) -> LabelMatch:
    """`a`, `[a, b]`, or Ray's strings: `!a`, `in(a,b)`, `!in(a,b)`."""
    if isinstance(values, tuple):
        return LabelMatch(key, LabelOperator.IN, values)
    function = _FUNCTION.fullmatch(values.strip())
    if function:
        names = tuple(part.strip() for part in function["values"].split(",") if part.strip())
        return LabelMatch(key, LabelOperator.NOT_IN if function["negated"] else LabelOperator.IN, names)
    if values.startswith("!"):
        return LabelMatch(key, LabelOperator.NOT_IN, (values[1:],))
    return LabelMatch(key, LabelOperator.IN, (values,))
