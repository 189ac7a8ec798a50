"""The kind `readonly`: muster lists the runtime's nodes and refuses to change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import (
    CloudInstance,
    NodeKind,
    NodeReport,
    NodeStatus,
    Offer,
    RuntimeReport,
)
from muster.cluster.snapshot import ProviderTraits
from muster.config.check import FileRules
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.kind import MANAGED, HeadPolicy, Launches, ProviderContext, ProviderKind
from muster.providers.machines import ManagedProvider
from muster.providers.v1.adapter import ReadOnlyRefusal

_BY_HAND = "do it with the tool that runs the cluster"


class ReadOnlyProvider(ManagedProvider):
    """List the runtime's living nodes and refuse everything else."""

    def __init__(self, runtime: Callable[[], RuntimeReport]) -> None:
        self._runtime = runtime

    def traits(self) -> ProviderTraits:
        return ProviderTraits(read_only=True, lists_nodes=True)

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        machines = [_machine(n) for n in self._runtime().nodes if n.status is not NodeStatus.DEAD]
        return {machine.cloud_id: machine for machine in machines}

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        raise ReadOnlyRefusal("provider type readonly: muster does not start nodes", fix=f"{_BY_HAND}")

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        raise ReadOnlyRefusal("provider type readonly: muster does not stop nodes", fix=f"{_BY_HAND}")

    def close(self) -> None:
        """Do nothing: the provider holds nothing open."""


def _machine(node: NodeReport) -> CloudInstance:
    """Return the machine of a node; the node id stands in for a missing machine id."""
    return CloudInstance(
        cloud_id=node.cloud_id or CloudId(node.node_id),
        node_type=node.node_type or f"node_{node.node_id}",
        kind=NodeKind.HEAD if node.is_head else NodeKind.WORKER,
        internal_ip=node.ip,
    )


def _build(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    if context.runtime is None:
        raise ConfigError(
            "'readonly' shows the nodes of a running cluster",
            path="provider.type",
            fix="it works where the monitor runs, not here",
        )
    return ReadOnlyProvider(context.runtime)


class ReadOnlyRules(FileRules):
    """Node types are the nodes that are found."""

    defaults: ClassVar[Plain] = {"max_workers": 0}
    provider_defaults = MANAGED
    needs_node_types = False


KIND = ProviderKind(
    name="readonly", build=_build, rules=ReadOnlyRules(), head=HeadPolicy.NONE, head_place="only watched"
)
