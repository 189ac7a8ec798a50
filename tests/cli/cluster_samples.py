"""A published cluster with one of everything, for the tests of `muster status`, `why` and the watch."""

from __future__ import annotations

from tests.support.builders import amounts, demand, gang, instance

from muster.autoscaler.status_files import PublishedStatus
from muster.cluster.model import NodeKind, NodeReport, NodeStatus, RuntimeReport, StatusChange
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.snapshot import FailedLaunch
from muster.cluster.states import InstanceState
from muster.cluster.status import StatusSnapshot

AT = 1_700_000_000.0
HEAD, BUSY, IDLE, COMING = "t-0a1b2c3d4e5f-i1", "t-5f4e3d2c1b0a-i1", "t-5f4e3d2c1b0a-i2", "t-99aa88bb77cc-i1"
_S = InstanceState


def published(**changes: object) -> PublishedStatus:
    """Head, one busy and one idle worker, one on its way; a demand that waits and one that never fits."""
    given: dict[str, object] = {
        "cluster_name": "laptop",
        "at": AT,
        "tick_id": "t-1",
        "version": 17,
        "interval_s": 1.0,
        "monitor_pid": 4242,
        "status": _status(),
        "instances": _instances(),
        "runtime": _runtime(),
        "recent_failures": (
            FailedLaunch(
                instance_id="t-77-i1",
                node_type="big",
                started_at=AT - 70,
                failed_at=AT - 60,
                reason="3 CPUs are more than this computer has (2)",
            ),
        ),
    }
    return PublishedStatus(**{**given, **changes})


def _instances():
    def record(name, state, node_type, since_s, details="", **more):
        history = (
            StatusChange(_S.QUEUED, AT - since_s - 5, "wanted"),
            StatusChange(state, AT - since_s, details),
        )
        return instance(name, state, node_type=node_type, history=history, **more)

    return (
        record(HEAD, _S.RAY_RUNNING, "head", 100, kind=NodeKind.HEAD, node_id="aa" * 28, cloud_id="head"),
        record(BUSY, _S.RAY_RUNNING, "small", 60, node_id="bb" * 28, cloud_id="small-1", price_per_hour=0.1),
        record(IDLE, _S.RAY_RUNNING, "big", 60, node_id="cc" * 28, cloud_id="big-1", price_per_hour=0.18),
        record(COMING, _S.ALLOCATED, "big", 4, "process 4711", cloud_id="big-2", price_per_hour=0.18),
    )


def _runtime():
    def node(node_id, total, available, status, idle_s=0.0, **more):
        return NodeReport(
            node_id=node_id,
            total=amounts({**total, "node:127.0.0.1": 1, "memory": 1e9}),
            available=amounts({**available, "node:127.0.0.1": 1, "memory": 1e9}),
            status=status,
            idle_s=idle_s,
            **more,
        )

    return RuntimeReport(
        nodes=(
            node("aa" * 28, {"CPU": 1}, {"CPU": 0}, NodeStatus.RUNNING, is_head=True, node_type="head"),
            node("bb" * 28, {"CPU": 1}, {"CPU": 0.5}, NodeStatus.RUNNING, node_type="small"),
            node("cc" * 28, {"CPU": 2}, {"CPU": 2}, NodeStatus.IDLE, 12.0, node_type="big"),
        ),
        demands=(demand({"CPU": 2}, 3), demand({"CPU": 64})),
        gangs=(gang([{"CPU": 1}] * 2, gang_id="4f00d1" + "0" * 30),),
    )


def _status():
    return StatusSnapshot(
        at=AT,
        instances={},
        price_per_hour=0.46,
        spent=0.01234,
        verdicts=(
            Verdict(
                subject=Subject.GANG,
                subject_id="4f00d1" + "0" * 30,
                reason=Reason.WAITING_FOR_LAUNCH,
                target="small",
                since=AT - 2,
            ),
            Verdict(
                subject=Subject.DEMAND,
                subject_id="0",
                reason=Reason.WAITING_FOR_NODE,
                target=COMING,
                count=1,
                since=AT - 9,
            ),
            Verdict(
                subject=Subject.DEMAND,
                subject_id="0",
                reason=Reason.BLOCKED_BY_TYPE_LIMIT,
                count=2,
                detail="big is at its maximum of 2",
                since=AT - 9,
            ),
            Verdict(
                subject=Subject.DEMAND,
                subject_id="1",
                reason=Reason.INFEASIBLE,
                detail="no node type can hold {CPU: 64}: nearest is big, which lacks CPU: 62",
                since=AT - 130,
            ),
            Verdict(
                subject=Subject.NODE_TYPE, subject_id="small", reason=Reason.TYPE_CHOSEN, detail="1 at $0.1"
            ),
            Verdict(subject=Subject.NODE_TYPE, subject_id="big", reason=Reason.TYPE_AT_MAXIMUM),
            Verdict(subject=Subject.NODE, subject_id=HEAD, reason=Reason.KEPT_HEAD),
            Verdict(subject=Subject.NODE, subject_id=BUSY, reason=Reason.KEPT_BUSY),
            Verdict(
                subject=Subject.NODE,
                subject_id=IDLE,
                reason=Reason.KEPT_NOT_IDLE_LONG_ENOUGH,
                detail="idle for 12 of 30 s",
            ),
            Verdict(subject=Subject.NODE, subject_id=COMING, reason=Reason.KEPT_PENDING),
        ),
        quarantined=(),
    )


