"""Forward the port of a simulated cloud to the real provider under test, and note what checkers need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, LaunchFailure, Offer, TerminateFailure
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.sim.cluster.cloud import LaunchCall, SimCloud
from muster.sim.cluster.crash_points import crash_point


class ProviderCloud(SimCloud):
    """A simulated cloud whose port is a real provider; the simulation is below the provider's wire."""

    provider: CloudProvider

    def traits(self) -> ProviderTraits:
        return self.provider.traits()

    @crash_point("cloud.list_instances")
    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        self.listed = None
        self.listed = self.provider.list_instances()
        return self.listed

    @crash_point("cloud.launch")
    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        name = offers[0].name if offers else ""
        self.launch_calls.append(LaunchCall(self._world.time, request_id, dict(shape), offer=name))
        self.provider.launch(request_id, shape, offers)

    @crash_point("cloud.terminate")
    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self.terminated.extend((self._world.time, cloud_id) for cloud_id in cloud_ids)
        self.provider.terminate(request_id, cloud_ids)

    def under_way(self, request_id: RequestId) -> bool:
        return self.provider.under_way(request_id)

    @crash_point("cloud.poll_launch_failures")
    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        failures = self.provider.poll_launch_failures()
        self.failures_reported.extend(failures)
        return failures

    @crash_point("cloud.poll_terminate_failures")
    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self.provider.poll_terminate_failures()
