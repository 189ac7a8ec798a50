"""Reports with nonsense in them: what a confused runtime might say. Called by the runtime's `read` only."""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.ids import CloudId, NodeId
from muster.base.resources import Resources
from muster.base.rng import Stream
from muster.cluster.model import Demand, NodeReport, NodeStatus, RuntimeReport


def spoil(report: RuntimeReport, draw: Stream) -> RuntimeReport:
    """The same report with one piece of nonsense in it."""
    return draw.choice(_SPOILERS)(report)


def _count_of_nothing(report: RuntimeReport) -> RuntimeReport:
    return _asking(report, Demand(shape=Resources.of(CPU=1), count=0))


def _negative_count(report: RuntimeReport) -> RuntimeReport:
    return _asking(report, Demand(shape=Resources.of(CPU=1), count=-3))


def _unheard_of_resource(report: RuntimeReport) -> RuntimeReport:
    return _asking(report, Demand(shape=Resources.of({"flux-capacitor": 1.21}), count=2))


def _asking(report: RuntimeReport, demand: Demand) -> RuntimeReport:
    return replace(report, demands=(*report.demands, demand))


def _same_node_twice(report: RuntimeReport) -> RuntimeReport:
    return replace(report, nodes=(*report.nodes, *report.nodes[-1:]))


def _node_of_unknown_type(report: RuntimeReport) -> RuntimeReport:
    return _joined_by(
        report, NodeReport(node_id=NodeId("n-odd"), cloud_id=CloudId("m-odd"), node_type="mystery")
    )


def _node_without_machine(report: RuntimeReport) -> RuntimeReport:
    return _joined_by(report, NodeReport(node_id=NodeId("n-lost"), node_type="cpu-4"))


def _node_without_type(report: RuntimeReport) -> RuntimeReport:
    return _joined_by(report, NodeReport(node_id=NodeId("n-bare"), cloud_id=CloudId("m-bare")))


def _joined_by(report: RuntimeReport, node: NodeReport) -> RuntimeReport:
    return replace(report, nodes=(*report.nodes, node))


def _unspecified_status(report: RuntimeReport) -> RuntimeReport:
    last = tuple(replace(node, status=NodeStatus.UNSPECIFIED) for node in report.nodes[-1:])
    return replace(report, nodes=(*report.nodes[:-1], *last))


_SPOILERS = (
    _count_of_nothing,
    _negative_count,
    _unheard_of_resource,
    _same_node_twice,
    _node_of_unknown_type,
    _node_without_machine,
    _node_without_type,
    _unspecified_status,
)
