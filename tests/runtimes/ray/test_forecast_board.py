"""Forecasts in the cluster's store: renewed in time, removed at the end, damaged ones named."""

from __future__ import annotations

import pytest

from muster.base.clock import ManualClock
from muster.base.forecast import ComingWork, Forecast, RunningTrial
from muster.base.ids import NodeId
from muster.base.resources import Resources
from muster.cluster.ports import ForecastReport
from muster.runtimes.ray.forecast_board import KEPT_S, ForecastWriter, GcsForecastBoard

NOW = 100_000.0
ONE = Resources.of(CPU=1, GPU=0.5)


class Store:
    """The part of GcsClient that the board uses."""

    def __init__(self):
        self.values, self.writes, self.generation = {}, 0, 1

    def kv_put(self, key, value, namespace):
        self.values[key], self.writes = value, self.writes + 1

    def kv_with_prefix(self, prefix, namespace):
        return {key: value for key, value in self.values.items() if key.startswith(prefix)}

    def kv_delete(self, key, namespace):
        self.values.pop(key, None)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def board(store):
    return GcsForecastBoard(store, ManualClock(NOW))


def forecast(at=NOW, name="/results/e", **more):
    trial = RunningTrial(trial_id="t", node_id=NodeId("n"), shape=ONE, unsaved_s=at - NOW + 5, rest_s=100.0)
    coming = ComingWork(shape=ONE, count=3, each_s=60.0)
    return Forecast(experiment=name, driver="01000000", at=at, trials=(trial,), coming=(coming,), **more)


def test_a_forecast_is_read_as_the_tuner_writes_it(store, board):
    ForecastWriter(store).write(forecast())
    assert board.read() == ForecastReport(forecasts=(forecast(),))


def test_what_moves_with_the_clock_alone_is_written_before_the_last_one_gets_stale(store):
    writer = ForecastWriter(store)
    for second in (0, 3, 6, 19, 21, 24):
        writer.write(forecast(NOW + second))
    assert store.writes == 2
    writer.write(forecast(NOW + 25, budget_left=1.0))
    assert store.writes == 3


def test_whether_anybody_forecasts_is_known_from_the_last_look(store, board):
    assert not board.has_any
    ForecastWriter(store).write(forecast())
    board.read()
    assert board.has_any


def test_an_entry_of_a_tuner_that_died_is_deleted_after_an_hour(store, board):
    ForecastWriter(store).write(forecast(NOW - 120.0))
    ForecastWriter(store).write(forecast(NOW - KEPT_S - 61.0, "/results/old"))
    assert [one.experiment for one in board.read().forecasts] == ["/results/e"]
    assert list(store.values) == ["forecast//results/e"]


@pytest.mark.parametrize(
    "text", [b"\xff{", b"[]", b'{"v": 1, "d": {"at": "x"}}', b'{"v": 1, "d": {"experiment": "b", "at": 1.0}}']
)
def test_a_damaged_entry_is_named_and_the_others_are_read(store, board, text):
    ForecastWriter(store).write(forecast())
    store.values["forecast/bad"] = text
    report = board.read()
    assert [one.experiment for one in report.forecasts] == ["/results/e"]
    assert [note.source for note in report.damaged] == ["forecast bad"]
