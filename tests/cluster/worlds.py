"""One-tick worlds for the reconciler's tests: a running head, and records with their machines and nodes.

A record "w1" lives on machine "c-w1" and has node "n-w1", so a test names only what is unusual.
"""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.builders import (
    NOW,
    amounts,
    cloud_instance,
    cluster_spec,
    instance,
    node_report,
    node_type,
    snapshot,
)

from muster.cluster.model import (
    ClusterSpec,
    Instance,
    NodeKind,
    NodeStatus,
    RuntimeReport,
    StatusChange,
)
from muster.cluster.plan import Plan
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, Snapshot
from muster.cluster.states import ON_CLOUD, RUNNING, TERMINAL, InstanceState

S = InstanceState
BUSY = amounts({"CPU": 0})
HEAD_TYPE = node_type("head", {}, max_nodes=1)
CPU = node_type("cpu", {"CPU": 1}, machine_type="m5.large")
HEAD = instance(
    "head", S.RAY_RUNNING, kind=NodeKind.HEAD, node_type="head", cloud_id="c-head", node_id="n-head"
)
_SHOWN = {S.RAY_STOPPING: NodeStatus.DRAINING}


def record(name: str, state: InstanceState, *, since: float = NOW, **changes: object) -> Instance:
    """A worker of type cpu; its machine and node are set when its state says that they are known."""
    known: dict[str, object] = {}
    if state in ON_CLOUD:
        known["cloud_id"] = f"c-{name}"
    if state in RUNNING | {S.RAY_STOPPED}:
        known["node_id"] = f"n-{name}"
    if state is S.REQUESTED:
        known["launch_request_id"] = "r-1"
    return instance(name, state, since=since, **{**known, **changes})


def unreported(*names: str) -> Memory:
    """What is remembered of records whose nodes the reports have lacked for longer than the grace."""
    return Memory(unreported=dict.fromkeys(names, (NOW - 31.0, NOW - 1.0, NOW - 31.0)))


def past(*steps: tuple[InstanceState, float]) -> tuple[StatusChange, ...]:
    """A history: `past((S.QUEUED, 1), (S.REQUESTED, 2))`."""
    return tuple(StatusChange(state, float(at)) for state, at in steps)


def machine(name: str, **changes: object):
    """The machine of record `name`."""
    return cloud_instance(f"c-{name}", **changes)


def node(name: str, status: NodeStatus = NodeStatus.RUNNING, **changes: object):
    """The node of record `name`: busy, on the record's machine."""
    return node_report(
        f"n-{name}", **{"cloud_id": f"c-{name}", "status": status, "available": BUSY, **changes}
    )


HEAD_MACHINE = machine("head", kind=NodeKind.HEAD, node_type="head")
HEAD_NODE = node("head", is_head=True, node_type="head", total=amounts({}), available=amounts({}))


def spec(*types, **changes: object) -> ClusterSpec:
    """The head's type and these worker types (cpu when none is given)."""
    return cluster_spec((HEAD_TYPE, *(types or (CPU,))), **{"head_node_type": "head", **changes})


def world(records=(), *, machines=None, nodes=None, demands=(), head=True, **changes: object) -> Snapshot:
    """Everything is listed as the records say, unless the test brings its own machines or nodes.

    `changes` are fields of the snapshot; `gangs`, `constraints` and `runtime_version` go into the report.
    """
    records = tuple(records)
    if machines is None:
        machines = [cloud_instance(r.cloud_id, node_type=r.node_type) for r in records if r.cloud_id]
    if nodes is None:
        nodes = [
            node(r.instance_id, _SHOWN.get(r.state, NodeStatus.RUNNING), node_type=r.node_type)
            for r in records
            if r.state in RUNNING
        ]
    if head:
        records, machines, nodes = (HEAD, *records), [HEAD_MACHINE, *machines], [HEAD_NODE, *nodes]
    report = RuntimeReport(
        version=changes.pop("runtime_version", 3),
        nodes=tuple(nodes),
        demands=tuple(demands),
        gangs=tuple(changes.pop("gangs", ())),
        constraints=tuple(changes.pop("constraints", ())),
    )
    return snapshot(records, cloud=machines, **{"runtime": report, "spec": spec(), **changes})


def after(seen: Snapshot, plan: Plan) -> dict[str, Instance]:
    """Every record as it is once the plan is committed, ended ones included."""
    return {**seen.instances, **{r.instance_id: r for r in plan.writes}}


def states(seen: Snapshot, plan: Plan) -> dict[str, str]:
    """State names after the tick, without the head."""
    return {i: r.state.name for i, r in after(seen, plan).items() if i != "head"}


def trail(seen: Snapshot, plan: Plan, name: str) -> list[str]:
    """The hops one record took in this tick."""
    written = {r.instance_id: r for r in plan.writes}
    if name not in written:
        return []
    before = len(seen.instances[name].history) if name in seen.instances else 0
    return [change.state.name for change in written[name].history[before:]]


def created(seen: Snapshot, plan: Plan) -> list[Instance]:
    """Records that did not exist before, in order."""
    return [r for r in plan.writes if r.instance_id not in seen.instances]


def tick(seen: Snapshot) -> tuple[dict[str, str], Plan]:
    """One reconcile: the states after it, and the plan."""
    plan = reconcile(seen)
    return states(seen, plan), plan


def following(seen: Snapshot, plan: Plan, *, seconds: float = 5.0, **changes: object) -> Snapshot:
    """The next tick's world: the plan is committed and remembered, everything else is as it was."""
    live = {i: r for i, r in after(seen, plan).items() if r.state not in TERMINAL}
    number = int(seen.tick_id.rpartition("-")[2]) + 1
    usual = {
        "tick_id": f"t-{number}",
        "now": seen.now + seconds,
        "version": seen.version + 1,
        "instances": live,
        "memory": plan.memory,
        "launch_failures": (),
        "terminate_failures": (),
        "drain_failures": (),
        "install_failures": (),
    }
    return replace(seen, **{**usual, **changes})


def unchanged(plan: Plan) -> bool:
    """Nothing was written and nothing is to be done."""
    return plan.writes == () and plan.actions == ()


FINE = record("fine", S.ALLOCATED)


def fine_world(records=(), *, machines=None, nodes=(), **changes) -> Snapshot:
    """`world` plus the record "fine", whose node has just come up: whatever is odd, it must get to run."""
    listed = machines if machines is None else [*machines, machine("fine")]
    return world([*records, FINE], machines=listed, nodes=[*nodes, node("fine")], **changes)


def sources(plan: Plan) -> list[str]:
    """What was set aside."""
    return [note.source for note in plan.quarantined]
