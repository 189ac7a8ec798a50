"""Small values with sensible defaults for tests: name only what the test is about.

Every builder takes any field of the value it builds as a keyword; quantities are written as people write
them (`{"CPU": 4}`). Called by tests only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from muster.base.ids import CloudId, InstanceId, NodeId
from muster.base.resources import Resources
from muster.cluster.binpack.request import Offer, PackNode, PackRequest
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    Demand,
    Gang,
    Instance,
    LabelMatch,
    LabelOperator,
    NodeReport,
    NodeType,
    Selector,
    StatusChange,
    Strategy,
)
from muster.cluster.snapshot import Snapshot
from muster.cluster.states import InstanceState

Quantities = Mapping[str, float]

NOW = 1_000.0
ONE_CPU: Quantities = {"CPU": 1}


def amounts(quantities: Quantities | Resources) -> Resources:
    """Quantities as people write them, or Resources as they are."""
    return quantities if isinstance(quantities, Resources) else Resources.of(quantities)


def node_type(name: str = "cpu", resources: Quantities | Resources = ONE_CPU, **changes: object) -> NodeType:
    """A type with room for 10 machines: `node_type("gpu", {"CPU": 8, "GPU": 1}, max_nodes=2)`."""
    return replace(NodeType(name=name, resources=amounts(resources), max_nodes=10), **changes)


def offer(of: NodeType | None = None, **changes: object) -> Offer:
    """A type on sale, all of its maximum still free."""
    chosen = of or node_type()
    return replace(Offer(node_type=chosen, room=chosen.max_nodes), **changes)


def pack_node(
    key: str = "i-1",
    of: NodeType | str = "cpu",
    *,
    total: Quantities | Resources | None = None,
    available: Quantities | Resources | None = None,
    **changes: object,
) -> PackNode:
    """A running, free node of a type (with its resources, labels and hash) or of a type name.

    A node that does not run has no idle time: give `state=InstanceState.ALLOCATED` and the like.
    """
    base = of if isinstance(of, NodeType) else node_type(of)
    has = base.resources if total is None else amounts(total)
    node = PackNode(
        key=key,
        node_type=base.name,
        total=has,
        available=has if available is None else amounts(available),
        labels=base.labels,
        launch_hash=base.launch_hash,
    )
    return replace(node, **changes)


def pack_nodes(
    count: int, of: NodeType | str = "cpu", prefix: str = "i-", **changes: object
) -> tuple[PackNode, ...]:
    """`count` equal nodes with keys i-1, i-2, ..."""
    model = replace(pack_node("", of), **changes)
    return tuple(replace(model, key=f"{prefix}{index + 1}") for index in range(count))


def pack_request(types: Iterable[NodeType | Offer] = (), **changes: object) -> PackRequest:
    """A planning question about these types, with no nodes, no demand and no cluster-wide limit."""
    offers = tuple(of if isinstance(of, Offer) else offer(of) for of in types)
    return replace(PackRequest(now=NOW, nodes=(), offers=offers, max_nodes=None), **changes)


def demand(shape: Quantities | Resources = ONE_CPU, count: int = 1, **changes: object) -> Demand:
    """`count` requests of one shape: `demand({"GPU": 1}, 4, selectors=(selector(zone="a"),))`."""
    return replace(Demand(shape=amounts(shape), count=count), **changes)


def selector(**equal: str | tuple[str, ...]) -> Selector:
    """A selector that wants each label to have the value, or one of the values, given."""
    return tuple(
        LabelMatch(key, LabelOperator.IN, (value,) if isinstance(value, str) else value)
        for key, value in equal.items()
    )


def gang(
    bundles: Sequence[Quantities | Resources | Demand] = (ONE_CPU, ONE_CPU),
    strategy: Strategy = Strategy.PACK,
    gang_id: str = "g-1",
    **changes: object,
) -> Gang:
    """A gang with one option of these bundles: `gang([{"CPU": 1}] * 3, Strategy.STRICT_SPREAD)`."""
    option = tuple(bundle if isinstance(bundle, Demand) else demand(bundle) for bundle in bundles)
    return replace(Gang(gang_id=gang_id, strategy=strategy, options=(option,)), **changes)


def instance(
    instance_id: str = "i-1",
    state: InstanceState = InstanceState.RAY_RUNNING,
    *,
    since: float = NOW,
    details: str = "",
    **changes: object,
) -> Instance:
    """A record of type "cpu" that entered its state at `since`; ids of machine and node are not set."""
    record = Instance(
        instance_id=InstanceId(instance_id),
        node_type="cpu",
        state=state,
        history=(StatusChange(state, since, details),),
    )
    return replace(record, **changes)


def cloud_instance(cloud_id: str = "c-1", **changes: object) -> CloudInstance:
    """A running machine of type "cpu" as the provider lists it."""
    return replace(CloudInstance(cloud_id=CloudId(cloud_id), node_type="cpu"), **changes)


def node_report(node_id: str = "n-1", **changes: object) -> NodeReport:
    """A running, free one-CPU node of type "cpu"; its machine is not set."""
    has = amounts(ONE_CPU)
    report = NodeReport(node_id=NodeId(node_id), node_type="cpu", total=has, available=has)
    return replace(report, **changes)


def cluster_spec(types: Iterable[NodeType] = (), **changes: object) -> ClusterSpec:
    """The wishes: these types, or one type "cpu" when none is given."""
    chosen = tuple(types) or (node_type(),)
    return replace(ClusterSpec(node_types=chosen), **changes)


def snapshot(
    instances: Iterable[Instance] = (),
    *,
    cloud: Iterable[CloudInstance] | None = (),
    **changes: object,
) -> Snapshot:
    """One tick's world with these records and machines, indexed for you; the runtime is not readable."""
    listed = None if cloud is None else {machine.cloud_id: machine for machine in cloud}
    world = Snapshot(
        tick_id="t-1",
        now=NOW,
        version=1,
        spec=cluster_spec(),
        instances={record.instance_id: record for record in instances},
        cloud=listed,
    )
    return replace(world, **changes)
