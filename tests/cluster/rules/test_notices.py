"""A node whose machine the cloud will take is drained until then, and its replacement planned at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, after, created, following, node, record, spec, tick, unchanged, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, amounts, demand, node_type

from muster.cluster.model import (
    DrainFailure,
    LaunchLimits,
    NodeKind,
    NodeStatus,
    Notice,
    NoticeKind,
    NoticePolicy,
    Offer,
    StopCause,
)
from muster.cluster.plan import Drain, Launch, Reason, Subject
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits, TypeHealth

SPOT_A = Offer(zone="a", market="spot", price_per_hour=1.0)
SPOT_B = Offer(zone="b", market="spot", price_per_hour=2.0)
GPU = node_type("gpu", {"CPU": 4}, offers=(SPOT_A, SPOT_B))
TRAITS = ProviderTraits(buys_offers=True)
SOON = NOW + 120.0


def notice(name="a", kind=NoticeKind.INTERRUPTION, **changes):
    made = Notice(cloud_id=f"c-{name}", kind=kind, deadline=SOON, source="aws", at=NOW)
    return replace(made, **changes)


def serving(name="a", **changes):
    return record(
        name, S.RAY_RUNNING, **{"node_type": "gpu", "offer": SPOT_A, "price_per_hour": 1.0, **changes}
    )


def busy(name="a", status=NodeStatus.RUNNING, used=4.0, **changes):
    free = amounts({"CPU": 4.0 - used})
    return node(name, status, node_type="gpu", total=amounts({"CPU": 4}), available=free, **changes)


def given(*notices, records=None, nodes=None, **changes):
    records = [serving()] if records is None else records
    nodes = [busy(one.instance_id) for one in records] if nodes is None else nodes
    known = spec(GPU, limits=LaunchLimits(upscaling_speed=10.0))
    return world(records, **{"spec": known, "nodes": nodes, "notices": notices, "traits": TRAITS, **changes})


def drains(plan):
    return [action for action in plan.actions if isinstance(action, Drain)]


def launches(plan):
    return [(action.offer, dict(action.shape)) for action in plan.actions if isinstance(action, Launch)]


def test_the_node_gets_until_the_deadline_and_its_replacement_comes_from_another_zone_in_the_same_tick():
    seen = given(notice())
    states, plan = tick(seen)
    (drain,) = drains(plan)
    assert states["a"] == "RAY_STOP_REQUESTED"
    assert (drain.node_id, drain.cause, drain.deadline_s) == ("n-a", StopCause.NOTICE, 120.0)
    assert_line("cluster", "interruption notice", drain.message)
    assert launches(plan) == [(SPOT_B, {"gpu": 1})]
    assert plan.memory.health["gpu a/spot"].blocked_until == NOW + 180.0
    assert plan.memory.noticed == {"c-a": NoticeKind.INTERRUPTION}


def test_work_that_fits_on_free_room_needs_no_replacement():
    records = [serving(), serving("b", offer=SPOT_B)]
    plan = reconcile(given(notice(), records=records, nodes=[busy("a", used=2.0), busy("b", used=1.0)]))
    assert len(drains(plan)) == 1
    assert launches(plan) == []


def test_an_idle_node_under_notice_is_not_replaced_unless_a_minimum_wants_it():
    idle = [busy(used=0.0)]
    assert launches(reconcile(given(notice(), nodes=idle))) == []
    least = spec(replace(GPU, min_nodes=1))
    assert launches(reconcile(given(notice(), nodes=idle, spec=least))) == [(SPOT_B, {"gpu": 1})]


def test_the_replacement_may_come_while_the_type_is_at_its_maximum():
    full = spec(replace(GPU, max_nodes=1))
    assert launches(reconcile(given(notice(), spec=full))) == [(SPOT_B, {"gpu": 1})]


def test_the_replacement_is_asked_for_once():
    seen = given(notice())
    plan = reconcile(seen)
    again = following(seen, plan, now=NOW + 5.0)
    assert drains(reconcile(again)) == []
    assert launches(reconcile(again)) == []


def test_a_repeated_notice_changes_nothing_while_the_node_drains():
    draining = record("a", S.RAY_STOPPING, node_type="gpu", offer=SPOT_A, stop_cause=StopCause.NOTICE)
    seen = given(
        notice(),
        records=[draining],
        nodes=[busy(status=NodeStatus.DRAINING, used=0.0)],
        memory=Memory(noticed={"c-a": NoticeKind.INTERRUPTION}),
    )
    assert unchanged(reconcile(seen))


def test_work_that_waits_for_a_replacement_is_explained_and_not_reported_as_infeasible():
    only = spec(replace(GPU, max_nodes=0))
    plan = reconcile(given(notice(), spec=only))
    (why,) = [v for v in plan.verdicts if v.subject is Subject.DEMAND]
    assert (why.subject_id.split()[-1], why.reason) == ("a", Reason.BLOCKED_BY_TYPE_LIMIT)
    assert plan.report.infeasible_demands == ()


def test_without_another_pool_the_same_one_is_used_at_once():
    alone = spec(replace(GPU, offers=(SPOT_A,)))
    plan = reconcile(given(notice(), spec=alone))
    assert launches(plan) == [(SPOT_A, {"gpu": 1})]
    assert plan.memory.health == {}


def test_maintenance_of_one_machine_says_nothing_about_its_pool():
    plan = reconcile(given(notice(kind=NoticeKind.MAINTENANCE)))
    assert len(drains(plan)) == 1
    assert plan.memory.health == {}


def test_a_deadline_far_away_is_announced_and_waited_for():
    plan = reconcile(given(notice(kind=NoticeKind.MAINTENANCE, deadline=NOW + 7200.0)))
    assert drains(plan) == []
    (last,) = [v for v in plan.verdicts if v.subject_id == "a"][-1:]
    assert last.reason is Reason.WILL_BE_TAKEN
    assert_line("cluster", "maintenance notice", last.detail)


def test_a_rebalance_notice_has_a_deadline_of_the_config_or_none():
    risk = notice(kind=NoticeKind.REBALANCE, deadline=None)
    (drain,) = drains(reconcile(given(risk)))
    assert drain.deadline_s == 600.0
    stays = spec(GPU, notices=NoticePolicy(rebalance_s=None))
    plan = reconcile(given(risk, spec=stays))
    assert drains(plan) == []
    assert "gpu a/spot" in plan.memory.health


def test_the_head_is_never_drained():
    plan = reconcile(given(notice(), records=[serving(kind=NodeKind.HEAD)]))
    assert drains(plan) == []
    assert any(v.reason is Reason.WILL_BE_TAKEN and "head" in v.detail for v in plan.verdicts)


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_STOPPED, S.TERMINATING])
def test_a_machine_without_a_serving_node_is_left_to_the_other_rules(state):
    seen = given(notice(), records=[record("a", state, node_type="gpu", node_id=None)], nodes=[])
    assert drains(reconcile(seen)) == []


def test_a_notice_for_an_unknown_machine_is_reported_and_ignored():
    plan = reconcile(given(notice("other"), nodes=[busy()]))
    assert drains(plan) == []
    (note,) = plan.quarantined
    assert note.source.split() == ["notice", "c-other"]
    assert_line("cluster", "notice for an unknown machine", note.message)


def test_the_notice_of_a_machine_that_is_gone_by_now_is_not_an_unknown_one():
    known = Memory(noticed={"c-gone": NoticeKind.INTERRUPTION})
    plan = reconcile(given(notice("gone"), memory=known))
    assert plan.quarantined == ()
    assert plan.memory.noticed == known.noticed


def test_a_machine_that_lives_long_after_its_deadline_stays():
    plan = reconcile(given(notice(deadline=NOW - 4000.0)))
    assert drains(plan) == []
    assert_line("cluster", "notice after its deadline", plan.quarantined[0].message)


def test_a_node_that_came_after_the_deadline_is_a_new_one_on_a_restarted_machine():
    assert drains(reconcile(given(notice(deadline=NOW - 10.0)))) == []
    old = serving(since=NOW - 60.0)
    (drain,) = drains(reconcile(given(notice(deadline=NOW - 10.0), records=[old])))
    assert drain.deadline_s == 0.0


def test_a_machine_that_was_stopped_and_started_has_a_new_life_without_its_notice():
    old = notice(kind=NoticeKind.REBALANCE, deadline=None, at=NOW - 100.0)
    assert drains(reconcile(given(old, records=[serving(since=NOW - 60.0)]))) == []
    assert len(drains(reconcile(given(old, records=[serving(since=NOW - 90.0)])))) == 1


def test_a_cancelled_notice_is_not_taken_back_when_the_replacement_needs_the_room():
    seen = given(notice(), spec=spec(replace(GPU, max_nodes=1)))
    plan = reconcile(seen)
    back = following(seen, plan, now=NOW + 5.0, notices=(notice(is_cancelled=True),))
    assert after(back, reconcile(back))["a"].state is S.RAY_STOP_REQUESTED


def test_a_cancelled_notice_is_taken_back_before_the_drain_begins():
    seen = given(notice())
    plan = reconcile(seen)
    back = following(seen, plan, now=NOW + 5.0, notices=(notice(is_cancelled=True),))
    taken = reconcile(back)
    states = {key: one.state.name for key, one in after(back, taken).items()}
    assert states["a"] == "RAY_RUNNING"
    assert after(back, taken)["a"].stop_cause is None
    assert "gpu a/spot" not in taken.memory.health
    assert taken.memory.noticed == {}


def test_a_cancelled_notice_does_not_end_the_trial_of_a_pool_whose_set_ups_failed():
    memory = Memory(health={"gpu a/spot": TypeHealth(failures=1.0, failed_at=NOW - 900.0, is_on_trial=True)})
    seen = given(notice(), memory=memory)
    back = following(seen, reconcile(seen), now=NOW + 5.0, notices=(notice(is_cancelled=True),))
    health = reconcile(back).memory.health["gpu a/spot"]
    assert (health.is_on_trial, health.blocked_until) == (True, NOW + 5.0)


def test_a_drain_that_has_begun_goes_on_after_a_cancelled_notice():
    draining = record("a", S.RAY_STOPPING, node_type="gpu", stop_cause=StopCause.NOTICE)
    seen = given(
        notice(is_cancelled=True), records=[draining], nodes=[busy(status=NodeStatus.DRAINING, used=0.0)]
    )
    assert after(seen, reconcile(seen))["a"].state is S.RAY_STOPPING


@pytest.mark.parametrize("notices", [(notice(),), None], ids=["read", "not readable"])
def test_a_refused_drain_is_repeated_at_once_because_the_replacement_comes(notices):
    seen = given(notice())
    refused = following(
        seen,
        reconcile(seen),
        now=NOW + 7.0,
        drain_failures=(DrainFailure(instance_id="a", message="no"),),
        notices=notices,
    )
    plan = reconcile(refused)
    (drain,) = drains(plan)
    assert drain.deadline_s == (SOON - NOW - 7.0 if notices else 60.0)
    assert after(refused, plan)["a"].state is S.RAY_STOP_REQUESTED
    assert launches(plan) == []


@pytest.mark.parametrize(("most", "state"), [(1, S.RAY_STOP_REQUESTED), (2, S.RAY_RUNNING)])
def test_a_refused_drain_whose_notice_is_cancelled_is_repeated_where_the_replacement_took_the_room(
    most, state
):
    seen = given(notice(), spec=spec(replace(GPU, max_nodes=most)))
    changes = {"drain_failures": (DrainFailure(instance_id="a", message="no"),), "cloud": None}
    for seconds in (5.0, 10.0):
        seen = following(
            seen, reconcile(seen), now=NOW + seconds, notices=(notice(is_cancelled=True),), **changes
        )
        assert after(seen, reconcile(seen))["a"].state is state


def test_notices_that_could_not_be_read_are_still_known():
    memory = Memory(noticed={"c-a": NoticeKind.REBALANCE})
    assert reconcile(given(memory=memory, notices=None)).memory.noticed == memory.noticed


def test_nothing_is_drained_for_a_provider_that_is_only_watched():
    assert drains(reconcile(given(notice(), traits=ProviderTraits(read_only=True)))) == []


def test_no_new_records_without_work_or_demand():
    seen = given(notice(), nodes=[busy(used=0.0)], demands=[demand({"CPU": 4})])
    assert len(created(seen, reconcile(seen))) == 1


def leaving(state=S.RAY_STOPPING, cause=StopCause.NOTICE):
    return record(
        "a", state, node_type="gpu", offer=SPOT_A, price_per_hour=1.0, stop_cause=cause, node_id="n-a"
    )


def told(until, **changes):
    memory = Memory(noticed={"c-a": NoticeKind.INTERRUPTION}, drained_until={"c-a": until})
    return {"memory": memory, "nodes": [busy("a", NodeStatus.DRAINING)], **changes}


@pytest.mark.parametrize("state", [S.RAY_STOP_REQUESTED, S.RAY_STOPPING])
def test_a_deadline_that_comes_nearer_is_passed_on_to_the_drain_that_runs(state):
    seen = given(notice(deadline=NOW + 30.0), records=[leaving(state)], **told(SOON))
    plan = reconcile(seen)
    (drain,) = drains(plan)
    assert (drain.node_id, drain.deadline_s, drain.cause) == ("n-a", 30.0, StopCause.NOTICE)
    assert plan.memory.drained_until == {"c-a": NOW + 30.0}
    assert drains(reconcile(following(seen, plan, seconds=1.0))) == []


@pytest.mark.parametrize("deadline", [SOON, SOON - 0.5, SOON + 60.0])
def test_a_deadline_that_is_the_same_or_later_changes_nothing(deadline):
    seen = given(notice(deadline=deadline), records=[leaving()], **told(SOON))
    assert drains(reconcile(seen)) == []


def test_a_recommendation_that_becomes_a_notice_shortens_the_drain():
    seen = given(notice(kind=NoticeKind.REBALANCE, deadline=None))
    plan = reconcile(seen)
    assert drains(plan)[0].deadline_s == 600.0
    later = following(seen, plan, seconds=5.0)
    seen = replace(later, notices=(notice(deadline=later.now + 120.0),))
    assert [drain.deadline_s for drain in drains(reconcile(seen))] == [120.0]


@pytest.mark.parametrize(("cause", "asked"), [(StopCause.OUTDATED, [5.0]), (StopCause.IDLE, []), (None, [])])
def test_a_drain_for_another_reason_is_shortened_unless_nothing_runs_or_it_is_not_ours(cause, asked):
    seen = given(notice(deadline=NOW + 5.0), records=[leaving(cause=cause)], nodes=[busy()])
    assert [drain.deadline_s for drain in drains(reconcile(seen))] == asked


def test_a_refused_drain_of_an_idle_node_is_not_repeated_because_its_notice_was_cancelled():
    used_again = leaving(S.RAY_STOP_REQUESTED, StopCause.IDLE)
    changes = told(NOW - 60.0, nodes=[busy()], drain_failures=(DrainFailure(instance_id="a", message="no"),))
    full = spec(replace(GPU, max_nodes=0))
    plan = reconcile(given(notice(is_cancelled=True), records=[used_again], spec=full, **changes))
    assert [(one.cause, one.deadline_s) for one in drains(plan)] == [(StopCause.MAX_NODES_PER_TYPE, 60.0)]


def test_what_was_told_is_forgotten_with_the_machine():
    memory = Memory(drained_until={"c-gone": SOON})
    assert reconcile(given(records=[], memory=memory)).memory.drained_until == {}


def test_a_notice_that_came_while_no_monitor_ran_is_acted_on_if_it_still_holds():
    """The ledger knows nothing of it, and it was read a while before this monitor started."""
    waiting = notice(at=NOW - 60.0, deadline=NOW + 60.0)
    seen = given(waiting, records=[serving(since=NOW - 500.0)])
    assert [drain.deadline_s for drain in drains(reconcile(seen))] == [60.0]
