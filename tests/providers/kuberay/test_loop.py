"""The whole loop over an API server: the controller decides, the operator acts, and faults are in between."""

from __future__ import annotations

import random
import re

import pytest
from tests.kube.operator import worker_group
from tests.kube.world import until
from tests.mistakes.views import assert_line
from tests.providers.kuberay.direct import DirectWorld
from tests.providers.kuberay.loop import Loop

from muster.cluster.plan import Reason

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("domain", ["", "demo-headless.research.svc.cluster.local"])
def test_pods_come_for_work_and_go_when_it_is_done(loop, world, domain):
    stage = loop(worker_group("small", 0, maxReplicas=5))
    stage.runtime.domain = domain
    stage.runtime.waiting = 3
    stage.tick(4)
    assert (world.size(), stage.states()) == ((3, []), ["RAY_RUNNING"] * 3)
    stage.runtime.busy.clear()
    stage.tick(12)
    assert (world.size()[0], world.operator.workers("small"), stage.states()) == (0, [], [])
    assert stage.runtime.killed_work == []
    assert set(world.operator.deleted) <= stage.runtime.drained  # each was drained before it was named


def test_a_timed_out_pod_makes_room_for_another_at_the_maximum(loop, world):
    """RC-35, in one patch: the deletion and the raise are independent, and replicas never exceed three."""
    stage = loop(worker_group("small", 0, maxReplicas=3))
    stage.runtime.waiting = 2
    stage.tick(4)
    world.operator.starts = False
    stage.runtime.waiting = 1
    stage.tick(3)
    (stuck,) = [p["metadata"]["name"] for p in stage.runtime.pods() if p["status"]["phase"] == "Pending"]
    assert stage.states() == ["ALLOCATED", "RAY_RUNNING", "RAY_RUNNING"]
    world.operator.starts = True
    stage.clock.advance(3601)
    replicas = []
    for _ in range(5):
        stage.tick(operator=False)
        replicas.append(world.size()[0])
    assert (world.size(), max(replicas)) == ((3, [stuck]), 3)
    stage.tick(4)
    assert stage.states() == ["RAY_RUNNING"] * 3
    assert (world.operator.deleted, stage.runtime.killed_work) == ([stuck], [])


def test_a_gated_group_is_said_at_once_and_another_is_used(loop, world):
    small = worker_group("small", 0, maxReplicas=5, priority=1)
    stage = loop(small, worker_group("other", 0, maxReplicas=5))
    world.operator.starts = False
    stage.runtime.waiting = 1
    stage.tick(2)
    (pod,) = [p["metadata"]["name"] for p in stage.runtime.pods() if p["status"]["phase"] == "Pending"]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    world.admin.set_status(pod, {"phase": "Pending", "conditions": [gated]})
    world.caught_up(stage.provider)
    stage.tick()  # one tick, and the other group has a pod for the same demand
    (waiting,) = [v for v in stage.plans[-1].verdicts if v.reason is Reason.WAITING_FOR_QUOTA]
    (instance,) = [one for one in stage.store.load().instances.values() if one.cloud_id == pod]
    assert waiting.subject_id == instance.instance_id
    assert_line("providers", "kuberay pod gated", re.sub(r"\d+ s\b", "N s", waiting.detail))
    assert (world.size(0)[0], world.size(1)[0]) == (1, 1)
    world.operator.run_pod(world.operator.workers("other")[0])
    stage.tick(60, seconds=30.0)  # for half an hour
    assert (world.operator.deleted, len(world.operator.made), stage.runtime.waiting) == ([], 2, 0)
    gated.update(status="True", reason="")
    world.operator.run_pod(pod)
    stage.tick(10)
    assert world.operator.deleted == [pod]  # admitted, and nothing needs it


def test_where_nothing_else_fits_a_gated_pod_keeps_its_place_and_no_more_are_made(loop, world):
    stage = loop(worker_group("small", 0, maxReplicas=5))
    world.operator.starts = False
    stage.runtime.waiting = 1
    stage.tick(3)
    (pod,) = world.operator.workers("small")
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    world.admin.set_status(pod, {"phase": "Pending", "conditions": [gated]})
    world.caught_up(stage.provider)
    stage.runtime.waiting = 3
    stage.tick(60, seconds=120.0)
    assert (world.operator.deleted, world.operator.made, world.size()[0]) == ([], [pod], 1)
    world.operator.run_pod(pod)
    stage.tick(4)
    assert (world.size()[0], len(world.operator.made)) == (3, 3)


def test_an_idle_slice_goes_whole_and_a_busy_host_keeps_it(loop, world):
    stage = loop(worker_group("tpu", 0, maxReplicas=3, numOfHosts=2))
    stage.runtime.waiting = 3
    stage.tick(4)
    assert (world.size()[0], len(world.operator.workers("tpu"))) == (2, 4)
    kept = sorted(stage.runtime.busy)[0]
    stage.runtime.busy = {kept}
    stage.tick(14)
    left = world.operator.workers("tpu")
    assert (world.size()[0], len(left), kept in left) == (1, 2, True)
    assert stage.runtime.killed_work == []


