"""Checks the simulated rack: hosts are taken and given back, may be off, and are had by one machine each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster import controller
from muster.cluster.model import ClusterSpec, FailureKind, NodeKind, Objective, Strategy
from muster.cluster.plan import Install
from muster.cluster.reconcile import RULES, reconcile
from muster.sim.cluster.build import SimInstaller, SimulatedCluster
from muster.sim.cluster.checkers import hosts_are_held_once, safety_checks
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.liveness import unsettled
from muster.sim.cluster.money import money_checks
from muster.sim.cluster.options import (
    BACKOFF,
    HEAD_TYPE,
    TIMEOUTS,
    WORKER_TYPES,
    RunOptions,
    catalogue_for,
    draw_options,
    head_type,
)
from muster.sim.cluster.rack import SimRack
from muster.sim.cluster.tasks import GangWork, TaskClass
from muster.sim.cluster.world import World
from muster.testing.builders import cluster_spec

TICK_S = 5.0


def rack(**hosts: int) -> tuple[World, SimCloud]:
    world, seed, sells = World(), Seed(3), catalogue_for(cluster_spec())
    sells.hosts = {name.replace("_", "-"): count for name, count in hosts.items()}
    return world, SimCloud(world, CrashPoints(), Faults.none(), seed.derive("c"), sells)


def ips(sim: SimCloud) -> dict[str, str]:
    return {machine.cloud_id: machine.ip for machine in sim.alive()}


# -- hosts and machines -------------------------------------------------------------------------------


def test_a_host_that_goes_back_is_taken_again_with_its_address_and_a_new_id():
    world, sim = rack(cpu_4=1)
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(60.0)
    assert ips(sim) == {"m-0001": "10.1.0.1"}
    sim.terminate("t-1", ["m-0001"])
    world.advance(60.0)
    sim.launch("r-2", {"cpu-4": 1})
    world.advance(60.0)
    assert ips(sim) == {"m-0002": "10.1.0.1"}


def test_machines_beyond_the_free_hosts_are_refused_for_capacity():
    world, sim = rack(cpu_4=2, cpu_16=1)
    sim.launch("r-1", {"cpu-4": 4, "cpu-16": 1})
    world.advance(60.0)
    assert sorted(ips(sim).values()) == ["10.1.0.1", "10.1.0.2", "10.1.1.1"]
    refused = [(f.node_type, f.kind) for f in sim.poll_launch_failures()]
    assert refused == [("cpu-4", FailureKind.CAPACITY)] * 2


def test_a_host_that_is_off_stays_ours_and_cannot_be_given_back_until_it_answers():
    world, sim = rack(cpu_4=1)
    sim.launch("r-1", {"cpu-4": 1})
    world.advance(60.0)
    sim.switch_off(sim.rack.hosts["10.1.0.1"], 100.0)
    assert [machine.is_running for machine in sim.list_instances().values()] == [False]
    sim.terminate("t-1", ["m-0001"])
    world.advance(50.0)
    assert [(f.cloud_id, f.kind) for f in sim.poll_terminate_failures()] == [("m-0001", FailureKind.UNKNOWN)]
    assert list(ips(sim)) == ["m-0001"]
    world.advance(60.0)
    assert [machine.is_running for machine in sim.list_instances().values()] == [True]
    sim.terminate("t-2", ["m-0001"])
    world.advance(60.0)
    assert ips(sim) == {}


@pytest.mark.parametrize("fault", ["lend", "unlist", "off", "busy"])
def test_a_host_that_cannot_be_had_is_not_taken_until_that_is_over(fault):
    world, sim = rack(cpu_4=1)
    host, draw = sim.rack.hosts["10.1.0.1"], Seed(1).derive("d")
    if fault == "off":
        sim.switch_off(host, 50.0)
    elif fault == "busy":
        sim.rack.give_back(host, 50.0)
    else:
        getattr(sim.rack, fault)(draw, world.time, 50.0)
    assert host.why_not(world.time)
    assert sim.refusal("cpu-4") is FailureKind.CAPACITY
    world.advance(50.0)
    assert (host.why_not(world.time), sim.refusal("cpu-4")) == ("", None)


def test_when_shortages_end_every_host_is_on_and_can_be_had():
    world, sim = rack(cpu_4=3)
    held = sim.deliver("cpu-4", None)
    world.advance(60.0)
    sim.switch_off(sim.rack.hosts[held.ip], 1000.0)
    sim.rack.lend(Seed(1).derive("d"), world.time, 1000.0)
    sim.rack.unlist(Seed(1).derive("d"), world.time, 1000.0)
    assert len(sim.rack.free(world.time)) == 0
    sim.end_shortages()
    assert (len(sim.rack.free(world.time)), held.up) == (2, True)


def test_only_a_free_host_is_lent_or_leaves_the_list():
    world, sim = rack(cpu_4=1)
    held = sim.deliver("cpu-4", None)
    sim.rack.lend(Seed(1).derive("d"), world.time, 50.0)
    sim.rack.unlist(Seed(1).derive("d"), world.time, 50.0)
    sim.end(held, "terminated")
    world.advance(2.0)
    assert len(sim.rack.free(world.time)) == 1


def test_an_installation_on_a_host_that_is_off_fails():
    world, sim = rack(cpu_4=1)
    machine, joined = sim.deliver("cpu-4", None), []
    installer = SimInstaller(world, CrashPoints(), Faults.none(), sim.machines.get)
    installer.on_installed = joined.append
    installer.start(
        Install(request_id="r-1", instance_id="i-1", cloud_id=machine.cloud_id, node_type="cpu-4")
    )
    sim.switch_off(sim.rack.hosts["10.1.0.1"], 60.0)
    world.advance(30.0)
    assert ([f.instance_id for f in installer.poll()], joined) == (["i-1"], [])


# -- runs ---------------------------------------------------------------------------------------------


def test_about_a_quarter_of_the_seeds_is_a_rack_without_offers_whose_hosts_muster_sets_up():
    drawn = [draw_options(Seed(seed)) for seed in range(300)]
    racks = [options for options in drawn if options.catalogue.hosts]
    assert 50 < len(racks) < 100
    assert {options.spec.install_runtime for options in racks} == {True}
    assert not any(known.offers for options in racks for known in options.spec.node_types)
    prices = {known.price_per_hour is None for options in racks for known in options.spec.node_types[1:]}
    assert prices == {True, False}


class RackStory:
    """A cluster on a rack of one type, without drawn faults; every tick is checked."""

    def __init__(self, hosts: int, max_nodes: int = 8, min_nodes: int = 0) -> None:
        worker = replace(WORKER_TYPES[0], price_per_hour=None, max_nodes=max_nodes, min_nodes=min_nodes)
        spec = ClusterSpec(
            cluster_name="simulated",
            head_node_type=HEAD_TYPE,
            node_types=(head_type(), worker),
            idle_timeout_s=30.0,
            objective=Objective.UTILIZATION,
            install_runtime=True,
            timeouts=TIMEOUTS,
            backoff=BACKOFF,
        )
        sells = catalogue_for(spec)
        sells.hosts = {worker.name: hosts}
        self.cluster = SimulatedCluster(
            Seed(1), RunOptions(spec=spec, catalogue=sells, tick_s=TICK_S), Faults.none()
        )
        self.checks = (*safety_checks(), *money_checks())

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.cluster.tick()
            assert [text for check in self.checks for text in check(self.cluster)] == []
            self.cluster.store.commits.clear()
            self.cluster.world.advance(TICK_S)

    def submit(self, count: int, duration_s: float) -> None:
        self.cluster.runtime.submit(TaskClass(Resources.of(CPU=4), (), "work"), count, duration_s)

    def workers(self) -> list[str]:
        return [m.cloud_id for m in self.cluster.cloud.alive() if m.kind is NodeKind.WORKER]

    def bought(self) -> int:
        return len(self.cluster.cloud.machines) - 1


def test_a_host_that_goes_off_is_replaced_once_and_given_back_when_it_answers():
    story = RackStory(hosts=4)
    story.submit(2, 2000.0)
    story.ticks(30)
    assert (len(story.workers()), story.cluster.runtime.pending_tasks()) == (2, 0)
    lost = story.cluster.cloud.machines[story.workers()[0]]
    story.cluster.cloud.switch_off(story.cluster.cloud.rack.hosts[lost.ip], 200.0)
    story.ticks(30)
    assert lost.cloud_id in story.workers()
    assert (len(story.workers()), story.bought(), story.cluster.runtime.pending_tasks()) == (3, 3, 0)
    story.ticks(60)
    assert lost.cloud_id not in story.workers()
    assert (len(story.workers()), story.bought(), list(unsettled(story.cluster))) == (2, 3, [])


def test_without_a_spare_host_the_work_waits_and_the_host_is_taken_again_under_a_new_id():
    story = RackStory(hosts=1)
    story.submit(1, 2000.0)
    story.ticks(30)
    (lost,) = story.workers()
    story.cluster.cloud.switch_off(story.cluster.cloud.rack.hosts["10.1.0.1"], 200.0)
    story.ticks(30)
    assert (story.workers(), story.cluster.runtime.pending_tasks()) == ([lost], 1)
    story.ticks(60)
    (again,) = story.workers()
    assert again != lost
    assert (story.cluster.runtime.pending_tasks(), list(unsettled(story.cluster))) == (0, [])


@pytest.mark.parametrize("min_nodes", [0, 5])
def test_demand_and_minimums_beyond_the_rack_use_all_of_it_and_hosts_nobody_needs_go_back(min_nodes):
    story = RackStory(hosts=3, min_nodes=min_nodes)
    story.submit(5, 250.0)
    story.ticks(40)
    assert (len(story.workers()), story.bought()) == (3, 3)
    assert (story.cluster.runtime.pending_tasks(), list(unsettled(story.cluster))) == (2, [])
    story.ticks(110)
    assert (story.cluster.runtime.pending_tasks(), list(unsettled(story.cluster))) == (0, [])
    assert len(story.workers()) == (3 if min_nodes else 0)


def test_a_rack_of_another_cluster_serves_once_the_hosts_are_given_back():
    story = RackStory(hosts=1)
    story.cluster.cloud.rack.lend(Seed(1).derive("d"), 0.0, 200.0)
    story.submit(1, 2000.0)
    story.ticks(30)
    assert (story.workers(), story.cluster.runtime.pending_tasks()) == ([], 1)
    story.ticks(40)
    assert (len(story.workers()), list(unsettled(story.cluster))) == (1, [])


@pytest.mark.parametrize(("bundles", "waits"), [(3, False), (4, True)])
def test_a_gang_is_served_when_the_rack_can_hold_it_and_takes_no_host_when_not(bundles, waits):
    story = RackStory(hosts=3)
    runtime = story.cluster.runtime
    tasks = [runtime.bundle(Resources.of(CPU=4)) for _ in range(bundles)]
    runtime.submit_gang(GangWork("g1", Strategy.STRICT_SPREAD, tasks, 2000.0))
    story.ticks(40)
    assert (bool(runtime.pending_gangs()), list(unsettled(story.cluster))) == (waits, [])
    assert (story.bought(), len(story.cluster.cloud.launch_calls) > 0) == ((0, False) if waits else (3, True))


# -- the checks find what is wrong --------------------------------------------------------------------


def test_hosts_that_are_not_given_back_are_found(monkeypatch):
    kept = tuple(rule for rule in RULES if rule.__name__ != "terminate")
    story = RackStory(hosts=2)
    story.submit(1, 60.0)
    story.ticks(20)
    monkeypatch.setattr(controller, "reconcile", lambda snapshot: reconcile(snapshot, kept))
    story.ticks(60)
    assert list(unsettled(story.cluster)) != []


def test_demand_that_a_free_host_could_serve_is_found(monkeypatch):
    story = RackStory(hosts=2)
    story.ticks(1)
    kept = tuple(rule for rule in RULES if rule.__name__ != "launch")
    monkeypatch.setattr(controller, "reconcile", lambda snapshot: reconcile(snapshot, kept))
    story.submit(1, 60.0)
    story.ticks(3)
    assert any(text.startswith("work (1 pending)") for text in unsettled(story.cluster))


def test_a_host_with_two_machines_and_more_machines_than_hosts_are_found(monkeypatch):
    story = RackStory(hosts=1)
    story.ticks(1)
    host = story.cluster.cloud.rack.hosts["10.1.0.1"]
    monkeypatch.setattr(SimRack, "take", lambda self, node_type, cloud_id, now: host)
    for _ in range(2):
        story.cluster.cloud.create(WORKER_TYPES[0].name)
    assert list(hosts_are_held_once(story.cluster)) == [
        "2 machines of cpu-4, the rack has 1 hosts",
        "host 10.1.0.1 is held by 2 machines",
    ]


def test_a_node_on_a_host_that_is_off_is_found():
    story = RackStory(hosts=1)
    story.submit(1, 2000.0)
    story.ticks(30)
    story.cluster.cloud.rack.hosts["10.1.0.1"].off_until = story.cluster.world.time + 60.0
    (text,) = hosts_are_held_once(story.cluster)
    assert text.endswith("has a node, and its host 10.1.0.1 is off")
