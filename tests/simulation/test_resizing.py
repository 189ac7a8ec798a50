"""Check simulated machines that change their size, and that what goes wrong with them is found."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.simulation.checkers import safety_checks
from tests.simulation.cluster import FaultyCluster
from tests.simulation.liveness import unsettled
from tests.simulation.options import BACKOFF, RESIZE_TIMEOUT_S, TIMEOUTS, draw_options
from tests.support.builders import cluster_spec

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.rules.resize import _Change
from muster.cluster.states import ResizeLimits
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import GIB, HEAD_TYPE, WORKER_TYPES, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import FOREVER, TaskClass

TICK_S = 5.0
BIG = Resources.of(CPU=16, memory=64 * GIB)
SMALL = Resources.of(CPU=4, memory=16 * GIB)
TASK = TaskClass(Resources.of(CPU=10), name="big")


class Run:
    """A cluster with one type, which may grow to four times its size, and a task that fits only then."""

    def __init__(self, *, most=1, seed=7, **rates: float) -> None:
        grows = replace(
            WORKER_TYPES[0], max_nodes=most, resize=ResizeLimits(maximum=BIG, timeout_s=RESIZE_TIMEOUT_S)
        )
        spec = cluster_spec(
            (head_type(), grows),
            head_node_type=HEAD_TYPE,
            timeouts=TIMEOUTS,
            backoff=BACKOFF,
            idle_timeout_s=40.0,
        )
        options = RunOptions(spec=spec, catalogue=catalogue_for(spec))
        self.faults = Faults(Seed(seed), rates)
        self.cluster = FaultyCluster(Seed(seed), options, self.faults)
        self._checks = safety_checks()
        self.found: list[str] = []

    def ticks(self, count: int) -> Run:
        for _ in range(count):
            self.cluster.tick()
            self.found += [text for check in self._checks for text in check(self.cluster)]
            self.cluster.store.commits.clear()
            self.cluster.world.advance(TICK_S)
        return self

    def submit(self) -> Run:
        self.cluster.runtime.submit(TASK, 1, FOREVER)
        return self

    @property
    def node(self):
        return next(node for node in self.cluster.runtime.live_nodes() if not node.is_head)

    @property
    def record(self):
        return next(r for r in self.cluster.store.live.values() if r.node_type == "cpu-4")

    @property
    def size(self):
        return self.cluster.cloud.sizes.now[self.node.machine.cloud_id]


def test_a_machine_grows_for_a_task_and_its_node_counts_it():
    run = Run().submit().ticks(40)
    assert run.found == []
    assert (run.size.current, run.node.total) == (BIG, BIG)
    assert (len(run.node.running), run.record.resize) == (1, None)
    assert len(run.cluster.cloud.machines) == 2  # the head, and one that grew
    assert list(unsettled(run.cluster)) == []


def test_a_node_that_restarts_has_the_size_of_its_machine():
    run = Run().submit().ticks(40)
    run.cluster.restart_node(run.node.machine, 1.0)
    run.cluster.world.advance(2.0)
    assert (run.node.total, run.found) == (BIG, [])


@pytest.mark.parametrize("fault", ["resize_broken", "resize_lost", "node_resize_lost", "node_resize_refused"])
def test_what_gets_lost_is_asked_for_again(fault):
    runs = (Run(seed=seed, **{fault: 0.4}).submit().ticks(40) for seed in range(20))
    run = next(run for run in runs if run.faults.injected.get(fault) == 1)
    assert (run.found, run.node.total) == ([], BIG)


def test_a_host_without_room_gives_what_it_has():
    run = Run(resize_put_off=1.0).submit().ticks(60)
    assert run.found == []
    assert all(run.node.total.units(name) <= BIG.units(name) for name in BIG)
    assert run.record.resize is not None  # it remembers what the host could give, or that it failed
    assert len(run.cluster.cloud.sizes.calls) < 10


def test_a_failed_growth_is_taken_back_and_not_tried_again():
    run = Run(resize_fails=1.0).submit().ticks(60)
    assert run.found == []
    failed = run.record.resize
    assert failed is not None and failed.reason == "simulated: no room"
    grown = [call for call in run.cluster.cloud.sizes.calls if call.desired == BIG]
    assert len(grown) == len({call.cloud_id for call in grown})  # once per machine
    assert run.size.desired == run.size.current


def test_machines_that_cannot_grow_are_not_bought_one_after_the_other():
    run = Run(most=8, resize_fails=1.0).submit().ticks(12)
    launched = len(run.cluster.cloud.machines) - 1
    assert launched <= 2  # one that failed, and another after a pause at most
    assert run.found == []


def test_a_node_that_counts_before_its_machine_has_it_is_found(monkeypatch):
    monkeypatch.setattr(_Change, "_is_there", lambda self, record: True)
    monkeypatch.setattr(
        _Change,
        "_count",
        lambda self, record: self._resize_node(record, dict(BIG)),
    )
    run = Run(resize_put_off=1.0).submit().ticks(40)
    assert any("counts" in text and "more than" in text for text in run.found)


def test_a_machine_that_is_asked_again_after_a_failure_is_found(monkeypatch):
    given_up = _Change._given_up

    def forgetful(self, record, why):
        given_up(self, record, why)
        return self._resize_machine(replace(record, desired=BIG, failed_at=self._draft.now, reason=why))

    monkeypatch.setattr(_Change, "_given_up", forgetful)
    monkeypatch.setattr(
        _Change, "_back", lambda self, record: self._resize_machine(replace(record, desired=BIG))
    )
    assert any("after it had failed" in text for text in Run(resize_fails=1.0).submit().ticks(40).found)


def test_a_change_that_never_ends_is_found(monkeypatch):
    monkeypatch.setattr(_Change, "next", lambda self, refused: self._known())
    assert any("is being resized for" in text for text in Run().submit().ticks(80).found)


def test_some_runs_have_machines_that_grow():
    drawn = [draw_options(Seed(seed)) for seed in range(60)]
    growing = [one for one in drawn if any(known.resize for known in one.spec.node_types)]
    assert 3 < len(growing) < 30
    assert all(one.shown["resize"] for one in growing)
