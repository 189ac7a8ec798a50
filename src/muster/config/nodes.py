"""The nodes of a what-if: entries of the demand file or of a file of their own, as the planner's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from muster.base.resources import Resources
from muster.cluster.binpack.request import PackNode
from muster.cluster.model import ClusterSpec, NodeKind, NodeType
from muster.cluster.states import InstanceState
from muster.config.check import Section, checked, nearest
from muster.config.document import Document, Path_
from muster.config.schema_kinds import Quantity, Seconds

Amount = Annotated[int, Meta(ge=1, le=100_000_000)]


class Phase(Enum):
    """Whether a node serves already."""

    RUNNING = "running"
    COMING = "coming"


class NodeEntry(Section, frozen=True, kw_only=True):
    """`count` equal nodes of the cluster as it is now."""

    type: str
    id: str = ""  # with a count: what their ids begin with
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
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
    """Every entry written out, sizes and labels of its type filled in."""
    nodes: dict[str, PackNode] = {}
    heads = 0
    for index, entry in enumerate(entries):
        path: Path_ = ("nodes", index)
        heads += entry.count if entry.head else 0
        if heads > 1:
            raise document.error((*path, "head"), "a cluster has one head; this is the second")
        for node in _of_entry(document, path, entry, spec):
            if node.key in nodes:
                raise document.error((*path, "id"), f"{node.key!r} is used by another node; ids must differ")
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
    """The node's type; None for one that left the cluster file and whose size the entry tells."""
    known = spec.node_type(entry.type)
    if known is None and entry.total is None:
        hint = nearest(entry.type, (node_type.name for node_type in spec.node_types))
        raise document.error(
            (*path, "type"),
            f"{entry.type!r} is not in available_node_types; {hint} (a type that was removed needs 'total')",
        )
    return known


def _available(document: Document, path: Path_, quantities: dict[str, float], total: Resources) -> Resources:
    """What is free; more than there is would be a mistake."""
    free = Resources.of(quantities)
    for name, units in free.items():
        if units > total.units(name):
            raise document.error(
                (*path, "available", name), f"{quantities[name]:g} is more than the node has in all"
            )
    return free
