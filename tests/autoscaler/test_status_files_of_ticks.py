"""status.json and timeline.jsonl: written when something changed, read back whole."""

from __future__ import annotations

import os

import pytest
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import HEAD_NODE, spec

from muster.autoscaler.events import EventLog
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.publish import HistoryFile, PriceBoard, StatusFile, TimelineFile, read_timeline
from muster.autoscaler.status_files import read_status
from muster.base.clock import ManualClock
from muster.cluster.model import RuntimeReport
from muster.runtimes.ray.price_board import prices_of
from muster.stores.history.files import read_history
from muster.testing.builders import amounts, demand, gang, node_report, node_type


@pytest.fixture
def home(tmp_path):
    return ClusterHome(tmp_path)


def test_the_status_file_says_all_that_people_ask_for(home):
    events = EventLog()
    scene = Scene(
        wishes=spec(cluster_name="c1"),
        outlets=[events, StatusFile(home, lambda: events.newest, lambda: 44217)],
    )
    scene.tick()
    scene.stage.runtime.demands = ["nonsense", demand(), demand({"CPU": 64})]
    tick = scene.tick()
    status = read_status(home)
    assert status is not None
    assert (status.cluster_name, status.tick_id, status.at) == ("c1", tick.plan.tick_id, tick.plan.at)
    assert (status.monitor_pid, status.interval_s, status.metrics_port) == (os.getpid(), 1.0, 44217)
    assert status.status == tick.status()
    assert status.instances == tuple(scene.stage.store.load().instances.values())
    assert status.runtime == tick.runtime
    assert [event.message[:20] for event in status.events] == [
        "Adding 1 node(s) of ",
        "Resized to 1 CPUs.",
        "No available node ty",
    ]


def test_the_status_file_is_written_when_something_changed_and_now_and_then(home):
    scene = Scene(outlets=[StatusFile(home, lambda: ())])
    scene.tick()
    scene.tick()

    def written(seconds):
        before = home.status.stat().st_ino
        scene.tick(seconds)
        return home.status.stat().st_ino != before

    scene.tick(9), scene.tick(9)  # the pace has slowed down: nothing about the monitor changes either
    assert [written(1), written(1), written(4)] == [False, False, True]
    scene.stage.runtime.demands = [demand({"CPU": 64})]
    assert written(0.25)


def test_the_timeline_has_a_line_per_change(home):
    scene = Scene(wishes=spec(node_type("cpu", price_per_hour=36.0)), outlets=[TimelineFile(home.timeline)])
    scene.tick()
    scene.tick()
    scene.stage.runtime.demands = [demand(count=2), demand({"CPU": 64})]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request)
    scene.stage.runtime.demands = []
    scene.tick()
    lines = read_timeline(home.timeline)
    assert [(line.nodes, line.demand) for line in lines[:2]] == [
        ({"RAY_RUNNING": 1}, {}),
        (
            {"RAY_RUNNING": 1, "REQUESTED": 1, "QUEUED": 1},
            {"demands": {"waiting-for-launch": 2, "infeasible": 1}},
        ),
    ]
    assert lines[-1].types == {"head": 1, "cpu": 1}
    assert lines[-1].price_per_hour == 36.0


def test_gangs_are_counted_as_running_when_a_node_holds_one(home):
    scene = Scene(outlets=[TimelineFile(home.timeline)])
    holder = node_report("n-h", labels={"_PG_a": "", "_PG_b": "", "zone": "x"}, total=amounts({"CPU": 2}))
    report = RuntimeReport(nodes=(HEAD_NODE, holder), gangs=(gang(gang_id="c"),), version=9)
    scene.stage.runtime.answers["read"] = lambda: report
    scene.tick()
    (line,) = read_timeline(home.timeline)
    assert (line.gangs_running, line.gangs_pending) == (2, 1)


def test_the_timeline_stays_small_and_keeps_the_newest(home):
    scene = Scene(outlets=[TimelineFile(home.timeline, kept_bytes=2000)])
    for size in range(64, 130):
        scene.stage.runtime.demands = [demand({"CPU": size}, count=size)]
        scene.tick()
    lines = read_timeline(home.timeline)
    assert home.timeline.stat().st_size <= 4000
    assert len(lines) > 5
    assert lines[-1].demand == {"demands": {"infeasible": 129}}
    assert read_timeline(home.path / "none") == []


def test_the_history_is_written_after_every_change_and_ends_with_the_monitor(home):
    history = HistoryFile(home.history, ManualClock(9_999_999_999.0))
    scene = Scene(wishes=spec(node_type("cpu", price_per_hour=36.0)), outlets=[history])
    scene.tick()
    scene.stage.runtime.demands = [demand(count=2)]
    scene.tick()
    history.close()
    entries = list(read_history(home.history))
    assert [entry.is_whole for entry in entries] == [True, False, False]
    assert [list(counts.values()) for counts in entries[1].demand.values()] == [[2]]
    assert (entries[-1].is_last, entries[-1].at) == (True, 9_999_999_999.0)


def test_a_history_that_cannot_be_written_does_not_keep_the_tick_from_its_other_listeners(home):
    home.history.write_text("a file where the directory belongs", encoding="utf-8")
    scene = Scene(outlets=[HistoryFile(home.history, ManualClock(0.0))])
    assert scene.tick().is_decided
    assert len(scene.heard.ticks) == 1


def test_the_prices_of_nodes_are_published_for_tuners():
    written = []

    class Writer:
        def write(self, at, instances):
            written.append((at, prices_of(instances)))

    wall = ManualClock(5.0)  # set since the monitor started: drivers read the same one
    board = PriceBoard(Writer(), wall)
    scene = Scene(wishes=spec(node_type("cpu", price_per_hour=36.0)), outlets=[board])
    scene.tick()
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request)
    scene.tick()
    assert (written[0], written[-1][0], list(written[-1][1].values())) == ((5.0, {}), 5.0, [36.0])
