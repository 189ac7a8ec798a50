"""Check that the simulated cloud keeps the port's promises, and breaks those that a real cloud breaks."""

from __future__ import annotations

import pytest
from tests.support.builders import cluster_spec

from muster.base.rng import Seed
from muster.cluster.model import FailureKind, NodeKind, Offer
from muster.errors import ProviderError
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import catalogue_for
from muster.sim.cluster.world import World


def cloud(**rates: float) -> tuple[World, SimCloud]:
    world, seed = World(), Seed(3)
    return world, SimCloud(
        world, CrashPoints(), Faults(seed, rates), seed.derive("c"), catalogue_for(cluster_spec())
    )


def test_a_request_id_seen_before_buys_nothing_more():
    world, sim = cloud()
    sim.launch("r-1", {"cpu-4": 2})
    sim.launch("r-1", {"cpu-4": 2})
    world.advance(10.0)
    assert [(m.node_type, m.request_id) for m in sim.alive()] == [("cpu-4", "r-1"), ("cpu-4", "r-1")]


def test_a_machine_costs_its_price_when_bought_from_creation_to_end():
    world, sim = cloud()
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(1.0)
    sim.sells.prices["cpu-4"] = 99.0
    world.advance(1800.0)
    sim.end(next(iter(sim.alive())), "dies")
    world.advance(1800.0)
    assert sim.bill() == pytest.approx(0.20 / 2)


def test_one_offer_is_sold_out_at_a_time_and_machines_have_the_price_and_terms_of_theirs():
    world, sim = cloud()
    cheap = Offer(zone="a", market="spot", price_per_hour=0.1)
    dear = Offer(zone="b", price_per_hour=0.4, billing_granularity_s=3600.0)
    sim.sells.prices |= {"cpu-4 a/spot": 0.1, "cpu-4 b/on-demand": 0.4}
    sim.sells.reports_offers = True
    sim.sell_out("cpu-4 a/spot", 60.0)
    sim.launch("r-1", {"cpu-4": 1}, (cheap,))
    sim.launch("r-2", {"cpu-4": 1}, (dear,))
    world.advance(10.0)
    assert [f.request_id for f in sim.poll_launch_failures()] == ["r-1"]
    (machine,) = sim.list_instances().values()
    assert (machine.request_id, machine.zone, machine.market) == ("r-2", "b", "on-demand")
    assert sim.bill() == pytest.approx(0.4)


def test_a_sold_out_type_is_refused_unit_by_unit_and_others_are_not():
    world, sim = cloud()
    sim.sell_out("cpu-4", 60.0)
    sim.launch("r-1", {"cpu-4": 2, "cpu-16": 1})
    world.advance(10.0)
    assert [(f.request_id, f.node_type, f.kind) for f in sim.poll_launch_failures()] == [
        ("r-1", "cpu-4", FailureKind.CAPACITY),
        ("r-1", "cpu-4", FailureKind.CAPACITY),
    ]
    assert sim.poll_launch_failures() == ()
    assert [m.node_type for m in sim.alive()] == ["cpu-16"]


def test_a_dropped_unit_is_neither_made_nor_reported():
    world, sim = cloud(unit_dropped=1.0)
    sim.launch("r-1", {"cpu-4": 2})
    world.advance(10.0)
    assert (sim.alive(), sim.poll_launch_failures()) == ([], ())


def test_a_machine_may_come_up_before_it_is_listed():
    world, sim = cloud(joins_first=1.0)
    came: list[tuple[bool, float]] = []
    sim.on_up = lambda machine: came.append((machine.is_listed(world.time), machine.listed_from - world.time))
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(120.0)
    ((was_listed, later_s),) = came
    assert (was_listed, 5.0 <= later_s <= 90.0) == (False, True)
    world.advance(60.0)
    assert len(sim.list_instances()) == 1


@pytest.mark.parametrize(
    ("fault", "shown"), [("list_only_head", ["m-0001"]), ("list_omits_passing", ["m-0001"])]
)
def test_one_list_may_lack_what_boots_or_everything_but_the_head(fault, shown):
    world, sim = cloud(**{fault: 1.0})
    sim.create("head", NodeKind.HEAD).up = True
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(1.0)
    assert list(sim.list_instances()) == shown
    sim._faults.stop()
    assert list(sim.list_instances()) == ["m-0001", "m-0002"]


def test_for_a_while_two_of_three_lists_may_fail():
    _, sim = cloud(list_fails_often=1.0)
    answers = []
    for _ in range(6):
        try:
            answers.append(len(sim.list_instances()))
        except ConnectionError:
            answers.append(None)
    assert answers == [None, None, 0, None, None, 0]


def test_a_lost_reply_is_an_error_although_the_machine_comes():
    world, sim = cloud(launch_reply_lost=1.0)
    with pytest.raises(TimeoutError):
        sim.launch("r-1", {"cpu-4": 1})
    world.advance(10.0)
    assert len(sim.alive()) == 1


def test_a_dropped_call_is_forgotten_so_that_the_same_id_may_be_tried_again():
    world, sim = cloud(launch_dropped=1.0)
    sim.launch("r-1", {"cpu-4": 1})
    sim._faults.stop()
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(10.0)
    assert len(sim.alive()) == 1


def test_a_refused_call_buys_nothing():
    world, sim = cloud(launch_refused=1.0)
    with pytest.raises(ProviderError):
        sim.launch("r-1", {"cpu-4": 1})
    world.advance(10.0)
    assert sim.alive() == []


def test_a_machine_may_be_listed_late_and_a_ghost_may_be_listed():
    world, sim = cloud(list_late=1.0, list_ghost=1.0)
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(2.0)
    assert list(sim.list_instances()) == ["ghost-1"]
    assert len(sim.alive()) == 1
