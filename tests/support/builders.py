"""Build small values with sensible defaults for tests: name only what the test is about.

Every builder takes any field of the value it builds as a keyword; quantities are written as users write
them (`{"CPU": 4}`). Called by tests only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    Demand,
    Gang,
    IdlePolicy,
    Instance,
    LabelMatch,
    LabelOperator,
    NodeReport,
    NodeType,
    Selector,
    StatusChange,
    StopCause,
    Strategy,
)
from muster.cluster.plan import (
    Action,
    Drain,
    EndCluster,
    Install,
    Launch,
    Plan,
    Resize,
    ResizeNode,
    Terminate,
)
from muster.cluster.planner.request import PackNode, PackRequest, TypeOffer
from muster.cluster.snapshot import Memory, Snapshot
from muster.cluster.states import InstanceState
from muster.trials.events import (
    CheckpointSaved,
    TrialCreated,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef

Quantities = Mapping[str, float]

NOW = 1_000.0
ONE_CPU: Quantities = {"CPU": 1}


def amounts(quantities: Quantities | Resources) -> Resources:
    """Return quantities as users write them, or Resources as they are."""
    return quantities if isinstance(quantities, Resources) else Resources.of(quantities)


def node_type(name: str = "cpu", resources: Quantities | Resources = ONE_CPU, **changes: object) -> NodeType:
    """Return a type with room for 10 machines: `node_type("gpu", {"CPU": 8, "GPU": 1}, max_nodes=2)`."""
    return replace(NodeType(name=name, resources=amounts(resources), max_nodes=10), **changes)


def offer(of: NodeType | None = None, **changes: object) -> TypeOffer:
    """Return a type on sale, all of its maximum still free."""
    chosen = of or node_type()
    return replace(TypeOffer(node_type=chosen, room=chosen.most_nodes), **changes)


def pack_node(
    key: str = "i-1",
    of: NodeType | str = "cpu",
    *,
    total: Quantities | Resources | None = None,
    available: Quantities | Resources | None = None,
    **changes: object,
) -> PackNode:
    """Return a running, free node of a type (with its resources, labels and hash) or of a type name.

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
    """Return `count` equal nodes with keys i-1, i-2, ..."""
    model = replace(pack_node("", of), **changes)
    return tuple(replace(model, key=f"{prefix}{index + 1}") for index in range(count))


def pack_request(types: Iterable[NodeType | TypeOffer] = (), **changes: object) -> PackRequest:
    """Return a planning request for these types, with no nodes, no demand and no cluster-wide limit."""
    offers = tuple(of if isinstance(of, TypeOffer) else offer(of) for of in types)
    return replace(PackRequest(now=NOW, nodes=(), offers=offers, max_nodes=None), **changes)


def demand(shape: Quantities | Resources = ONE_CPU, count: int = 1, **changes: object) -> Demand:
    """Return `count` requests of one shape: `demand({"GPU": 1}, 4, selectors=(selector(zone="a"),))`."""
    return replace(Demand(shape=amounts(shape), count=count), **changes)


def selector(**equal: str | tuple[str, ...]) -> Selector:
    """Return a selector that wants each label to have the value, or one of the values, given."""
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
    """Return a gang with one option of these bundles: `gang([{"CPU": 1}] * 3, Strategy.STRICT_SPREAD)`."""
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
    """Return a record of type "cpu" that entered its state at `since`, without ids of machine and node."""
    record = Instance(
        instance_id=InstanceId(instance_id),
        node_type="cpu",
        state=state,
        history=(StatusChange(state, since, details),),
    )
    return replace(record, **changes)


def cloud_instance(cloud_id: str = "c-1", **changes: object) -> CloudInstance:
    """Return a running machine of type "cpu" as the provider lists it."""
    return replace(CloudInstance(cloud_id=CloudId(cloud_id), node_type="cpu"), **changes)


def node_report(node_id: str = "n-1", **changes: object) -> NodeReport:
    """Return a running, free one-CPU node of type "cpu"; its machine is not set."""
    has = amounts(ONE_CPU)
    report = NodeReport(node_id=NodeId(node_id), node_type="cpu", total=has, available=has)
    return replace(report, **changes)


def cluster_spec(types: Iterable[NodeType] = (), **changes: object) -> ClusterSpec:
    """Return a spec with these types, or one type "cpu" when none is given."""
    chosen = tuple(types) or (node_type(),)
    return replace(ClusterSpec(node_types=chosen), **changes)


def snapshot(
    instances: Iterable[Instance] = (),
    *,
    cloud: Iterable[CloudInstance] | None = (),
    **changes: object,
) -> Snapshot:
    """Return one tick's world with these records and machines; the runtime is not readable."""
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


