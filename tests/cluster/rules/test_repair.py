"""Records that make no sense (the list of cases is 10.1.6 and 10.1.7 in test_robustness)."""

from __future__ import annotations

from tests.cluster.worlds import S, after, created, machine, node, past, record, tick, unchanged, world
from tests.mistakes.views import assert_line

from muster.cluster.reconcile import reconcile


def test_sound_records_are_left_alone():
    seen = world([record("a", S.RAY_RUNNING), record("b", S.ALLOCATED), record("c", S.REQUESTED)])
    plan = reconcile(seen)
    assert unchanged(plan)
    assert plan.quarantined == ()


def test_the_machine_of_a_record_without_a_type_gets_a_new_record_in_the_same_tick():
    seen = world([record("odd", S.RAY_RUNNING, node_type="")], machines=[machine("odd")], nodes=[node("odd")])
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states["odd"] == "TERMINATED"
    assert (new.cloud_id, new.node_type, new.state) == ("c-odd", "cpu", S.ALLOCATED)
    assert plan.actions == ()


def test_a_history_whose_newest_line_is_another_state_is_dated_by_the_line_of_its_state():
    """Nothing is missing: the time is the newest entry of the current state."""
    story = past((S.ALLOCATED, 990), (S.RAY_RUNNING, 995))
    seen = world([record("a", S.ALLOCATED, history=story)])
    plan = reconcile(seen)
    assert unchanged(plan)
    assert plan.quarantined == ()


def test_the_reason_for_closing_is_in_the_record():
    seen = world([record("odd", S.TERMINATING, cloud_id=None)])
    assert_line("cluster", "closed record", after(seen, reconcile(seen))["odd"].details)
