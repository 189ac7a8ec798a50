"""Forward the port of a simulated cloud to the real provider under test, and note what checkers need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, LaunchFailure, Offer, TerminateFailure
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.host.call_threads import InlinePool
from muster.providers.background_calls import Job
from muster.sim.cluster.cloud import LaunchCall, SimCloud
from muster.sim.cluster.crash_points import crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World


class LatePool(InlinePool):
    """A pool whose jobs run at once or, by the fault `launch_slow`, much later; none in a dead process."""

    def __init__(
        self,
        world: World,
        faults: Faults,
        longest_s: float = 150.0,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._world, self._faults, self._longest_s, self._is_alive = world, faults, longest_s, is_alive
        self.is_dead = False  # another process has its place

    def submit(self, job: Job) -> Future[None]:
        if not self._faults.hit("launch_slow"):
            return super().submit(job)
        late_s = self._faults.between("launch_slow", 10, self._longest_s)
        self._world.after(late_s, lambda: self._run_late(job))
        return Future()

    def _run_late(self, job: Job) -> None:
        if not self.is_dead and self._is_alive():
            job()


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

    def withdraw(self, request_id: RequestId) -> None:
        self.provider.withdraw(request_id)

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
