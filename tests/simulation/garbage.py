"""Put invalid entries into the reports of a simulated runtime."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from muster.base.ids import CloudId, NodeId
from muster.base.resources import Resources
from muster.base.rng import Stream
from muster.cluster.model import Demand, NodeReport, NodeStatus, RuntimeReport


def corrupt(report: RuntimeReport, draw: Stream) -> RuntimeReport:
    """Return the same report with one invalid entry in it."""
    return draw.choice(_CORRUPTIONS)(report)


Corruption = Callable[[RuntimeReport], RuntimeReport]


def _asking(demand: Demand) -> Corruption:
    return lambda report: replace(report, demands=(*report.demands, demand))


def _joined_by(node: NodeReport) -> Corruption:
    return lambda report: replace(report, nodes=(*report.nodes, node))


def _unspecified_status(report: RuntimeReport) -> RuntimeReport:
    last = tuple(replace(node, status=NodeStatus.UNSPECIFIED) for node in report.nodes[-1:])
    return replace(report, nodes=(*report.nodes[:-1], *last))


_CORRUPTIONS: tuple[Corruption, ...] = (
    _asking(Demand(shape=Resources.of(CPU=1), count=0)),
    _asking(Demand(shape=Resources.of(CPU=1), count=-3)),
    _asking(Demand(shape=Resources.of({"flux-capacitor": 1.21}), count=2)),
    lambda report: replace(report, nodes=(*report.nodes, *report.nodes[-1:])),  # one node twice
    _joined_by(NodeReport(node_id=NodeId("n-odd"), cloud_id=CloudId("m-odd"), node_type="mystery")),
    _joined_by(NodeReport(node_id=NodeId("n-lost"), node_type="cpu-4")),  # without a machine
    _joined_by(NodeReport(node_id=NodeId("n-bare"), cloud_id=CloudId("m-bare"))),  # without a type
    _unspecified_status,
)