NO_MEMORY = Memory()


def record(name: str, *states: InstanceState, at: float = NOW, **changes: object) -> Instance:
    """Return a new record that went through these states, one second apart, with all it could need."""
    steps = states or (InstanceState.QUEUED,)
    made = Instance(
        instance_id=InstanceId(name),
        node_type="cpu",
        state=steps[-1],
        cloud_id=CloudId(f"c-{name}"),
        node_id=NodeId(f"n-{name}"),
        launch_request_id=RequestId(f"r-{name}"),
        history=tuple(StatusChange(s, at + k, f"to {s.name}") for k, s in enumerate(steps)),
    )
    return replace(made, **changes)


def moved(
    known: Instance, *states: InstanceState, at: float = NOW, details: str = "", **changes: object
) -> Instance:
    """Return the same record after these further steps."""
    steps = tuple(StatusChange(s, at + k, details) for k, s in enumerate(states))
    return replace(known, state=states[-1], history=(*known.history, *steps), **changes)


def plan(
    *writes: Instance, at: float = NOW, actions: Sequence[Action] = (), memory: Memory = NO_MEMORY
) -> Plan:
    return Plan(tick_id=f"t-{at:g}", at=at, writes=writes, actions=tuple(actions), memory=memory)


def launch(name: str, **shape: int) -> Launch:
    return Launch(request_id=RequestId(name), shape=shape or {"cpu": 1}, instance_ids=(InstanceId("a"),))


def one_of_each() -> tuple[Action, ...]:
    """Return every kind of effect, in no special order."""
    a, c = InstanceId("a"), CloudId("c-a")
    return (
        Terminate(request_id=RequestId("e-5"), cloud_ids=(c,), instance_ids=(a,)),
        launch("e-1", cpu=2, gpu=1),
        Install(request_id=RequestId("e-4"), instance_id=a, cloud_id=c, node_type="cpu"),
        Drain(
            request_id=RequestId("e-2"),
            instance_id=a,
            node_id=NodeId("n-a"),
            cause=StopCause.IDLE,
            deadline_s=60.0,
        ),
        Resize(request_id=RequestId("e-3"), instance_id=a, cloud_id=c, desired=Resources.of(CPU=2.5)),
        ResizeNode(
            request_id=RequestId("e-6"),
            instance_id=a,
            cloud_id=c,
            node_id=NodeId("n-a"),
            desired=Resources.of(CPU=2.5),
        ),
        EndCluster(request_id=RequestId("e-7"), policy=IdlePolicy.DELETE),
    )


START = 1_700_000_000.0


def created(trial_id: str = "a_00000", config: Mapping[str, Any] | None = None) -> TrialCreated:
    """Return the fact of a suggestion of the searcher."""
    chosen = {"lr": 0.5} if config is None else config
    return TrialCreated(
        trial_id=trial_id,
        at=START,
        config=chosen,
        evaluated_params=chosen,
        experiment_tag=f"tag-{trial_id}",
        trial_name=f"train_{trial_id}",
        relative_logdir=f"train_{trial_id}_dir",
    )


def started(trial_id: str = "a_00000", at: float = START + 1) -> TrialStarted:
    return TrialStarted(trial_id=trial_id, at=at, location={"pid": 7, "hostname": "h", "node_ip": "::1"})


def reported(
    trial_id: str = "a_00000", iteration: int = 1, checkpoint: CheckpointRef | None = None, **metrics: object
) -> TrialReported:
    """Return the fact of a result with Ray's automatic keys that matter to stores."""
    result = {**metrics, "training_iteration": iteration, "trial_id": trial_id, "done": False}
    return TrialReported(trial_id=trial_id, at=START + 1 + iteration, result=result, checkpoint=checkpoint)


def saved(trial_id: str, checkpoint: CheckpointRef | None, message: str = "") -> CheckpointSaved:
    return CheckpointSaved(trial_id=trial_id, at=START + 50, checkpoint=checkpoint, message=message)


def exited(trial_id: str = "a_00000", failure: TrialFailure | None = None) -> TrialExited:
    return TrialExited(trial_id=trial_id, at=START + 90, failure=failure, is_done=failure is None)


def failed(trial_id: str = "a_00000") -> TrialExited:
    """Return the fact of a trial whose code raised."""
    failure = TrialFailure(
        kind=TrialFailureKind.USER_ERROR, message="boom", traceback="line 1\nline 2", exception=b"\x80\x04N."
    )
    return exited(trial_id, failure)
