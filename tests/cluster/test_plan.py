"""The one log line of a tick."""

from __future__ import annotations

from tests.cluster.worlds import S, record

from muster.cluster.model import StopCause
from muster.cluster.plan import Drain, Launch, Plan, Terminate
from muster.cluster.snapshot import Quarantined


def test_a_tick_that_changed_nothing_has_no_line():
    assert Plan(tick_id="t-1", at=0.0).fields() == {}


def test_the_line_counts_states_calls_and_notes():
    plan = Plan(
        tick_id="t-1",
        at=0.0,
        writes=(record("a", S.REQUESTED), record("b", S.REQUESTED), record("c", S.TERMINATING)),
        actions=(
            Terminate(request_id="t", cloud_ids=("c",), instance_ids=("c",)),
            Launch(request_id="r", shape={"cpu": 2}, instance_ids=("a", "b")),
        ),
        quarantined=(Quarantined(source="x", message="y"),),
    )
    assert plan.fields() == {
        "tick": "t-1",
        "requested": 2,
        "terminating": 1,
        "terminate_calls": 1,
        "launch_calls": 1,
        "quarantined": 1,
    }


def test_only_an_idle_drain_may_be_refused():
    may = {
        cause: Drain(request_id="d", instance_id="i", node_id="n", cause=cause, deadline_s=0).may_be_refused
        for cause in StopCause
    }
    assert [cause for cause, refused in may.items() if refused] == [StopCause.IDLE]
