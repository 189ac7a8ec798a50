"""GcsNodeSource reads a cluster from its GCS, and publishes to it, as a monitor's NodeSource."""

from __future__ import annotations

from msgspec.structs import replace

from muster.cluster.model import RuntimeReport
from muster.cluster.plan import ScalingReport
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.parse import parse_state


class GcsNodeSource:
    """A GcsNodeSource raises an EngineError within seconds when the GCS is away, and tries again later."""

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self._floor = 0  # the version the GCS remembers of an earlier monitor
        self._floor_of = 0  # the generation of the client it was read from
        self._newest = 0  # the version of the last reading
        self._restarts_at = 0  # what is added since the GCS counts from zero again

    def read(self) -> RuntimeReport:
        reply = self._client.resource_state()
        from ray.core.generated import autoscaler_pb2  # after the client, whose error is clear without Ray

        state = autoscaler_pb2.GetClusterResourceStateReply.FromString(reply).cluster_resource_state
        return replace(parse_state(state), version=self._onward(state.cluster_resource_state_version))

    def _onward(self, version: int) -> int:
        """Returns a version that never falls: a lower one is a restarted GCS, as one GCS answers in order."""
        if self._restarts_at + version < self._newest:
            self._restarts_at = self._newest
        self._newest = self._restarts_at + version
        return self._newest

    def publish(self, version: int, report: ScalingReport) -> None:
        """Reports to the GCS, which silently drops a version lower than the last, and takes an equal one."""
        floor = self._known_floor()
        from muster.runtimes.ray.messages import scaling_state

        self._client.report_state(scaling_state(max(version, floor), report).SerializeToString())

    def published_version(self) -> int:
        """Returns the version of the last report: a new monitor's ledger must continue above it."""
        reply = self._client.cluster_status()
        from ray.core.generated import autoscaler_pb2

        status = autoscaler_pb2.GetClusterStatusReply.FromString(reply)
        return int(status.autoscaling_state.autoscaler_state_version)

    def _known_floor(self) -> int:
        if self._floor_of != self._client.generation or self._floor_of == 0:
            self._floor = self.published_version()
            self._floor_of = self._client.generation
        return self._floor
