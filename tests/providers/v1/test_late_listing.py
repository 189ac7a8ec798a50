"""A class that lists machines minutes late, with lost replies, kills and calls that wait: never too many."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import spec
from tests.providers.v1.scripted import LAUNCHES, Scripted
from tests.support.builders import demand, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import LaunchLimits
from muster.host.call_threads import InlinePool
from muster.providers.background_calls import inline_pools
from muster.providers.v1.adapter import V1Adapter

MAXIMUM = 10
HOUR_S = 3600
LATE_S = 540.0


class Late(Scripted):
    """Lists a machine so long after it was made; a reply is lost, or its process dies, while that is set."""

    def __init__(self, clock, late_s=LATE_S):
        super().__init__()
        self.clock, self.late_s = clock, late_s
        self.loses_replies = self.dies = False
        self.born = {}

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        made = super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)
        self.born.update(dict.fromkeys(made, self.clock.now()))
        if self.dies:
            raise KeyboardInterrupt  # the one thing that nobody catches
        if self.loses_replies:
            raise TimeoutError("no reply")
        return made

    def non_terminated_nodes(self, tag_filters):
        now, listed = self.clock.now(), super().non_terminated_nodes(tag_filters)
        return [node for node in listed if now - self.born[node] >= self.late_s]


class Crowded(InlinePool):
    """A pool whose calls wait until `run` is called."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def submit(self, call):
        self.waiting.append(call)
        return Future()

    def run(self):
        while self.waiting:
            self.waiting.pop(0)()


class World:
    """A cluster whose only type has a maximum of ten, and work for all of them."""

    def __init__(self, late_s=LATE_S):
        limits = LaunchLimits(upscaling_speed=10.0)
        self.stage = Stage(installer=False, wishes=spec(node_type("cpu"), limits=limits))
        self.v1 = Late(self.stage.clock, late_s)
        self.stage.clock.advance(5)
        self.most = 0
        self.start()
        self.tick()
        self.stage.runtime.demands = [demand(count=MAXIMUM)]

    def start(self, pool=None):
        """Start a controller; one that ran before was killed."""
        pools = replace(inline_pools(), launch=pool or InlinePool())
        port = V1Adapter(
            self.v1, lambda: LAUNCHES, cluster_name=self.v1.cluster_name, pools=pools, clock=self.stage.clock
        )
        self.controller = ClusterController(replace(self.stage.ports, provider=port), self.stage.ambient)

    def tick(self, step_s=5.0):
        self.stage.clock.advance(step_s)
        self.controller.tick()
        self.most = max(self.most, len(self.v1.nodes))

    def run(self, for_s=HOUR_S):
        for _ in range(int(for_s / 5)):
            self.tick()
        return self.most, len(self.v1.nodes)


def test_machines_that_are_listed_late_are_launched_once():
    assert World().run() == (MAXIMUM, MAXIMUM)


def test_a_lost_reply_is_not_made_up_for_beyond_the_maximum():
    world = World()
    world.v1.loses_replies = True
    world.tick()
    world.v1.loses_replies = False
    assert world.run() == (MAXIMUM, MAXIMUM)


def test_below_the_maximum_a_lost_reply_is_repeated_after_a_back_off():
    world = World()
    world.stage.runtime.demands = [demand(count=2)]
    world.v1.loses_replies = True
    world.tick()
    world.v1.loses_replies = False
    assert world.run(120)[0] == 4


@pytest.mark.parametrize("alive_s", [5, 100, 700])
def test_a_process_that_is_killed_again_and_again_launches_no_more(alive_s):
    world = World()
    for _ in range(HOUR_S // (alive_s + 5)):
        world.start()
        world.v1.dies = True
        with suppress(KeyboardInterrupt):
            world.tick()
        world.v1.dies = False
        world.run(alive_s)
    assert (world.most, len(world.v1.nodes)) == (MAXIMUM, MAXIMUM)


def test_a_kill_before_the_create_call_is_made_up_for():
    world = World()
    world.start(Crowded())
    world.tick()
    assert world.v1.nodes == {}
    world.start()
    assert world.run() == (MAXIMUM, MAXIMUM)


def test_a_launch_that_waits_in_the_adapter_is_made_once_however_long_it_waits():
    world, pool = World(), Crowded()
    world.start(pool)
    world.run(HOUR_S)
    assert world.v1.nodes == {}
    pool.run()
    world.start()
    assert world.run(700) == (MAXIMUM, MAXIMUM)
