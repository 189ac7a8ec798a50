"""A published cluster with one of everything, for the tests of `muster status`, `why` and the watch."""

from __future__ import annotations

from muster.autoscaler.status_files import PublishedStatus
from muster.cluster.model import NodeKind, NodeReport, NodeStatus, RuntimeReport, StatusChange
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.snapshot import FailedLaunch
from muster.cluster.states import InstanceState
from muster.cluster.status import StatusSnapshot
from muster.testing.builders import amounts, demand, gang, instance

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
