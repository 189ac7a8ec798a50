"""An edit of the cluster file while the monitor runs: what it takes on, and what it says of the rest."""

from __future__ import annotations

import re
import socket

import pytest
from tests.autoscaler.scenes import Scene
from tests.support.ray_cluster import free_ports

from muster.autoscaler.config_reload import CommandLineOverrides, ConfigReload
from muster.autoscaler.events import EventLog
from muster.autoscaler.metrics import DEFAULT_PORT, Metrics, MetricsServer
from muster.autoscaler.monitor import TickInterval
from muster.base.clock import ManualClock
from muster.providers.kind import watch_file
from muster.stores.ledger.store import SqliteInstanceStore

CONFIG = """
cluster_name: {name}
provider: {{type: readonly{more}}}
available_node_types:
  head: {{resources: {{CPU: 1}}, node_config: {{}}}}
muster: {{monitor: {{interval_s: {interval}, max_interval_s: {longest}, metrics_port: {port}}},
         retention: {{max_records: {records}}}, limits: {{max_launch_batch: {batch}}}}}
"""
FIRST = {"name": "c1", "more": "", "interval": 1, "longest": 5, "port": 0, "records": 10, "batch": 5}


class Desk:
    """A file, and what a monitor made of it."""

    def __init__(self, folder, store, server=None, **given):
        self._file = folder / "cluster.yaml"
        self.write()
        self._source = watch_file(self._file)
        self.interval, self.events, self.server = TickInterval(1.0, 5.0), EventLog(), server
        self.metrics = Metrics("session", "c1")
        self._reload = ConfigReload(
            config=lambda: self._source.config,
            given=CommandLineOverrides(**given),
            interval=self.interval,
            store=store,
            server=server,
            events=self.events,
            clock=ManualClock(),
            metrics=self.metrics,
        )

    def write(self, **changes):
        self._file.write_text(CONFIG.format(**{**FIRST, **changes}), encoding="utf-8")

    def edit(self, **changes):
        """What is said of it."""
        before = len(self.events.newest)
        self.write(**changes)
        for _ in range(3):  # an edit counts once two looks found it
            self._source.current()
            self._reload.apply()
        return [event.message for event in self.events.newest[before:]]


@pytest.fixture
def store(tmp_path):
    with SqliteInstanceStore(tmp_path / "ledger.db", clock=ManualClock()) as store:
        yield store


@pytest.fixture
def server():
    server = MetricsServer(Metrics("session"), "127.0.0.1", 0)
    yield server
    server.close()


def test_intervals_and_retention_are_taken_on(tmp_path, store):
    desk = Desk(tmp_path, store)
    assert desk.edit(interval=0.5, longest=30, records=3) == []
    assert (desk.interval.base_s, desk.interval.max_s) == (0.5, 30.0)
    assert (store._retention.max_ended, store._pruner.retention.max_ended) == (3, 3)


@pytest.mark.slow
def test_the_metrics_move_and_stay_where_they_are_when_the_port_is_taken(tmp_path, store, server):
    (port,) = free_ports(1)
    desk = Desk(tmp_path, store, server)
    before = server.port
    assert (desk.edit(port=port), server.port) == ([], port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", before)).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        (said,) = desk.edit(port=number)
        assert re.fullmatch(rf"muster\.monitor\.metrics_port: {number} .* {port}\.", said)
    assert (desk.edit(port=0), server.port) == ([], port)  # any: this one will do


def test_what_counts_only_at_a_start_is_said_once(tmp_path, store):
    desk = Desk(tmp_path, store)
    later = "was changed in the cluster file; it takes effect when the monitor is restarted."
    assert desk.edit(name="c2") == [f"cluster_name {later}"]
    assert desk.edit(name="c2", more=", region: x") == [f"provider {later}"]
    assert desk.edit(name="c2", more=", region: x", batch=9) == [f"muster.limits.max_launch_batch {later}"]
    assert desk.edit(more=", region: x") == []  # two are as at the start again
    (said,) = desk.edit(port=9)
    assert re.match(r"muster\.monitor\.metrics_port: .* 9 ", said)
    assert {event.level for event in desk.events.newest} == {"warning"}


def test_the_metrics_know_while_a_part_of_the_file_waits_for_a_restart(tmp_path, store):
    desk = Desk(tmp_path, store, interval_s=2.0)
    told = []
    for changes in ({"interval": 3}, {"name": "c2"}, {"name": "c2", "records": 3}, {}):
        desk.edit(**changes)
        told.append(desk.metrics.restart_needed)
    assert told == [False, True, True, False]


@pytest.mark.slow
def test_the_command_line_stands_over_the_file(tmp_path, store, server):
    desk = Desk(tmp_path, store, server, interval_s=2.0, metrics_port=0)
    before = server.port
    interval, metrics = desk.edit(interval=0.5, longest=9, port=DEFAULT_PORT)
    assert re.match(r"muster\.monitor\.interval_s .*: --interval 2 ", interval)
    assert re.match(r"muster\.monitor\.metrics_port .*: --metrics-port 0 ", metrics)
    assert (desk.interval.base_s, desk.interval.max_s, server.port) == (2.0, 9.0, before)


def test_it_is_asked_before_the_next_pause_is_chosen_and_cannot_end_the_monitor(caplog):
    scene = Scene()
    scene.tick()
    object.__setattr__(scene.loop, "reload", lambda: scene.monitor._interval.change(0.25, 0.25))
    assert scene.tick().interval_s == 0.25

    def fail():
        raise RuntimeError("no")

    object.__setattr__(scene.loop, "reload", fail)
    assert scene.tick().interval_s == 0.25
    assert ": RuntimeError: no" in caplog.text
