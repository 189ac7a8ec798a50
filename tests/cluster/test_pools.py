"""What the cloud takes back is remembered for each pool, and is part of the price of its machines."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace
from tests.cluster.worlds import S, created, past, record, spec, tick, world
from tests.support.builders import NOW, amounts, demand, node_type

from muster.base.forecast import Forecast, RunningTrial
from muster.cluster.model import LaunchLimits, Offer, StopCause
from muster.cluster.planner.offers import HALF_LIFE_S, after_ends, risks
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, PoolRecord, ProviderTraits

SPOT_A = Offer(zone="a", market="spot", price_per_hour=0.30)
SPOT_B = Offer(zone="b", market="spot", price_per_hour=0.31)
FULL = Offer(zone="a", market="on-demand", price_per_hour=1.0)
KNOWN = node_type("cpu", {"CPU": 1}, max_nodes=50, offers=(SPOT_A, SPOT_B, FULL))
BUYS = ProviderTraits(buys_offers=True)


def ended(name, lived_s, **changes):
    history = past((S.ALLOCATED, NOW - lived_s), (S.RAY_RUNNING, NOW - lived_s), (S.TERMINATED, NOW))
    return record(name, S.TERMINATED, history=history, offer=SPOT_A, **changes)


def test_machines_that_were_taken_count_as_losses_and_those_given_back_do_not():
    pools = after_ends({}, [ended("x", 100, stop_cause=StopCause.NOTICE)], NOW)
    pools = after_ends(pools, [ended("y", 300, stop_cause=StopCause.IDLE)], NOW)
    assert pools == {"cpu a/spot": PoolRecord(machine_s=400.0, losses=1.0, at=NOW)}


def test_older_losses_count_less():
    old = {"cpu a/spot": PoolRecord(machine_s=0.0, losses=8.0, at=NOW - HALF_LIFE_S)}
    fresh = {"cpu a/spot": PoolRecord(machine_s=0.0, losses=8.0, at=NOW)}
    cluster = spec(KNOWN)
    assert (
        risks(cluster, old, (), 360.0, NOW)["cpu a/spot"]
        < risks(cluster, fresh, (), 360.0, NOW)["cpu a/spot"]
    )


def test_only_spot_offers_have_a_risk():
    assert set(risks(spec(KNOWN), {}, (), 300.0, NOW)) == {"cpu a/spot", "cpu b/spot"}


def chosen(**changes):
    seen = world(demands=[demand()], spec=spec(KNOWN), traits=BUYS, **changes)
    (one,) = created(seen, reconcile(seen))
    return one.offer.name


def test_a_pool_that_lost_machines_lately_is_passed_over_for_one_that_costs_a_little_more():
    assert chosen() == "a/spot"
    lossy = Memory(pools={"cpu a/spot": PoolRecord(machine_s=3600.0, losses=20.0, at=NOW)})
    assert chosen(memory=lossy) == "b/spot"


def test_behind_the_line_of_even_progress_to_a_deadline_machines_are_bought_on_demand():
    late = Forecast(
        experiment="e", at=NOW, begun_at=NOW - 3600, done=0.4, deadline=NOW + 3600, trials=_trial()
    )
    assert chosen(forecasts=(late,)) == "a/on-demand"
    assert chosen(forecasts=(replace(late, done=0.6),)) == "a/spot"


def test_a_deadline_that_leaves_no_time_to_learn_how_long_trials_take_buys_on_demand():
    """A boot of 150 s is a twentieth of 3,000 s."""
    unknown = Forecast(experiment="e", at=NOW, deadline=NOW + 2900.0, trials=_trial())
    assert chosen(forecasts=(unknown,)) == "a/on-demand"
    assert chosen(forecasts=(replace(unknown, deadline=NOW + 3100.0),)) == "a/spot"


def _trial():
    return (RunningTrial(trial_id="x", node_id="n-z", shape=amounts({"CPU": 1}), rest_s=60.0),)


def test_the_end_of_a_record_updates_its_pool_in_the_ledgers_memory():
    gone = record(
        "a", S.TERMINATING, offer=SPOT_A, history=past((S.ALLOCATED, NOW - 50), (S.TERMINATING, NOW - 5))
    )
    gone = replace(gone, stop_cause=StopCause.NOTICE)
    states, plan = tick(world([gone], machines=[], nodes=[], spec=spec(KNOWN), traits=BUYS))
    assert states == {"a": "TERMINATED"}
    assert plan.memory.pools["cpu a/spot"].losses == 1.0


def test_while_there_are_leaders_no_pool_gets_more_than_half_of_the_spot_machines():
    leaders = tuple(replace(one, is_leader=True) for one in (*_trial(), *_trial()))
    told = Forecast(experiment="e", at=NOW, trials=leaders)
    limits = LaunchLimits(upscaling_speed=100.0)
    seen = world(demands=[demand(count=6)], spec=spec(KNOWN, limits=limits), traits=BUYS)
    plain = [one.offer.name for one in created(seen, reconcile(seen))]
    assert plain == ["a/spot"] * 6
    apart = replace(seen, forecasts=(told,))
    assert Counter(one.offer.name for one in created(apart, reconcile(apart))) == {"a/spot": 3, "b/spot": 3}
