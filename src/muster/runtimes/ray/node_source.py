"""GcsNodeSource reads a cluster from its GCS, and publishes to it, as a monitor's NodeSource."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.ids import NodeId
from muster.base.log import OnChange
from muster.cluster.model import DriverReport, NodeReport, NodeStatus, RuntimeReport
from muster.cluster.plan import ScalingReport
from muster.errors import EngineError
from muster.runtimes.ray.client import GcsClient, JobRow
from muster.runtimes.ray.parse import parse_state

logger = logging.getLogger(__name__)

# The GCS asks each node for its requests once a second. One that has just moved from another node to a new
# one is part of the new node's use already and of the other's requests still: it would be launched for twice.
FRESH_S = 2.5


INTERNAL = "_ray_internal_"  # the namespaces of drivers that Ray starts itself, such as its dashboard's


def drivers_of(jobs: Iterable[JobRow]) -> DriverReport:
    """Return who uses the cluster, by its list of drivers; pure."""
    of_users = [job for job in jobs if not job.namespace.startswith(INTERNAL)]
    ends = [job.ended_at for job in of_users if job.is_dead]
    live = tuple(job.name for job in of_users if not job.is_dead)
    return DriverReport(live=len(live), last_end=max(ends, default=0.0), names=live)


class GcsNodeSource:
    """Raises an EngineError within seconds when the GCS is away, and tries again later."""

    def __init__(
        self, client: GcsClient, clock: Clock | None = None, wants_drivers: Callable[[], bool] = lambda: False
    ) -> None:
        self._client, self._clock = client, clock or SystemClock()
        self._wants_drivers = wants_drivers
        self._joined: dict[NodeId, float] | None = None  # when each node was first seen; None: none was read
        self._changes = OnChange(logger)
        self._labels: dict[NodeId, dict[str, str]] = {}  # of a Ray that does not report them with the nodes
        self._floor = 0  # the version the GCS remembers of an earlier monitor
        self._floor_of = 0  # the generation of the client it was read from
        self._newest = 0  # the version of the last reading
        self._restarts_at = 0  # what is added since the GCS counts from zero again

    def read(self) -> RuntimeReport:
        reply = self._client.resource_state()
        from ray.core.generated import autoscaler_pb2  # after the client, which reports that Ray is missing

        state = autoscaler_pb2.GetClusterResourceStateReply.FromString(reply).cluster_resource_state
        report = parse_state(state)
        if "labels" not in autoscaler_pb2.NodeState.DESCRIPTOR.fields_by_name:
            # The nodes with the labels they were started with, which older Rays do not report here.
            if any(node.node_id not in self._labels for node in report.nodes):
                known = self._client.node_labels()
                self._labels = {node.node_id: known.get(node.node_id, {}) for node in report.nodes}
            with_labels = tuple(
                replace(node, labels={**self._labels[node.node_id], **node.labels}) for node in report.nodes
            )
            report = replace(report, nodes=with_labels)
        # A version that never falls: a lower one is a restarted GCS, as one GCS answers in order.
        if self._restarts_at + state.cluster_resource_state_version < self._newest:
            self._restarts_at = self._newest
        self._newest = self._restarts_at + state.cluster_resource_state_version
        version = self._newest
        return replace(
            report,
            version=version,
            nodes=self._with_room_on_fresh(report.nodes),
            drivers=self._drivers() if self._wants_drivers() else None,
        )

    def _drivers(self) -> DriverReport | None:
        """Return who uses the cluster; None, which counts as somebody, when that cannot be read."""
        try:
            return drivers_of(self._client.jobs())
        except EngineError as error:
            self._changes.log(logging.WARNING, "drivers", f"drivers cannot be listed: {error}")
            return None

    def _with_room_on_fresh(self, nodes: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
        """Return the nodes as reported, but those that have just joined as free as they came."""
        now, known = self._clock.monotonic(), self._joined
        at_first = now if known is not None else now - FRESH_S  # nodes of the first reading are old
        self._joined = {
            node.node_id: (known or {}).get(node.node_id, at_first)
            for node in nodes
            if node.status is not NodeStatus.DEAD
        }
        fresh = {node_id for node_id, at in self._joined.items() if now - at < FRESH_S}
        if not fresh:
            return nodes
        return tuple(replace(node, available=node.total) if node.node_id in fresh else node for node in nodes)

    def publish(self, version: int, report: ScalingReport) -> None:
        """Report to the GCS, which silently drops a version lower than the last, and takes an equal one."""
        if self._floor_of != self._client.generation or self._floor_of == 0:
            self._floor = self.published_version()
            self._floor_of = self._client.generation
        floor = self._floor
        from muster.runtimes.ray.messages import scaling_state

        self._client.report_state(scaling_state(max(version, floor), report).SerializeToString())

    def published_version(self) -> int:
        """Return the version of the last report: a new monitor's ledger must continue above it."""
        reply = self._client.cluster_status()
        from ray.core.generated import autoscaler_pb2

        status = autoscaler_pb2.GetClusterStatusReply.FromString(reply)
        return int(status.autoscaling_state.autoscaler_state_version)