def test_a_raylet_that_its_container_restarts_in_a_pod_that_leaves_gets_no_work():
    """As with `restartPolicy: Always`, while the preStop hook of the pod sleeps."""
    world = DirectWorld()
    world.create(worker_group("small", 0, maxReplicas=2), autoscalerOptions={"idleTimeoutSeconds": 10})
    world.operator.termination_s = 90.0
    stage = Loop(world, world.provider())
    stage.runtime.waiting = 1
    stage.tick(4)
    (pod,) = stage.runtime.busy
    stage.runtime.busy.clear()
    stage.tick(8)
    assert (world.size(), stage.states()) == ((0, [pod]), ["TERMINATING"])
    stage.runtime.restart(pod)
    stage.tick(2)
    stage.runtime.waiting = 1
    stage.tick(12, seconds=10.0)
    assert (stage.runtime.killed_work, len(stage.runtime.busy), pod in stage.runtime.busy) == ([], 1, False)


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("hosts", [1, 2])
def test_pods_that_end_with_their_drained_raylet_are_not_refilled_again_and_again(hosts, is_listed):
    """The operator has replaced a pod before the patch that names it, or before the tick that ends it."""
    world = DirectWorld()
    group = worker_group("small", 0, maxReplicas=5, numOfHosts=hosts)
    world.create(group, autoscalerOptions={"idleTimeoutSeconds": 10})
    stage = Loop(world, world.provider())
    stage.runtime.waiting = 4
    stage.tick(4)
    stage.runtime.busy.clear()
    for _ in range(30):
        dead = set(stage.runtime.drained)
        if not is_listed:
            stage.tick(patch=False, operator=False)
        for name in dead & set(world.operator.workers("small")):
            world.admin.set_status(name, {"phase": "Succeeded"})
        world.operator.step(2)
        world.caught_up(stage.provider)
        if is_listed:
            stage.tick(patch=False, operator=False)
        stage.provider.scaler.step()
    assert (world.size()[0], world.operator.workers("small"), stage.states()) == (0, [], [])
    assert len(world.operator.made) <= 8  # each was replaced at most once


def test_an_evicted_pod_is_drained_with_its_deadline_and_replaced_once(loop, world):
    stage = loop(worker_group("small", 0, maxReplicas=5))
    stage.runtime.waiting = 2
    stage.tick(4)
    evicted = sorted(stage.runtime.busy)[0]
    world.operator.held.add(evicted)
    world.admin.delete_pod(evicted)
    until(lambda: stage.provider.read().notices)
    stage.tick(2)
    assert 0 < stage.runtime.deadlines[evicted] <= 30  # what is left of the grace of the pod
    world.operator.held.clear()
    stage.tick(6)
    assert (world.size()[0], len(world.operator.workers("small")), len(stage.runtime.busy)) == (2, 2, 2)


FAULTS = (
    {"status": 409},
    {"status": 500},
    {"status": 429, "headers": {"Retry-After": "0"}},
    {"cut": True},
    {"cut": True, "after": True},
    {"status": 503, "after": True},
)


def disturb(chance, world, api):
    for method in ("GET", "PATCH"):
        if chance.random() < 0.3:
            api.fault(method, "rayclusters/demo", **chance.choice(FAULTS))
    if chance.random() < 0.2:
        api.stop_watches()
    if chance.random() < 0.1:
        api.store.forget_history()
    if chance.random() < 0.1:
        world.admin.edit_group(chance.randint(0, 1), minReplicas=0, idleTimeoutSeconds=10)


@pytest.mark.parametrize("seed", (0, 1, 13))
def test_under_faults_the_replicas_end_right_and_no_work_is_killed(loop, world, api, seed):
    chance = random.Random(seed)
    stage = loop(*(worker_group(name, 0, maxReplicas=4) for name in ("small", "large")))
    for step in range(20):
        if step in (2, 8):
            stage.runtime.waiting += chance.randint(1, 4)
        if step == 14:  # all work is done, that which waits as well
            stage.runtime.busy.clear()
            stage.runtime.waiting = 0
        disturb(chance, world, api)
        stage.tick(operator=False)
        for fault in api.faults:
            fault.times = 0
        if chance.random() < 0.6:  # an operator that is often behind
            world.operator.step()
            world.caught_up(stage.provider)
    stage.tick(14)
    assert (stage.runtime.killed_work, stage.runtime.waiting) == ([], 0)
    assert [world.size(index)[0] for index in (0, 1)] == [0, 0]
    assert (stage.states(), len(stage.runtime.pods())) == ([], 1)
