"""The boards in the cluster's store: entries are renewed in time, damaged ones named, old ones removed."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import spec
from tests.mistakes.views import assert_line
from tests.support.builders import demand, gang, instance, node_type

from muster.base.clock import ManualClock
from muster.base.forecast import ComingWork, Forecast, RunningTrial
from muster.base.ids import NodeId
from muster.base.resources import Resources
from muster.cluster.model import Notice, NoticeKind, StopCause
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.ports import ForecastReport
from muster.cluster.states import InstanceState
from muster.errors import EngineUnreachable
from muster.runtimes.ray.kv_board import (
    FORECAST_KEPT_S,
    FRESH_S,
    PRICES,
    ForecastWriter,
    GangVerdict,
    GcsForecastBoard,
    GcsNoticeBoard,
    MonitorBoard,
    PriceReading,
    PublishedVerdicts,
    read_prices,
    read_verdicts,
)

NOW = 100_000.0
ONE = Resources.of(CPU=1, GPU=0.5)


class Store:
    """The part of GcsClient that the boards use."""

    def __init__(self):
        self.values, self.writes, self.looks, self.generation, self.is_away = {}, 0, 0, 1, False

    def kv_put(self, key, value, namespace):
        self.values[key], self.writes = value, self.writes + 1

    def kv_get(self, key, namespace):
        return self.values.get(key)

    def kv_with_prefix(self, prefix, namespace):
        self.looks += 1
        if self.is_away:
            raise EngineUnreachable("away")
        return {key: value for key, value in self.values.items() if key.startswith(prefix)}

    def kv_delete(self, key, namespace):
        del self.values[key]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def writer(store, clock):
    return MonitorBoard(store, clock)


@pytest.fixture
def forecasts(store, clock):
    return GcsForecastBoard(store, clock)


@pytest.fixture
def notices(store, clock):
    return GcsNoticeBoard(store, clock)


def node(name, price, state=InstanceState.RAY_RUNNING):
    return instance(name, state, node_id=NodeId(f"node-{name}"), price_per_hour=price)


def test_every_node_with_a_price_is_there_and_no_other(store, writer):
    gone = node("c", 1.0, InstanceState.TERMINATED)
    writer.write_prices([node("a", 0.5), node("b", None), gone, node("d", 0.0)])
    assert read_prices(store, NOW + 1) == PriceReading(
        nodes={"node-a": 0.5, "node-d": 0.0}, is_published=True
    )


def test_a_tick_publishes_the_verdicts_of_gangs_and_the_prices_of_nodes(store, clock, writer):
    scene = Scene(wishes=spec(node_type("cpu", price_per_hour=36.0)), outlets=[writer])
    scene.stage.runtime.demands = [demand()]
    scene.stage.runtime.gangs = [gang(gang_id="large", bundles=({"CPU": 64},))]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request)
    clock.advance(1.0)  # by the wall clock, which drivers read: the monitor's own time is another
    scene.tick()
    assert list(read_prices(store, NOW).nodes.values()) == [36.0]
    verdicts = read_verdicts(store)
    assert (verdicts.at, verdicts.gangs["large"].reason) == (NOW, "infeasible")


def test_a_gang_gets_its_worst_verdict_and_other_subjects_none(store, writer):
    writer.write_verdicts(
        [
            Verdict(subject=Subject.GANG, subject_id="ab", reason=Reason.WAITING_FOR_NODE, count=1),
            Verdict(subject=Subject.GANG, subject_id="ab", reason=Reason.INFEASIBLE, detail="too large"),
            Verdict(subject=Subject.NODE, subject_id="i-1", reason=Reason.KEPT_BUSY),
        ]
    )
    assert read_verdicts(store) == PublishedVerdicts(
        at=NOW, gangs={"ab": GangVerdict(reason="infeasible", detail="too large")}
    )


def test_nodes_that_are_emptied_are_written_at_once_and_read(store, clock, writer):
    leaving = {"stop_cause": StopCause.CONSOLIDATION}
    other = replace(node("b", 0.5, InstanceState.RAY_STOPPING), stop_cause=StopCause.IDLE)
    gone = replace(node("c", 0.5, InstanceState.TERMINATED), **leaving)
    writer.write_prices([node("a", 0.5), other, gone])
    assert read_prices(store, NOW).emptied == ()
    clock.advance(1.0)
    writer.write_prices([replace(node("a", 0.5, InstanceState.RAY_STOPPING), **leaving), other, gone])
    assert read_prices(store, NOW + 1).emptied == ("node-a",)


def test_prices_are_written_when_they_change_and_now_and_then(store, clock, writer):
    def write(seconds, price):
        clock.advance(seconds)
        writer.write_prices([node("a", price)])
        return store.writes

    assert [write(0, 0.5), write(1, 0.5), write(1, 0.6), write(1, 0.6), write(60, 0.6)] == [1, 1, 2, 2, 3]
    store.generation += 1  # another head, with an empty store
    assert write(1, 0.6) == 4
    clock.jump(-3600.0)  # somebody set the clock back
    assert write(0, 0.6) == 5


def test_without_a_monitor_there_are_no_prices_and_no_problem(store):
    assert read_prices(store, NOW) == PriceReading()


def test_stale_prices_are_ignored_and_named(store, writer):
    writer.write_prices([node("a", 0.5)])
    late = read_prices(store, NOW + FRESH_S + 1)
    assert (late.nodes, late.is_published) == ({}, False)
    assert_line("runtimes", "stale prices", late.problem)


@pytest.mark.parametrize("text", [b"\xff", b"[]", b'{"at": 1, "nodes": {"a": "dear"}}'])
def test_damaged_prices_are_ignored_and_named(store, text):
    store.values[PRICES] = text
    found = read_prices(store, NOW)
    assert (dict(found.nodes), found.is_published) == ({}, False)
    assert_line("runtimes", "damaged prices", re.sub(r"\(.*\)", "(CAUSE)", found.problem))


def test_a_negative_price_is_ignored_and_the_others_count(store):
    store.values[PRICES] = b'{"at": 100000, "nodes": {"a": -1, "b": 2}}'
    assert read_prices(store, NOW) == PriceReading(
        nodes={"b": 2.0}, is_published=True, problem="the price of node a makes no sense: ignored"
    )


def forecast(at=NOW, name="/results/e", **more):
    trial = RunningTrial(trial_id="t", node_id=NodeId("n"), shape=ONE, unsaved_s=at - NOW + 5, rest_s=100.0)
    coming = ComingWork(shape=ONE, count=3, each_s=60.0)
    return Forecast(experiment=name, driver="01000000", at=at, trials=(trial,), coming=(coming,), **more)


def test_a_forecast_is_read_as_the_tuner_writes_it(store, forecasts):
    ForecastWriter(store).write_forecast(forecast())
    assert forecasts.read() == ForecastReport(forecasts=(forecast(),))


def test_what_moves_with_the_clock_alone_is_written_before_the_last_one_gets_stale(store):
    writer = ForecastWriter(store)
    for second in (0, 3, 6, 19, 21, 24):
        writer.write_forecast(forecast(NOW + second))
    assert store.writes == 2
    writer.write_forecast(forecast(NOW + 25, budget_left=1.0))
    assert store.writes == 3


def test_whether_anybody_forecasts_is_known_from_the_last_look(store, forecasts):
    assert not forecasts.has_any
    ForecastWriter(store).write_forecast(forecast())
    forecasts.read()
    assert forecasts.has_any


def test_an_entry_of_a_tuner_that_died_is_deleted_after_an_hour(store, forecasts):
    ForecastWriter(store).write_forecast(forecast(NOW - 120.0))
    ForecastWriter(store).write_forecast(forecast(NOW - FORECAST_KEPT_S - 61.0, "/results/old"))
    assert [one.experiment for one in forecasts.read().forecasts] == ["/results/e"]
    assert list(store.values) == ["forecast//results/e"]


@pytest.mark.parametrize(
    "text", [b"\xff{", b"[]", b'{"v": 1, "d": {"at": "x"}}', b'{"v": 1, "d": {"experiment": "b", "at": 1.0}}']
)
def test_a_damaged_entry_is_named_and_the_others_are_read(store, forecasts, text):
    ForecastWriter(store).write_forecast(forecast())
    store.values["forecast/bad"] = text
    report = forecasts.read()
    assert [one.experiment for one in report.forecasts] == ["/results/e"]
    assert [note.source.split() for note in report.damaged] == [["forecast", "bad"]]


def put(store, name="i-1", **fields):
    value = {"cloud_id": name, "kind": "interruption", "deadline": NOW + 60, "source": "aws", "at": NOW}
    store.values[f"notice/{name}"] = json.dumps({**value, "is_cancelled": False, **fields}).encode()


def test_a_notice_is_read_as_the_watcher_writes_it(notices, store):
    put(store)
    assert notices.read().notices == (
        Notice(cloud_id="i-1", kind=NoticeKind.INTERRUPTION, deadline=NOW + 60, source="aws", at=NOW),
    )


@pytest.mark.parametrize("fields", [{"kind": "?"}, {"deadline": "soon"}, {"cloud_id": "i-2"}, {"at": None}])
def test_a_damaged_notice_is_named_and_the_others_are_read(notices, store, fields):
    put(store)
    put(store, "bad", **fields)
    report = notices.read()
    assert [one.cloud_id for one in report.notices] == ["i-1"]
    assert [note.source.split() for note in report.damaged] == [["notice", "bad"]]


def test_text_that_is_no_json_is_a_damaged_notice(notices, store):
    store.values["notice/bad"] = b"\xff{"
    assert len(notices.read().damaged) == 1


def test_a_notice_that_is_long_over_is_removed(notices, store):
    put(store, deadline=NOW - 8000, at=NOW - 8100)
    put(store, "i-2", deadline=None, at=NOW - 100)
    assert [one.cloud_id for one in notices.read().notices] == ["i-2"]
    assert list(store.values) == ["notice/i-2"]


def test_the_version_changes_with_a_notice_and_looks_once_a_second(notices, store, clock):
    notices.read()
    before = notices.version()
    put(store)
    assert (notices.version(), store.looks) == (before, 1)
    clock.advance(1.0)
    changed = notices.version()
    assert (changed != before, store.looks) == (True, 2)
    store.is_away = True
    clock.advance(1.0)
    assert notices.version() == changed
