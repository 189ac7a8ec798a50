"""ReadOnlyProvider: nodes that somebody else starts and stops; machines are what the runtime shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import (
    CloudInstance,
    LaunchFailure,
    NodeKind,
    NodeReport,
    NodeStatus,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.snapshot import ProviderTraits
from muster.providers.v1.adapter import ReadOnlyRefusal


class ReadOnlyProvider:
    """A CloudProvider that lists the runtime's living nodes and refuses everything else."""

    def __init__(self, runtime: Callable[[], RuntimeReport]) -> None:
        self._runtime = runtime

    def traits(self) -> ProviderTraits:
        return ProviderTraits(read_only=True)

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        machines = [_machine(n) for n in self._runtime().nodes if n.status is not NodeStatus.DEAD]
        return {machine.cloud_id: machine for machine in machines}

    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        raise ReadOnlyRefusal("provider type readonly: nodes are started by somebody else")

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        raise ReadOnlyRefusal("provider type readonly: nodes are stopped by somebody else")

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        raise ReadOnlyRefusal("provider type readonly: nothing is resized")

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return ()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return ()

    def close(self) -> None:
        """Nothing is held."""


def _machine(node: NodeReport) -> CloudInstance:
    """A node without a machine's name is known by its own, as the planner does for read-only providers."""
    return CloudInstance(
        cloud_id=node.cloud_id or CloudId(node.node_id),
        node_type=node.node_type or f"node_{node.node_id}",
        kind=NodeKind.HEAD if node.is_head else NodeKind.WORKER,
        internal_ip=node.ip,
    )
