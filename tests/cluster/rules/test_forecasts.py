"""What tuners expect: room is launched ahead and kept for it, and given up without it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, created, node, record, spec, tick, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, amounts, demand, node_type

from muster.base.forecast import ComingWork, Forecast, RunningTrial
from muster.cluster.model import DriverReport, Gang, NodeStatus, Objective, Strategy
from muster.cluster.plan import Reason, Subject
from muster.cluster.reconcile import reconcile

ONE = amounts({"CPU": 1})
PRICED = node_type("cpu", {"CPU": 1}, price_per_hour=1.0, max_nodes=100)


def priced(**changes):
    usual = {"objective": Objective.COST, "max_nodes": 101}
    return spec(PRICED, **{**usual, **changes})


def waiting(count):
    return tuple(
        Gang(gang_id=f"g{i}", strategy=Strategy.PACK, options=((demand(ONE),),)) for i in range(count)
    )


def forecast(*coming, trials=(), **changes):
    usual = {"experiment": "e", "driver": "d", "at": NOW, "is_complete": True}
    return Forecast(coming=coming, trials=tuple(trials), **{**usual, **changes})


def running(name, rest_s):
    return RunningTrial(trial_id=name, node_id=f"n-{name}", shape=ONE, is_movable=True, rest_s=rest_s)


def launched(seen):
    return len(created(seen, reconcile(seen)))


def drivers(seen, live):
    return replace(seen, runtime=replace(seen.runtime, drivers=DriverReport(live=live)))


def test_nodes_for_a_rung_that_opens_within_a_boot_time_are_bought_now():
    soon = forecast(ComingWork(shape=ONE, count=2, start_s=100.0, each_s=3600.0))
    later = forecast(ComingWork(shape=ONE, count=2, start_s=1000.0, each_s=3600.0))
    assert launched(world(spec=priced(), forecasts=(soon,))) == 2
    assert launched(world(spec=priced(), forecasts=(later,))) == 0


def test_nothing_is_bought_for_work_that_will_be_over_before_a_machine_could_serve():
    brief = forecast(ComingWork(shape=ONE, count=2, start_s=20.0, end_s=140.0, each_s=60.0))
    assert launched(world(spec=priced(), forecasts=(brief,))) == 0


def test_unlikely_work_is_not_bought_for():
    unlikely = forecast(ComingWork(shape=ONE, count=2, start_s=20.0, each_s=3600.0, probability=0.4))
    assert launched(world(spec=priced(), forecasts=(unlikely,))) == 0


def test_an_idle_node_that_work_will_need_is_kept_beyond_its_timeout():
    idle = node("a", NodeStatus.IDLE, available=ONE, idle_s=400.0)
    soon = forecast(ComingWork(shape=ONE, count=1, start_s=60.0, each_s=600.0))
    seen = world([record("a", S.RAY_RUNNING)], nodes=[idle], spec=priced())
    assert tick(seen)[0] == {"a": "RAY_STOP_REQUESTED"}
    assert tick(replace(seen, forecasts=(soon,)))[0] == {"a": "RAY_RUNNING"}


def test_an_idle_node_that_nothing_will_need_goes_at_once_where_every_driver_forecasts():
    idle = node("a", NodeStatus.IDLE, available=ONE, idle_s=16.0)
    seen = world([record("a", S.RAY_RUNNING)], nodes=[idle], spec=priced(), forecasts=(forecast(),))
    assert tick(drivers(seen, 1))[0] == {"a": "RAY_STOP_REQUESTED"}
    assert tick(drivers(seen, 2))[0] == {"a": "RAY_RUNNING"}, "another driver may need it"
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}, "it is not known who else is there"
    partial = replace(seen, forecasts=(forecast(is_complete=False),))
    assert tick(drivers(partial, 1))[0] == {"a": "RAY_RUNNING"}


def test_the_forecast_of_a_driver_that_has_ended_says_nothing_about_the_one_that_lives():
    """A tuner that was killed, or has just ended, leaves its forecast for a minute."""
    idle = node("a", NodeStatus.IDLE, available=ONE, idle_s=16.0)
    seen = world([record("a", S.RAY_RUNNING)], nodes=[idle], spec=priced(), forecasts=(forecast(),))

    def with_driver(name):
        report = DriverReport(live=1, names=(name,))
        return replace(seen, runtime=replace(seen.runtime, drivers=report))

    assert tick(with_driver("d"))[0] == {"a": "RAY_STOP_REQUESTED"}
    assert tick(with_driver("another"))[0] == {"a": "RAY_RUNNING"}


def test_trials_that_get_a_place_before_a_machine_could_boot_wait_for_it_and_are_told_so():
    """Two running trials end in 30 s; each place serves two waiting ones of 60 s within the boot time."""
    records = [record(name, S.RAY_RUNNING) for name in ("a", "b")]
    coming = ComingWork(shape=ONE, count=4, each_s=60.0)
    told = forecast(coming, trials=[running("a", 30.0), running("b", 30.0)])
    seen = world(records, gangs=waiting(4), spec=priced(), forecasts=(told,))
    plan = reconcile(seen)
    assert created(seen, plan) == []
    verdicts = {v.subject_id: v for v in plan.verdicts if v.subject is Subject.GANG}
    assert {v.reason for v in verdicts.values()} == {Reason.WAITING_FOR_TURN}
    assert_line("cluster", "waiting for its turn", verdicts["g0"].detail)


def test_without_a_forecast_the_same_trials_get_machines():
    seen = world([record("a", S.RAY_RUNNING)], gangs=waiting(4), spec=priced())
    assert launched(seen) == 4


@pytest.mark.parametrize(("each_s", "expected"), [(3600.0, 10), (600.0, 4), (60.0, 1)])
def test_no_more_machines_are_bought_than_spend_a_tenth_of_their_time_on_booting(each_s, expected):
    """Ten trials: 10 h of work are worth all ten places, 100 min (6,000 s / 1,500 s) four, 10 min one."""
    told = forecast(ComingWork(shape=ONE, count=10, each_s=each_s))
    seen = world(gangs=waiting(10), spec=priced(), forecasts=(told,))
    assert launched(seen) == expected


def test_work_that_waits_for_a_rung_to_open_makes_no_more_places_worth_their_boot_now():
    """Ten trials of 600 s are worth four places of 1,500 s; one that follows is long, but needs one place."""
    now = ComingWork(shape=ONE, count=10, each_s=600.0)
    rung = ComingWork(shape=ONE, count=1, start_s=6000.0, end_s=42_000.0, each_s=36_000.0)
    seen = world(gangs=waiting(10), spec=priced(), forecasts=(forecast(now, rung),))
    assert launched(seen) == 4


def test_a_place_that_a_later_rung_needs_too_is_worth_its_boot():
    now = ComingWork(shape=ONE, count=10, each_s=600.0)
    rungs = [ComingWork(shape=ONE, count=3, start_s=s, end_s=s + 1e3, each_s=1e3) for s in (900.0, 1400.0)]
    seen = world(gangs=waiting(10), spec=priced(), forecasts=(forecast(now, *rungs),))
    assert launched(seen) == 6, "500 s of six at once, and 6,000 s / 6 before them"


@pytest.mark.parametrize(("left_s", "expected"), [(6000.0, 4), (1800.0, 6), (1300.0, 10), (500.0, 10)])
def test_a_deadline_asks_for_more_places_than_their_boot_is_worth(left_s, expected):
    """Ten trials of 600 s after the boot: the last one begins when the others leave it 600 s.

    In 1,800 s six places do 6,600 s (with a tenth more) in the first 1,200 s. In 1,300 s a place has not
    the time for two; where the time is too short for one, all of them at once come nearest.
    """
    told = forecast(ComingWork(shape=ONE, count=10, each_s=600.0), deadline=NOW + 150.0 + left_s)
    assert launched(world(gangs=waiting(10), spec=priced(), forecasts=(told,))) == expected


def test_a_deadline_counts_the_longest_that_a_trial_may_run():
    """Of ten trials with a mean of 60 s each may be the one that runs for 1,500 s of the 1,650 s."""
    mean = ComingWork(shape=ONE, count=10, each_s=60.0)
    longest = replace(mean, most_s=1500.0)
    told = [forecast(one, deadline=NOW + 150.0 + 1650.0) for one in (mean, longest)]
    assert [launched(world(gangs=waiting(10), spec=priced(), forecasts=(one,))) for one in told] == [1, 5]


def late(seen):
    return [v.detail for v in reconcile(seen).verdicts if v.reason is Reason.DEADLINE]


def test_a_deadline_that_the_limits_of_the_cluster_do_not_allow_is_told_with_what_would_help():
    """Ten trials of 600 s need six places in half an hour; the cluster may have four workers."""
    told = forecast(ComingWork(shape=ONE, count=10, each_s=600.0), deadline=NOW + 150.0 + 1800.0)
    few = world(gangs=waiting(10), spec=priced(max_nodes=5), forecasts=(told,))
    (said,) = late(few)
    assert_line("cluster", "deadline above the limits", said)
    assert late(world(gangs=waiting(10), spec=priced(), forecasts=(told,))) == []


def test_a_deadline_before_the_end_of_a_single_trial_is_told():
    told = forecast(ComingWork(shape=ONE, count=2, each_s=3600.0), deadline=NOW + 1800.0)
    (said,) = late(world(gangs=waiting(2), spec=priced(), forecasts=(told,)))
    assert_line("cluster", "deadline below one trial", said)


def test_a_deadline_that_leaves_no_time_to_learn_asks_for_room_for_all_at_once():
    """A boot of 150 s is a twentieth of 3,000 s: later deadlines wait for the first steps of 16 trials."""
    coming = ComingWork(shape=ONE, count=40)
    told = [forecast(coming, deadline=NOW + left_s) for left_s in (2900.0, 3100.0)]
    assert [launched(world(gangs=waiting(40), spec=priced(), forecasts=(one,))) for one in told] == [40, 16]
    late = forecast(coming, deadline=NOW + 3100.0, begun_at=NOW - 100.0)
    assert launched(world(gangs=waiting(40), spec=priced(), forecasts=(late,))) == 40


def test_until_durations_are_known_a_first_batch_is_bought():
    told = forecast(ComingWork(shape=ONE, count=40))
    assert launched(world(gangs=waiting(40), spec=priced(), forecasts=(told,))) == 16


def test_machines_on_their_way_count_as_places():
    told = forecast(ComingWork(shape=ONE, count=10, each_s=600.0))
    coming = [record(f"c{i}", S.ALLOCATED, node_type="cpu") for i in range(3)]
    assert launched(world(coming, gangs=waiting(10), spec=priced(), forecasts=(told,))) == 1


def test_nothing_is_held_back_where_machines_are_not_chosen_by_price():
    told = forecast(ComingWork(shape=ONE, count=4, each_s=10.0))
    seen = world(gangs=waiting(4), spec=priced(objective=Objective.UTILIZATION), forecasts=(told,))
    assert launched(seen) == 4


def test_a_forecast_may_be_switched_off():
    from muster.cluster.budget_policy import ForecastPolicy

    told = forecast(ComingWork(shape=ONE, count=4, start_s=50.0, each_s=3600.0))
    seen = world(spec=priced(forecasts=ForecastPolicy(is_used=False)), forecasts=(told,))
    assert launched(seen) == 0


def test_how_long_machines_take_to_boot_is_remembered():
    from tests.cluster.worlds import past

    asked = past((S.QUEUED, NOW - 90), (S.REQUESTED, NOW - 80), (S.ALLOCATED, NOW - 40))
    booting = record("a", S.ALLOCATED, history=asked)
    plan = reconcile(world([booting], nodes=[node("a")], spec=priced()))
    assert plan.memory.boot_s == {"cpu": 80.0}


LARGE = node_type("large", {"CPU": 4}, price_per_hour=8.0, max_nodes=100)


def test_trials_under_a_limit_of_nodes_wait_instead_of_making_the_planner_buy_dearer_ones():
    limit = spec(PRICED, LARGE, max_nodes=11, objective=Objective.COST)
    many = forecast(ComingWork(shape=ONE, count=40, each_s=36_000.0))
    seen = world(gangs=waiting(40), spec=limit, forecasts=(many,))
    made = created(seen, reconcile(seen))
    assert {record.node_type for record in made} == {"cpu"}


def test_trials_that_a_limit_left_without_room_do_not_take_the_place_of_those_that_are_held():
    limit = spec(PRICED, max_nodes=31, objective=Objective.COST)
    little = forecast(ComingWork(shape=ONE, count=90, each_s=100.0))  # 9,000 s: worth six boots
    assert launched(world(gangs=waiting(90), spec=limit, forecasts=(little,))) == 6


SLOW = node_type("slow", {"CPU": 1}, price_per_hour=1.0, max_nodes=100, speed=1.0)
FAST = node_type("fast", {"CPU": 1}, price_per_hour=4.0, max_nodes=100, speed=2.0)


@pytest.mark.parametrize(
    ("most_s", "expected"),
    [(None, "fast"), (3500.0, "fast"), (3000.0, "slow")],
    ids=["unknown", "long", "short"],
)
def test_where_a_slow_machine_may_be_too_slow_for_a_deadline_the_fast_one_is_worth_its_price(
    most_s, expected
):
    """An hour is left after the boot; the fast type costs twice as much for the same work."""
    each_s = None if most_s is None else 3000.0
    told = forecast(ComingWork(shape=ONE, count=1, each_s=each_s, most_s=most_s), deadline=NOW + 3750.0)
    cluster = spec(SLOW, FAST, max_nodes=101, objective=Objective.COST)
    (one,) = created(seen := world(gangs=waiting(1), spec=cluster, forecasts=(told,)), reconcile(seen))
    assert one.node_type == expected


def test_times_that_were_measured_on_a_fast_machine_are_longer_on_a_slow_one():
    fast = record("a", S.RAY_RUNNING, node_type="fast")
    told = forecast(
        ComingWork(shape=ONE, count=1, each_s=2000.0), trials=[running("a", 2000.0)], deadline=NOW + 3750.0
    )
    cluster = spec(SLOW, FAST, max_nodes=101, objective=Objective.COST)
    busy = node("a", node_type="fast", available=amounts({"CPU": 0}))
    seen = world([fast], nodes=[busy], gangs=waiting(1), spec=cluster, forecasts=(told,))
    assert [one.node_type for one in created(seen, reconcile(seen))] == ["fast"]
