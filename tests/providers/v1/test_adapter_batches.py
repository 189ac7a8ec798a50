"""Providers with a create call that can be repeated: no list before it, and a reason for each machine."""

from __future__ import annotations

from muster.cluster.model import FailureKind, LaunchFailure, Offer
from muster.config.node_launch import NodeLaunch
from muster.errors import CapacityExhausted, ProviderError
from muster.providers.node_provider import BatchRefused, NodeProvider
from muster.providers.v1.adapter import AdapterLimits, V1Adapter, inline_pools

A, B = Offer(zone="a", market="spot"), Offer(zone="b", market="spot")


class TokenProvider(NodeProvider):
    """Keeps the answer of each part of a request, as a cloud with tokens does."""

    buys_offers = True

    def __init__(self, left: int = 100) -> None:
        super().__init__({}, "c1")
        self.left, self.batches, self.lists = left, [], 0
        self.nodes: dict[str, dict[str, str]] = {}
        self.tokens: dict[tuple, dict[str, object]] = {}

    def non_terminated_nodes(self, tag_filters):
        self.lists += 1
        return [n for n, tags in self.nodes.items() if tag_filters.items() <= tags.items()]

    def node_tags(self, node_id):
        return self.nodes[node_id]

    def create_node_batch(self, batch):
        self.batches.append(batch)
        token = batch.tags["ray-launch-request"], batch.part
        if token not in self.tokens:
            count = min(batch.count, self.left)
            self.left -= count
            made = {f"i-{len(self.nodes) + number}": {} for number in range(count)}
            self.nodes |= dict.fromkeys(made, batch.tags)
            self.tokens[token] = made
        made = self.tokens[token]
        if len(made) < batch.count:
            error = CapacityExhausted("sold out")
            error.offers = ("a/spot", "b/spot")
            raise BatchRefused(tuple(made), [error] * (batch.count - len(made)))
        return made


def port_of(provider, batch=5):
    launches = {"w": NodeLaunch(node_type="w", node_config={"x": 1}, launch_hash="h")}
    limits = AdapterLimits(max_launch_batch=batch)
    return V1Adapter(provider, lambda: launches, cluster_name="c1", limits=limits, pools=inline_pools())


def test_all_offers_of_a_launch_reach_the_provider_and_nothing_is_listed_before():
    provider = TokenProvider()
    port = port_of(provider)
    port.launch_offers("r-1", {"w": 2}, (A, B))
    (batch,) = provider.batches
    assert (batch.count, batch.offers, batch.node_config, batch.part) == (2, (A, B), {"x": 1}, 0)
    assert (batch.tags["muster-zone"], batch.tags["muster-market"]) == ("a", "spot")
    assert (provider.lists, port.poll_launch_failures()) == (0, ())
    assert port.traits().takes_next_offer


def test_a_request_of_many_machines_has_parts_that_are_the_same_when_it_is_repeated():
    provider = TokenProvider()
    port_of(provider).launch("r-1", {"w": 12})
    port_of(provider).launch("r-1", {"w": 12})  # another process
    assert sorted((batch.part, batch.count) for batch in provider.batches) == [
        (0, 5),
        (0, 5),
        (1, 5),
        (1, 5),
        (2, 2),
        (2, 2),
    ]
    assert len(provider.nodes) == 12


def test_each_machine_that_is_refused_is_one_failure_with_all_offers_that_have_none():
    provider = TokenProvider(left=1)
    port = port_of(provider)
    port.launch_offers("r-1", {"w": 2}, (A, B))
    failure = LaunchFailure(
        request_id="r-1",
        node_type="w",
        kind=FailureKind.CAPACITY,
        message="sold out",
        offer="a/spot",
        also=("b/spot",),
    )
    assert (port.poll_launch_failures(), provider.lists) == ((failure,), 0)


def test_a_provider_without_such_a_call_gets_the_first_offer_only():
    class Plain(NodeProvider):
        buys_offers = True

        def __init__(self) -> None:
            super().__init__({}, "c1")
            self.asked = []

        def non_terminated_nodes(self, tag_filters):
            return []

        def create_node(self, node_config, tags, count):
            self.asked.append(node_config["offer"]["zone"])
            return {f"i-{number}": {} for number in range(count)}

    provider = Plain()
    port = port_of(provider)
    port.launch_offers("r-1", {"w": 1}, (A, B))
    assert (provider.asked, port.traits().takes_next_offer) == (["a"], False)


def test_an_unknown_outcome_is_looked_up():
    class Broken(TokenProvider):
        def create_node_batch(self, batch):
            super().create_node_batch(batch)
            raise ProviderError("the connection broke")

    provider = Broken()
    port = port_of(provider)
    port.launch("r-1", {"w": 2})
    assert (port.poll_launch_failures(), len(provider.nodes), provider.lists > 0) == ((), 2, True)
