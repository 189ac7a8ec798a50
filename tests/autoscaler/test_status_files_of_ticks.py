"""status.json and the history: written when something changed, read back whole."""

from __future__ import annotations

import os

import pytest
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import spec
from tests.support.builders import demand, node_type

from muster.autoscaler.events import EventLog
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import StatusFile, read_status
from muster.base.clock import ManualClock
from muster.cluster.status import status_of
from muster.stores.history.files import HistoryFile, read_history


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
    assert status.status == status_of(tick)
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
