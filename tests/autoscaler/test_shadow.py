"""Shadow mode: the real controller over a cluster that somebody else scales, with every port imagined."""

from __future__ import annotations

import re

import pytest
from tests.autoscaler.scenes import Heard
from tests.cluster.fakes import FakeRuntime, FakeSpec
from tests.cluster.worlds import spec
from tests.mistakes.views import assert_line, assert_view
from tests.support.builders import amounts, demand, node_report, node_type

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.monitor import Loop, Monitor, TickInterval
from muster.autoscaler.shadow import ShadowReport, ShadowWorld, type_of
from muster.autoscaler.status_files import StatusFile, read_status
from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.base.rng import Ambient, Seed
from muster.base.text import moment
from muster.cli.status.report import build_report
from muster.cluster.controller import ClusterController
from muster.cluster.model import NodeStatus
from muster.cluster.ports import Ports
from muster.cluster.states import InstanceState
from muster.stores.ledger.memory import MemoryInstanceStore

SMALL = node_type("small", {"CPU": 2}, price_per_hour=1.0)
BIG = node_type("big", {"CPU": 8}, price_per_hour=8.0)
HEAD = node_report("n-head", node_type="head", is_head=True, total=amounts({}), available=amounts({}))
BUSY = {"status": NodeStatus.RUNNING, "available": amounts({"CPU": 0})}


class Shadowed:
    """A cluster whose nodes the test adds and removes, and a shadow beside it."""

    def __init__(self, tmp_path, *types, **changes) -> None:
        self.clock = ManualClock(10_000.0)
        self.runtime = FakeRuntime()
        self.runtime.nodes = [HEAD]
        self.file = FakeSpec(current=(spec(*(types or (SMALL, BIG)), idle_timeout_s=60.0, **changes), ""))
        self.path = tmp_path / "shadow.json"
        self.store = MemoryInstanceStore(clock=self.clock)
        self.start()

    def start(self):
        """Also a restart: the ledger and the book's file are all that is kept."""
        self.world = ShadowWorld(self.runtime.read, self.file, self.path, self.clock)
        self.world.boot_s = 0.0
        self.report, self.heard = ShadowReport(self.world), Heard()
        world = self.world
        ports = Ports(
            provider=world, nodes=world, drainer=world, installer=None, store=self.store, spec=world
        )
        ambient = Ambient(clock=self.clock, ids=CountingIds(), seed=Seed(1))
        loop = Loop(controller=ClusterController(ports, ambient))
        self.monitor = Monitor(
            loop, TickInterval(1.0, 5.0), clock=self.clock, listeners=(self.report, self.heard)
        )

    def pass_time(self, seconds, step=1.0):
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            for index, node in enumerate(self.runtime.nodes):
                if node.status is NodeStatus.IDLE:
                    self.runtime.nodes[index] = with_(node, idle_s=node.idle_s + step)
            self.monitor.round()

    def join(self, name, of=SMALL, **changes):
        known = {"node_type": of.name, "total": of.resources, "available": of.resources, **changes}
        self.runtime.nodes = [*self.runtime.nodes, node_report(name, **known)]

    def change(self, name, **changes):
        self.runtime.nodes = [
            with_(node, **changes) if node.node_id == name else node for node in self.runtime.nodes
        ]

    def leave(self, name):
        self.runtime.nodes = [node for node in self.runtime.nodes if node.node_id != name]

    @property
    def summary(self):
        return self.world.book.summary

    @property
    def lines(self):
        return [event.message for event in self.report.newest]

    def states(self):
        return [record.state for record in self.heard.ticks[-1].ledger.instances.values()]


def with_(node, **changes):
    from msgspec.structs import replace

    return replace(node, **changes)


@pytest.fixture
def shadowed(tmp_path):
    return Shadowed(tmp_path)