GANG_IDS = ("3c45e2c3ac5651712c61f86eb4a401000000", "3c45e2c3ac565171aaaa000000b401000000")


def with_tuner() -> PublishedStatus:
    """As recorded while a tuner ran: trials are placement groups, types have the names of a cloud."""
    kind, spot = "worker-m6i-2xlarge-ondemand", "worker-g5-xlarge-spot"
    own = {"CPU": 8, "trainer": 2, "memory": 3e10, "object_store_memory": 1e10}
    states = [
        ("head", _S.RAY_RUNNING, "ray.head.default"),
        *((f"w{n}", _S.RAY_RUNNING, kind) for n in range(3)),
    ]
    states += [("idle", _S.RAY_RUNNING, spot), ("lost", _S.TERMINATING, spot)]
    records, nodes, verdicts = [], [], []
    for n, (name, state, node_type) in enumerate(states):
        own_id = f"t-0e5c7e0d79f5-i{n}"
        is_head, is_idle = name == "head", name == "idle"
        history = (StatusChange(_S.RAY_RUNNING, AT - 90), StatusChange(state, AT - 9, "its node is dead"))
        facts = {"kind": NodeKind.HEAD if is_head else NodeKind.WORKER, "history": history}
        facts |= {
            "node_id": f"{n}f" * 28,
            "cloud_id": f"i-0abc{n}",
            "price_per_hour": None if is_head else 1.006,
        }
        records.append(instance(own_id, state, node_type=node_type, **facts))
        total = {**own, **_of_gangs(n), "node:10.0.0.1": 1, "accelerator_type:A10G": 1}
        used = {} if is_idle else {"CPU": 8, "trainer": 2, "memory": 1.2e10, "object_store_memory": 24e6}
        free = {key: amount - used.get(key, 0) for key, amount in total.items()}
        status = NodeStatus.IDLE if is_idle else NodeStatus.RUNNING
        if state is _S.RAY_RUNNING:
            node = {
                "total": amounts(total),
                "available": amounts(free),
                "status": status,
                "idle_s": 12.0 * is_idle,
            }
            nodes.append(NodeReport(node_id=f"{n}f" * 28, node_type=node_type, is_head=is_head, **node))
        reason = Reason.KEPT_NOT_IDLE_LONG_ENOUGH if is_idle else Reason.KEPT_BUSY
        detail = "idle for 12 of 300 s" if is_idle else ""
        if state is _S.TERMINATING:
            reason, detail = Reason.LOST, "its node is dead"
        verdicts.append(Verdict(subject=Subject.NODE, subject_id=own_id, reason=reason, detail=detail))
    for gang_id in GANG_IDS:
        verdicts.append(
            Verdict(
                subject=Subject.GANG,
                subject_id=gang_id,
                reason=Reason.BLOCKED_BY_CLUSTER_LIMIT,
                detail="the cluster is at its maximum of 6 nodes, head included",
                since=AT - 600,
            )
        )
    bundles = [{"CPU": 1, "memory": 2e9}, *[{"CPU": 8, "GPU": 1, "memory": 1.6e10}] * 3]
    gangs = tuple(gang(bundles, gang_id=gang_id) for gang_id in GANG_IDS)
    status = StatusSnapshot(
        at=AT, instances={}, price_per_hour=5.03, spent=12.5, verdicts=tuple(verdicts), quarantined=()
    )
    runtime = RuntimeReport(nodes=tuple(nodes), gangs=gangs)
    return published(
        cluster_name="research", instances=tuple(records), runtime=runtime, status=status, recent_failures=()
    )


def _of_gangs(number: int) -> dict[str, float]:
    """What Ray adds to a node for each placement group on it."""
    group = f"4f{number}" * 12
    names = (f"CPU_group_{group}", f"CPU_group_0_{group}", f"bundle_group_{group}", f"bundle_group_0_{group}")
    return {name: 1000 if name.startswith("bundle") else 8 for name in names}
