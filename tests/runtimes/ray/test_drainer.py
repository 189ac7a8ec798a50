"""GcsDrainer towards a GCS that is away, slow, or says no (SB-1..3); the real one: test_3_real_drains."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.runtimes.ray.conftest import wait_for

from muster.base.clock import ManualClock
from muster.base.ids import InstanceId, NodeId, RequestId
from muster.cluster.model import DrainFailure, StopCause
from muster.cluster.plan import Drain
from muster.errors import EngineUnreachable
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.drainer import GcsDrainer

Call = tuple[str, int, str, int]


class ScriptedLink(GcsClient):
    """A link whose GCS answers as told; no connection is made."""

    def __init__(self, answer: Callable[[str], tuple[bool, str]]) -> None:
        super().__init__("127.0.0.1:1")
        self.calls: list[Call] = []
        self._answer = answer

    def drain_node(self, node_id: str, reason: int, message: str, deadline_ms: int) -> tuple[bool, str]:
        self.calls.append((node_id, reason, message, deadline_ms))
        return self._answer(node_id)


def drain(number: int, cause: StopCause, *, deadline_s: float = 60.0, message: str = "") -> Drain:
    return Drain(
        request_id=RequestId(f"r-{number}"),
        instance_id=InstanceId(f"i-{number}"),
        node_id=NodeId(f"{number:02x}"),
        cause=cause,
        deadline_s=deadline_s,
        message=message,
    )


@pytest.mark.conformance("SB-2", "SB-3")
def test_only_an_idle_node_is_asked_all_others_get_a_deadline() -> None:
    link = ScriptedLink(lambda _: (True, ""))
    drainer = GcsDrainer(link, ManualClock(now=1000.0))
    for number, cause in enumerate(StopCause):
        drainer.drain(drain(number, cause, message="why"))
    drainer.drain(drain(9, StopCause.MAX_NODES, deadline_s=0.0))
    drainer.close(drop=False)
    assert sorted(link.calls) == [
        ("00", 2, "why", 1_060_000),
        ("01", 1, "why", 1_060_000),
        ("02", 2, "why", 1_060_000),
        ("03", 2, "why", 1_060_000),
        ("04", 2, "why", 1_060_000),
        ("05", 2, "why", 1_060_000),
        ("06", 2, "why", 1_060_000),
        ("07", 2, "why", 1_060_000),
        ("08", 2, "why", 1_060_000),
        ("09", 2, "removed by the autoscaler: max_nodes", 1_001_000),
    ]
    assert drainer.poll() == ()


@pytest.mark.conformance("SB-2", "SB-3")
def test_refused_and_undelivered_drains_come_back_once() -> None:
    def answer(node_id: str) -> tuple[bool, str]:
        if node_id == "01":
            raise EngineUnreachable("no Ray GCS answers")
        return False, "no longer idle" if node_id == "02" else ""

    drainer = GcsDrainer(ScriptedLink(answer))
    for number in (1, 2, 3):
        drainer.drain(drain(number, StopCause.IDLE))
    drainer.close(drop=False)
    assert sorted(drainer.poll(), key=lambda failure: failure.instance_id) == [
        DrainFailure(instance_id=InstanceId("i-1"), message="no Ray GCS answers"),
        DrainFailure(instance_id=InstanceId("i-2"), message="no longer idle"),
        DrainFailure(instance_id=InstanceId("i-3"), message="the node refused to be drained"),
    ]
    assert drainer.poll() == ()


def test_a_slow_node_does_not_keep_the_others_waiting() -> None:
    held = threading.Event()

    def answer(node_id: str) -> tuple[bool, str]:
        if node_id == "00":
            held.wait(60)
        return False, "no"

    drainer = GcsDrainer(ScriptedLink(answer))
    try:
        for number in (0, 1):
            drainer.drain(drain(number, StopCause.IDLE))
        assert [failure.instance_id for failure in wait_for(drainer.poll, bool)] == ["i-1"]
    finally:
        held.set()
        drainer.close()


def test_a_drain_is_under_way_until_its_answer_is_known_and_is_sent_once() -> None:
    answers = threading.Event()

    def answer(node_id: str) -> tuple[bool, str]:
        answers.wait(60)
        return node_id == "00", "no longer idle"

    link = ScriptedLink(answer)
    drainer = GcsDrainer(link)
    taken, refused = drain(0, StopCause.IDLE), drain(1, StopCause.IDLE)
    for action in (taken, refused, taken, refused):  # the outbox repeats what is under way
        drainer.drain(action)
    assert drainer.under_way(taken.request_id)
    answers.set()
    drainer.close(drop=False)
    drainer.drain(taken)
    assert not drainer.under_way(taken.request_id)
    assert drainer.under_way(refused.request_id)  # nobody has heard of it: a new monitor must ask again
    assert len(drainer.poll()) == 1
    assert not drainer.under_way(refused.request_id)
    assert sorted(call[0] for call in link.calls) == ["00", "01"]