def test_a_purchase_waits_for_the_real_node_and_is_bought_once(shadowed):
    shadowed.pass_time(2)
    shadowed.runtime.demands = [demand({"CPU": 2}, name="{CPU: 2}")]
    shadowed.pass_time(40)
    assert (shadowed.summary.launched, shadowed.summary.waiting) == ({"small": 1}, 1)
    shadowed.join("n-1", **BUSY)
    shadowed.runtime.demands = []
    shadowed.pass_time(30)
    summary = shadowed.summary
    assert (summary.launched, summary.came, summary.waiting) == ({"small": 1}, 1, 0)
    assert summary.cluster_added == {"small": 1}
    assert summary.waits_s == [pytest.approx(40, abs=2)]
    (launched,) = [r for r in shadowed.heard.ticks[-1].ledger.instances.values() if r.node_type == "small"]
    story = [change.state.name for change in launched.history]
    assert story == ["QUEUED", "REQUESTED", "ALLOCATED", "RAY_RUNNING"]
    assert re.fullmatch(r"shadow: .* 1 x small .* 1/h .* 1 x \{CPU: 2\}", shadowed.lines[0])
    assert re.match(r"shadow: .* n-1 .* small .* 4", shadowed.lines[1])
    # Both pay for the same node over the same time; muster also for what it waited for.
    assert summary.cluster.cost == pytest.approx(29 / 3600, rel=0.1)
    assert summary.ours.cost == pytest.approx((40 + 29) / 3600, rel=0.1)


def test_the_time_that_a_machine_boots_is_not_on_its_bill(shadowed):
    shadowed.world.boot_s = 30.0
    shadowed.runtime.demands = [demand({"CPU": 2})]
    shadowed.pass_time(40)
    assert shadowed.summary.ours.cost == pytest.approx(9 / 3600, rel=0.15)


def test_a_node_of_another_type_stands_for_what_muster_would_have_bought(shadowed):
    shadowed.pass_time(2)
    shadowed.runtime.demands = [demand({"CPU": 2}, 2)]
    shadowed.pass_time(10)
    assert shadowed.summary.launched == {"small": 2}
    shadowed.join("n-big", BIG, status=NodeStatus.RUNNING, available=amounts({"CPU": 4}))
    shadowed.runtime.demands = []
    shadowed.pass_time(60)
    summary = shadowed.summary
    assert (summary.came, summary.served_otherwise, summary.waiting) == (0, 2, 0)
    assert summary.cluster.cost == pytest.approx(8 * 59 / 3600, rel=0.1)
    assert summary.ours.cost == pytest.approx((2 * 59 + 2 * 9) / 3600, rel=0.1)
    assert summary.waits_s == [pytest.approx(10, abs=2)] * 2
    assert any(line.endswith("saved)") for line in summary.lines())


def test_a_demand_that_goes_away_ends_its_purchase(shadowed):
    shadowed.runtime.demands = [demand({"CPU": 2})]
    shadowed.pass_time(5)
    shadowed.runtime.demands = []
    shadowed.pass_time(30)
    assert (shadowed.summary.not_needed, shadowed.summary.waiting) == (1, 0)
    assert_line("autoscaler", "shadow, demand gone", shadowed.lines[-1])
    assert shadowed.states() == [InstanceState.RAY_RUNNING]  # the head's


def test_an_idle_node_is_ended_in_the_book_only_and_the_delay_of_the_cluster_is_counted(shadowed):
    shadowed.join("n-1", status=NodeStatus.IDLE)
    shadowed.pass_time(60 + 100)
    assert shadowed.summary.ended == {"small": 1}
    assert shadowed.states() == [InstanceState.RAY_RUNNING]
    shadowed.leave("n-1")
    shadowed.pass_time(5)
    summary = shadowed.summary
    assert (summary.removed_later, summary.cluster_removed) == (1, {"small": 1})
    assert summary.later_s == pytest.approx(100, abs=5)
    assert summary.cluster.cost - summary.ours.cost == pytest.approx(100 / 3600, rel=0.1)
    assert (" n-1 " in shadowed.lines[0], " small: idle " in shadowed.lines[0]) == (True, True)
    assert (" n-1 " in shadowed.lines[-1], "idle" in shadowed.lines[-1]) == (True, False)


def test_a_node_that_is_used_again_after_its_end_would_have_been_bought_again(shadowed):
    shadowed.join("n-1", status=NodeStatus.IDLE)
    shadowed.pass_time(100)
    shadowed.change("n-1", **BUSY)
    shadowed.pass_time(20)
    summary = shadowed.summary
    assert (summary.ended, summary.used_again, summary.launched) == ({"small": 1}, 1, {"small": 1})
    assert shadowed.states() == [InstanceState.RAY_RUNNING] * 2
    shadowed.change("n-1", status=NodeStatus.IDLE, available=SMALL.resources, idle_s=1.0)
    shadowed.pass_time(100)
    assert shadowed.summary.ended == {"small": 2}


