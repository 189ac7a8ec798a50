"""A cluster that somebody else sizes: the spec is what is there, so that demand and nodes can be shown."""

from __future__ import annotations

from msgspec.structs import replace

from muster.cluster.model import ClusterSpec, NodeReport, NodeStatus, NodeType, RuntimeReport


def readonly_spec(base: ClusterSpec, report: RuntimeReport) -> ClusterSpec:
    """`base` with one node type per kind of node found alive, none larger than it is, none ever idle."""
    alive = [node for node in report.nodes if node.status is not NodeStatus.DEAD]
    groups: dict[str, list[NodeReport]] = {}
    for node in alive:
        groups.setdefault(type_name(node), []).append(node)
    head = next((node for node in alive if node.is_head), None)
    return replace(
        base,
        head_node_type=type_name(head) if head else "",
        node_types=tuple(_observed_node_type(name, nodes) for name, nodes in groups.items()),
        max_nodes=len(alive),
        idle_timeout_s=None,
    )


def type_name(node: NodeReport) -> str:
    """The type the node says it has, else one of its own."""
    return node.node_type or f"node_{node.node_id}"


def _observed_node_type(name: str, nodes: list[NodeReport]) -> NodeType:
    """Nodes of one name are taken to be alike; the first tells how large."""
    first = nodes[0]
    return NodeType(name=name, resources=first.total, max_nodes=len(nodes), labels=first.labels)
