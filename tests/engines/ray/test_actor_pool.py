from __future__ import annotations

import socket

import pytest

from muster.base.clock import ManualClock
from muster.engines.process_engine import EngineTimeouts
from muster.engines.ray.actor_handle import ActorPlacement
from muster.engines.ray.actor_pool import ActorListener, ActorPool
from muster.engines.worker.handle import TrialRun
from muster.trials.events import StartTrial, TrialFailureKind
from muster.trials.placement_group import PlacementGroupFactory

ONE = PlacementGroupFactory([{"CPU": 1}])
START = StartTrial(
    trial_id="a",
    trial_name="a",
    trainable_name="t",
    config={},
    resources=ONE,
    trial_dir="",
    experiment_name="e",
)
HELLO = {"number": 1, "pid": 1, "hostname": "elsewhere", "node_id": "ab", "sees_storage": True}


class NodeDiedError(Exception):
    """As Ray's, once it knows that the node is dead."""

    preempted = False


class Recorder(ActorListener):
    def __init__(self):
        self.failures = []

    def on_worker_gone(self, worker, failure):
        self.failures.append(failure)


@pytest.mark.parametrize(
    ("draining", "kind"), [("ab", TrialFailureKind.PREEMPTED), ("cd", TrialFailureKind.NODE_LOST)]
)
def test_a_lost_node_that_was_seen_draining_was_taken_back(draining, kind):
    clock, recorder = ManualClock(), Recorder()
    pool = ActorPool(clock=clock, timeouts=EngineTimeouts(), owner=recorder, actor_class=None, key=b"")
    placement = pool.placements[1] = ActorPlacement(1, ONE, None)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pool._receive(ours, {**HELLO, "is_control": False})
    pool.bind(TrialRun(START), placement.worker)
    pool.draining.add(draining)
    theirs.close()
    pool.wait(1.0, clock.monotonic())
    pool._on_outcome(placement, 1, NodeDiedError("the node died"))
    pool.close()
    assert [failure.kind for failure in recorder.failures] == [kind]