def test_nodes_that_were_there_are_neither_bought_nor_added(shadowed):
    shadowed.join("n-1", **BUSY)
    shadowed.pass_time(10)
    assert (shadowed.summary.launched, shadowed.summary.cluster_added) == ({}, {})
    assert shadowed.states() == [InstanceState.RAY_RUNNING] * 2


def test_a_node_of_a_type_that_the_file_does_not_name_is_never_ended(shadowed):
    shadowed.join("n-hand", node_type("", {"CPU": 5}), status=NodeStatus.IDLE, node_type="")
    shadowed.join("n-other", node_type("other", {"CPU": 5}), status=NodeStatus.IDLE)
    shadowed.pass_time(300, step=5.0)
    assert (shadowed.summary.ended, shadowed.lines) == ({}, [])
    assert shadowed.states() == [InstanceState.RAY_RUNNING] * 3


def test_a_node_without_a_type_has_the_only_type_of_its_size():
    wishes = spec(SMALL, BIG, head_node_type="head")
    size = amounts({"CPU": 8, "memory": 1e9, "node:10.0.0.1": 1})
    assert type_of(node_report("n-1", node_type="", total=size), wishes) == "big"
    assert type_of(node_report("n-1", node_type="", total=amounts({"CPU": 3})), wishes) == "node_n-1"
    assert type_of(with_(HEAD, node_type=""), wishes) == "head"


def test_a_restart_keeps_purchases_and_sums(shadowed):
    shadowed.runtime.demands = [demand({"CPU": 2})]
    shadowed.pass_time(10)
    before = shadowed.summary
    shadowed.world.save()
    shadowed.start()
    shadowed.clock.advance(1000.0)  # nobody watched: not on either bill
    shadowed.pass_time(10)
    assert (shadowed.summary.launched, shadowed.summary.waiting) == (before.launched, 1)
    assert shadowed.summary.watched_s == pytest.approx(18, abs=2)
    shadowed.join("n-1", **BUSY)
    shadowed.pass_time(3)
    assert shadowed.summary.came == 1


def test_a_book_that_cannot_be_read_starts_anew_and_says_so(shadowed, caplog):
    shadowed.path.write_text("{", encoding="utf-8")
    shadowed.start()
    shadowed.pass_time(2)
    assert [str(shadowed.path) in record.getMessage() for record in caplog.records] == [True]
    assert shadowed.states() == [InstanceState.RAY_RUNNING]


def test_a_cluster_that_cannot_be_read_is_not_taken_for_an_empty_one(shadowed):
    shadowed.join("n-1", **BUSY)
    shadowed.pass_time(5)
    shadowed.runtime.answers["read"] = OSError("away")
    shadowed.pass_time(100)
    assert (shadowed.summary.cluster_removed, shadowed.states()) == ({}, [InstanceState.RAY_RUNNING] * 2)


def test_a_repeated_launch_buys_nothing_more(shadowed):
    shadowed.pass_time(1)
    for _ in range(2):
        shadowed.world.launch("r-1", {"small": 2})
    assert (shadowed.summary.launched, len(shadowed.world.list_instances())) == ({"small": 2}, 3)


def test_limits_of_the_file_hold_for_what_is_imagined(tmp_path):
    shadowed = Shadowed(tmp_path, node_type("small", {"CPU": 2}, max_nodes=2))
    shadowed.runtime.demands = [demand({"CPU": 2}, 9)]
    shadowed.pass_time(30)
    assert shadowed.summary.launched == {"small": 2}
    assert "price_per_hour" not in "\n".join(shadowed.summary.lines())


def test_muster_status_shows_the_comparison(shadowed, tmp_path):
    shadowed.join("n-1", status=NodeStatus.IDLE)
    home = ClusterHome(tmp_path)
    status = StatusFile(home, lambda: shadowed.report.newest, shadow=lambda: shadowed.summary)
    shadowed.pass_time(100)
    status.on_tick(shadowed.heard.ticks[-1])
    report = build_report(read_status(home), now=shadowed.clock.now())
    assert report.notes == tuple(shadowed.summary.lines())
    notes = "\n".join(report.notes).replace(moment(shadowed.summary.started_at), "MOMENT")
    assert_view("cluster/shadow_notes", notes)
