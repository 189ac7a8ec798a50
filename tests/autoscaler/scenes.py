"""Ticks of a cluster in memory: the real controller and store over the ports of `tests.cluster.fakes`."""

from __future__ import annotations

from tests.cluster.fakes import Stage
from tests.cluster.worlds import HEAD_NODE, machine
from tests.support.builders import node_report

from muster.autoscaler.monitor import Loop, Monitor, TickInterval
from muster.cluster.controller import ClusterController
from muster.cluster.ports import TickResult


class Heard:
    """An outlet that keeps every tick."""

    def __init__(self, failing=None):
        self.ticks: list[TickResult] = []
        self.failing = failing

    def on_tick(self, tick):
        if self.failing is not None:
            raise self.failing
        self.ticks.append(tick)


class Countdown:
    """A stop that passes time on a manual clock, and is set after so many waits or seconds."""

    def __init__(self, clock, seconds, between=lambda: None):
        self.clock, self.until, self.between = clock, clock.monotonic() + seconds, between
        self.waits: list[float] = []

    def is_set(self):
        return self.clock.monotonic() >= self.until

    def wait(self, timeout):
        self.waits.append(timeout)
        self.clock.advance(timeout)
        self.between()
        return self.is_set()


class Scene:
    """A monitor whose world is a Stage. `tick()` plays one round and returns what it came to."""

    def __init__(self, *, wishes=None, outlets=(), metrics=None, looks=False, **stage):
        self.stage = Stage(wishes=wishes, installer=False, **stage)
        self.heard = Heard()
        self.closed = 0
        self.config_version = self.notices_version = 1
        self.looked = 0
        self.loop = Loop(
            controller=ClusterController(self.stage.ports, self.stage.ambient),
            poll=self._look if looks else None,
            config_version=lambda: self.config_version,
            notices_version=lambda: self.notices_version,
        )
        self.monitor = Monitor(
            self.loop,
            TickInterval(base_s=1.0, max_s=5.0),
            clock=self.stage.clock,
            listeners=(*outlets, self.heard),
            problems=metrics,
            close=self._close,
        )

    def tick(self, seconds=5.0) -> TickResult:
        self.stage.clock.advance(seconds)
        self.monitor.round()
        return self.heard.ticks[-1]

    def run(self, seconds, between=lambda: None):
        """The times of the ticks, from the first one on."""
        self.heard.ticks.clear()
        self.monitor.run(Countdown(self.stage.clock, seconds, between))
        first = self.heard.ticks[0].plan.at
        return [round(tick.plan.at - first, 3) for tick in self.heard.ticks]

    def machine_for(self, name, request, **node):
        """The cloud's answer to a launch: a machine, and its node."""
        self.stage.provider.machines[f"c-{name}"] = machine(name, request_id=request)
        report = node_report(f"n-{name}", cloud_id=f"c-{name}", **node)
        self.stage.runtime.nodes = [*self.stage.runtime.nodes, report]
        assert HEAD_NODE in self.stage.runtime.nodes

    def _look(self):
        self.looked += 1
        return self.stage.runtime.read()

    def _close(self):
        self.closed += 1
