"""The few things the frozen data can say about itself, and the numbers that are wire facts."""

from __future__ import annotations

import pytest

from muster.cluster.model import (
    NEEDS_USER_ACTION,
    FailureKind,
    NodeKind,
    NodeStatus,
    StopCause,
)
from muster.testing.builders import cluster_spec, gang, instance, node_type


def test_wire_numbers_are_rays():
    assert {kind.name: kind.value for kind in NodeKind} == {"UNMANAGED": 0, "HEAD": 1, "WORKER": 2}
    assert {cause.name: cause.value for cause in StopCause} == {
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


def test_only_quota_permission_and_config_need_a_person():
    assert {FailureKind.QUOTA, FailureKind.PERMISSION, FailureKind.CONFIG} == NEEDS_USER_ACTION
