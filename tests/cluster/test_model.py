"""The few things the frozen data can say about itself, and the numbers that are wire facts."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import S, past, record
from tests.support.builders import cluster_spec, gang, instance, node_type

from muster.cluster.model import (
    NEEDS_USER_ACTION,
    FailureKind,
    NodeKind,
    NodeStatus,
    StopCause,
)
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import Memory
from muster.stores.ledger.store import closing


def test_wire_numbers_are_rays():
    assert {kind.name: kind.value for kind in NodeKind} == {"UNMANAGED": 0, "HEAD": 1, "WORKER": 2}
    assert {cause.name: cause.value for cause in StopCause if cause.value < 100} == {
        "UNKNOWN": 0,
        "IDLE": 1,
        "MAX_NODES_PER_TYPE": 2,
        "MAX_NODES": 3,
        "OUTDATED": 4,
    }
    assert [status.name for status in sorted(NodeStatus, key=lambda s: s.value)] == [
        "UNSPECIFIED",
        "RUNNING",
        "DEAD",
        "IDLE",
        "DRAINING",
    ]


def test_a_spec_finds_its_types_by_name():
    spec = cluster_spec([node_type("a"), node_type("b", max_nodes=3)])
    assert spec.node_type("b") == node_type("b", max_nodes=3)
    assert spec.node_type("c") is None


def test_a_gang_marks_its_nodes_by_its_id():
    assert gang(gang_id="train").label == "_PG_train"


def test_records_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        instance().state = None


def test_only_quota_permission_config_and_set_up_need_a_person():
    kinds = {FailureKind.QUOTA, FailureKind.PERMISSION, FailureKind.CONFIG, FailureKind.SETUP}
    assert kinds == NEEDS_USER_ACTION


@pytest.mark.parametrize(
    ("steps", "changes", "lost_as"),
    [
        ((S.ALLOCATED, S.RAY_RUNNING, S.RAY_STOPPED, S.TERMINATING), {}, S.RAY_STOPPED),
        ((S.ALLOCATED, S.RAY_RUNNING, S.TERMINATED), {}, S.TERMINATED),
        ((S.REQUESTED, S.ALLOCATED, S.TERMINATED), {}, S.TERMINATED),
        ((S.ALLOCATED, S.RAY_STOPPED), {}, S.RAY_STOPPED),
        ((S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_RUNNING, S.RAY_STOPPED), {}, S.RAY_STOPPED),
        # what the autoscaler or somebody else asked for
        ((S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_STOPPED), {"stop_cause": StopCause.IDLE}, None),
        ((S.RAY_RUNNING, S.RAY_STOPPING, S.RAY_STOPPED), {}, None),
        ((S.REQUESTED, S.ALLOCATED, S.TERMINATED), {"cancelled": True}, None),
        ((S.ALLOCATED, S.TERMINATED), {"stop_cause": StopCause.MAX_NODES}, None),
        ((S.ALLOCATED, S.ALLOCATION_TIMEOUT, S.TERMINATING), {}, None),
        ((S.QUEUED, S.TERMINATED), {}, None),
        ((S.ALLOCATED, S.RAY_RUNNING), {}, None),
    ],
)
def test_a_machine_is_lost_when_it_goes_and_nobody_asked_for_it(steps, changes, lost_as):
    history = past(*((state, at) for at, state in enumerate(steps)))
    loss = record("a", steps[-1], history=history, **changes).loss
    assert (loss.state if loss else None) is lost_as


def test_a_machine_that_muster_down_ended_is_not_lost():
    running = record("a", S.RAY_RUNNING, history=past((S.RAY_RUNNING, 1)))
    ledger = Ledger(
        version=1, instances={"a": running}, memory=Memory(), outbox=(), recent_failures=(), newest_at=1.0
    )
    (ended,) = closing(ledger, "t", 2.0).writes
    assert (ended.state, ended.loss) == (S.TERMINATED, None)
