"""Prices of nodes on the board: written when they change; damaged and stale ones are named."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.base.ids import NodeId
from muster.cluster.model import StopCause
from muster.cluster.states import InstanceState
from muster.runtimes.ray.price_board import FRESH_S, KEY, PriceReading, PriceWriter, prices_of, read_prices
from muster.testing.builders import instance

NOW = 100_000.0


class Store:
    """The part of GcsClient that the board uses."""

    def __init__(self):
        self.values, self.writes, self.generation = {}, 0, 1

    def kv_put(self, key, value, namespace):
        self.values[key], self.writes = value, self.writes + 1

    def kv_get(self, key, namespace):
        return self.values.get(key)


@pytest.fixture
def store():
    return Store()


def node(name, price, state=InstanceState.RAY_RUNNING):
    return instance(name, state, node_id=NodeId(f"node-{name}"), price_per_hour=price)


def test_every_node_with_a_price_is_there_and_no_other():
    gone = node("c", 1.0, InstanceState.TERMINATED)
    assert prices_of([node("a", 0.5), node("b", None), gone, node("d", 0.0)]) == {
        "node-a": 0.5,
        "node-d": 0.0,
    }


def test_prices_are_read_as_the_monitor_writes_them(store):
    PriceWriter(store).write(NOW, [node("a", 0.5)])
    assert read_prices(store, NOW + 1) == PriceReading(nodes={"node-a": 0.5}, is_published=True)


def test_nodes_that_are_emptied_are_written_at_once_and_read(store):
    writer = PriceWriter(store)
    leaving = {"stop_cause": StopCause.CONSOLIDATION}
    other = replace(node("b", 0.5, InstanceState.RAY_STOPPING), stop_cause=StopCause.IDLE)
    gone = replace(node("c", 0.5, InstanceState.TERMINATED), **leaving)
    writer.write(NOW, [node("a", 0.5), other, gone])
    assert read_prices(store, NOW).emptied == ()
    writer.write(NOW + 1, [replace(node("a", 0.5, InstanceState.RAY_STOPPING), **leaving), other, gone])
    assert read_prices(store, NOW + 1).emptied == ("node-a",)


def test_prices_are_written_when_they_change_and_now_and_then(store):
    writer = PriceWriter(store, refresh_s=60.0)
    for at, price in ((0, 0.5), (1, 0.5), (2, 0.6), (3, 0.6), (63, 0.6)):
        writer.write(NOW + at, [node("a", price)])
    assert store.writes == 3
    store.generation += 1  # another head, with an empty store
    writer.write(NOW + 64, [node("a", 0.6)])
    assert store.writes == 4
    writer.write(NOW - 3600, [node("a", 0.6)])  # somebody set the clock back
    assert store.writes == 5


def test_without_a_monitor_there_are_no_prices_and_no_problem(store):
    assert read_prices(store, NOW) == PriceReading()


def test_stale_prices_are_ignored_and_named(store):
    PriceWriter(store).write(NOW, [node("a", 0.5)])
    late = read_prices(store, NOW + FRESH_S + 1)
    assert (late.nodes, late.is_published) == ({}, False)
    assert "601 s old: ignored" in late.problem


@pytest.mark.parametrize("text", [b"\xff", b"[]", b'{"at": 1, "nodes": {"a": "dear"}}'])
def test_damaged_prices_are_ignored_and_named(store, text):
    store.values[KEY] = text
    found = read_prices(store, NOW)
    assert (dict(found.nodes), "cannot be read" in found.problem) == ({}, True)


def test_a_negative_price_is_ignored_and_the_others_count(store):
    store.values[KEY] = b'{"at": 100000, "nodes": {"a": -1, "b": 2}}'
    assert read_prices(store, NOW) == PriceReading(
        nodes={"b": 2.0}, is_published=True, problem="the price of node a makes no sense: ignored"
    )
