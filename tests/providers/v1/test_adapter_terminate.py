"""V1Adapter gives machines back; only those that are really still there count as failed."""

from __future__ import annotations

import pytest
from tests.providers.v1.scripted import Scripted, adapted

from muster.cluster.model import FailureKind, TerminateFailure


@pytest.fixture
def v1():
    return Scripted()


@pytest.fixture
def port(v1):
    port = adapted(v1)
    port.launch("r-1", {"cpu": 4})
    return port


@pytest.mark.conformance("NP-3")
def test_np_3_a_termination_error_leaves_the_node_and_is_told(v1, port):
    node_id = next(iter(port.list_instances()))

    def refuse(node_id):
        raise PermissionError("not yours")

    v1.before_terminate = refuse
    port.terminate("t-1", [node_id])
    assert port.poll_terminate_failures() == (
        TerminateFailure(cloud_id=node_id, kind=FailureKind.PERMISSION, message="PermissionError: not yours"),
    )
    assert port.poll_terminate_failures() == ()
    assert node_id in port.list_instances()


def test_a_batch_that_breaks_at_one_machine_fails_that_one_only(v1, port):
    first, bad, *others = port.list_instances()

    def refuse_one(node_id):
        if node_id == bad:
            raise RuntimeError("busy")

    v1.before_terminate = refuse_one
    port.terminate("t-1", [first, bad, *others])
    assert [(f.cloud_id, f.message) for f in port.poll_terminate_failures()] == [(bad, "RuntimeError: busy")]
    assert list(port.list_instances()) == [bad]


def test_a_batch_that_did_its_work_and_lost_the_reply_is_a_success(v1, port):
    ids = list(port.list_instances())

    def all_gone_then_break(node_id):
        for other in ids:
            v1.nodes[other]["state"] = "terminated"
        raise TimeoutError("no answer")

    v1.before_terminate = all_gone_then_break
    port.terminate("t-1", ids)
    assert port.poll_terminate_failures() == ()
    assert port.list_instances() == {}


def test_a_cloud_that_wants_us_to_slow_down_is_not_asked_once_per_machine(v1, port):
    ids = list(port.list_instances())

    def throttled(node_id):
        raise RuntimeError("RequestLimitExceeded: too many requests")

    v1.before_terminate = throttled
    port.terminate("t-1", ids)
    assert v1.terminates == [ids]
    assert [(f.cloud_id, f.kind) for f in port.poll_terminate_failures()] == [
        (node_id, FailureKind.THROTTLED) for node_id in ids
    ]


def test_when_nobody_can_say_what_is_left_every_machine_of_the_call_counts_as_left(v1, port):
    ids = list(port.list_instances())

    def broken(*_):
        raise ConnectionError("down")

    v1.before_terminate = v1.before_list = broken
    port.terminate("t-1", ids)
    assert [f.cloud_id for f in port.poll_terminate_failures()] == ids


def test_unknown_ids_and_repeated_requests_are_no_failure_and_no_second_call(v1, port):
    ids = list(port.list_instances())
    port.terminate("t-1", ids)
    port.terminate("t-1", ids)
    port.terminate("t-2", ["never-heard-of"])
    assert port.poll_terminate_failures() == ()
    assert v1.terminates == [ids, ["never-heard-of"]]


def test_large_requests_are_cut_to_what_the_provider_takes(v1, port):
    type(v1).max_terminate_nodes = 3
    try:
        ids = list(port.list_instances())
        port.terminate("t-1", ids)
    finally:
        del type(v1).max_terminate_nodes
    assert v1.terminates == [ids[:3], ids[3:]]
    assert port.list_instances() == {}
