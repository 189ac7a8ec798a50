"""Publishes what each node costs in the cluster's key-value store: the monitor writes, RayEngine reads.

So a tuner can say what its trials cost, on whatever machine its driver runs, and knows which nodes are
drained to save money: Ray passes on until when a node is drained, not why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, field

from muster.cluster.model import Instance, StopCause
from muster.cluster.states import ON_CLOUD
from muster.runtimes.ray.client import GcsClient

SPACE = "__muster"
KEY = "prices"
FRESH_S = 600.0  # prices change seldom; a monitor that is silent for longer may have been replaced


class PublishedPrices(Struct, frozen=True, kw_only=True):
    """A PublishedPrices holds $ per hour by node id, in hex, as of `at` seconds since the epoch."""

    at: float = 0.0
    nodes: Mapping[str, float] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()  # nodes whose trials are to go on elsewhere, for less


class PriceReading(Struct, frozen=True, kw_only=True):
    """A PriceReading is what is known of prices, and why there is nothing when that is strange."""

    nodes: Mapping[str, float] = field(default_factory=dict)
    is_published: bool = False  # a monitor publishes prices; those of machines to come, too
    problem: str = ""
    emptied: tuple[str, ...] = ()


def prices_of(instances: Iterable[Instance]) -> dict[str, float]:
    """Returns the price of every node whose machine has one, by node id."""
    return {
        str(record.node_id): record.price_per_hour
        for record in instances
        if record.node_id is not None and record.price_per_hour is not None and record.state in ON_CLOUD
    }


def emptied_of(instances: Iterable[Instance]) -> tuple[str, ...]:
    """Returns the nodes that are emptied into others, by node id."""
    return tuple(
        str(record.node_id)
        for record in instances
        if record.stop_cause is StopCause.CONSOLIDATION and record.node_id and record.state in ON_CLOUD
    )


class PriceWriter:
    """A PriceWriter writes when prices changed, and now and then to show that the monitor lives."""

    def __init__(self, client: GcsClient, refresh_s: float = 60.0) -> None:
        self._client = client
        self._refresh_s = refresh_s
        self._written = PublishedPrices(at=-math.inf)
        self._generation = 0

    def write(self, at: float, instances: Iterable[Instance]) -> None:
        """Writes the prices if necessary; raises an EngineError when the GCS is away."""
        live = tuple(instances)
        board = PublishedPrices(at=at, nodes=prices_of(live), emptied=emptied_of(live))
        last = self._written
        is_same = (board.nodes, board.emptied) == (last.nodes, last.emptied)
        if is_same and self._generation == self._client.generation and 0 <= at - last.at < self._refresh_s:
            return
        self._client.kv_put(KEY, msgspec.json.encode(board), SPACE)
        self._written, self._generation = board, self._client.generation


def read_prices(client: GcsClient, now: float) -> PriceReading:
    """Returns the published prices; none, with the reason, when they are damaged or stale."""
    text = client.kv_get(KEY, SPACE)
    if text is None:
        return PriceReading()
    try:
        board = msgspec.json.decode(text, type=PublishedPrices)
    except msgspec.DecodeError as error:
        return PriceReading(problem=f"the published prices of nodes cannot be read ({error}): ignored")
    if now - board.at > FRESH_S:
        return PriceReading(
            problem=f"the published prices of nodes are {now - board.at:.0f} s old: ignored; does the "
            "cluster's monitor run, and do the clocks of its machine and of this one agree?"
        )
    sound = {node: price for node, price in board.nodes.items() if math.isfinite(price) and price >= 0}
    odd = sorted(board.nodes.keys() - sound.keys())
    return PriceReading(
        nodes=sound,
        is_published=True,
        emptied=board.emptied,
        problem=f"the price of node {odd[0]} makes no sense: ignored" if odd else "",
    )
