"""Gates of other controllers on a group (`scaleStrategy.scaleGate`): it does not grow, and they stay."""

from __future__ import annotations

import random

import pytest
from tests.kube.kueue import GATE, KueueDouble, gates_of, set_gates
from tests.kube.operator import replica_of, worker_group
from tests.providers.kuberay.direct import DirectWorld
from tests.providers.kuberay.loop import CPUS, Loop
from tests.series import length
from tests.support.builders import demand, selector

from muster.cluster.plan import Subject
from muster.providers.kuberay.scaling import PatchRequest, WorkerGroup, guards, scale_patch

OTHER = "quota.example.com/team-a"


def cluster(**group):
    made = {"groupName": "small", "replicas": 2, "minReplicas": 0, "maxReplicas": 10, **group}
    return {"metadata": {"resourceVersion": "7"}, "spec": {"workerGroupSpecs": [made]}}


GATED = {"scaleGate": [{"name": GATE}, {"name": OTHER}]}


def test_a_launch_of_a_gated_group_changes_nothing():
    patch = scale_patch(cluster(scaleStrategy=GATED), {}, PatchRequest(launches={"r": {"small": 1}}))
    assert (patch.operations, patch.gated, patch.refused) == ((), {"r": {"small": 1}}, {})


@pytest.fixture
def stage():
    def make(*groups, **options):
        world = DirectWorld()
        world.create(*groups, autoscalerOptions={"idleTimeoutSeconds": 10}, **options)
        return world, Loop(world, world.provider())

    return make


@pytest.mark.parametrize("strategy", [GATED, {**GATED, "workersToDelete": ["gone"]}])
@pytest.mark.parametrize("by_version", [True, False])
def test_only_the_names_to_delete_are_written(stage, strategy, by_version):
    world, _ = stage(worker_group("small", 2, scaleStrategy=strategy))
    provider = world.provider()
    name = world.operator.workers("small")[0]
    found = world.admin.cluster()
    patch = scale_patch(found, provider.pods(), PatchRequest(ends=[name]))
    assert [operation["path"].rpartition("/0/")[2] for operation in patch.operations] == [
        "replicas",
        "scaleStrategy/workersToDelete",
    ]
    path = "/apis/ray.io/v1/namespaces/research/rayclusters/demo"
    world.admin.ask("PATCH", path, guards(found, patch.operations, by_version=by_version), "json-patch")
    assert world.group()["scaleStrategy"] == {**GATED, "workersToDelete": [name]}


def test_a_gate_that_comes_while_a_patch_is_built_is_kept(stage):
    """A group without a strategy gets a whole one: only an object that nobody has changed may get it."""
    world, _ = stage(worker_group("small", 1))
    found = world.admin.cluster()
    (name,) = world.operator.workers("small")
    patch = scale_patch(found, world.provider().pods(), PatchRequest(ends=[name]))
    set_gates(world.admin, 0, [GATE])
    with pytest.raises(Exception, match="rejected"):
        path = "/apis/ray.io/v1/namespaces/research/rayclusters/demo"
        world.admin.ask("PATCH", path, guards(found, patch.operations, by_version=False), "json-patch")
    assert gates_of(world.group()) == [GATE]


def test_replicas_that_the_owner_of_a_gate_lowered_are_not_raised_before_admission(stage):
    world, _ = stage(worker_group("small", 4))
    provider = world.provider()
    world.admin.edit_group(0, replicas=1, scaleStrategy=GATED)
    provider.terminate("t-1", [world.operator.workers("small")[0]])
    provider.launch("r-1", {"small": 2})
    provider.scaler.step()
    assert (world.size()[0], gates_of(world.group())) == (1, [GATE, OTHER])
    assert [failure.node_type for failure in provider.poll_launch_failures()] == ["small", "small"]
    set_gates(world.admin, 0, [])
    provider.launch("r-2", {"small": 1})
    provider.scaler.step()
    assert world.size()[0] > 1


def test_the_next_group_takes_the_demand_in_the_same_tick_and_why_names_the_owner(stage):
    world, loop = stage(worker_group("spot", 0, priority=10), worker_group("on-demand", 0))
    set_gates(world.admin, 0, [OTHER, GATE])
    loop.provider.scaler.step()
    loop.runtime.waiting = 2
    loop.tick()
    assert (world.size(0)[0], world.size(1)[0]) == (0, 2)
    loop.tick(3)
    world.admin.edit_group(1, maxReplicas=2)
    loop.runtime.waiting = 1
    loop.tick(2)
    (blocked,) = [v for v in loop.plans[-1].verdicts if v.subject is Subject.DEMAND]
    assert (GATE in blocked.detail, OTHER in blocked.detail, blocked.target) == (True, True, "spot")
    set_gates(world.admin, 0, [])
    loop.tick(3)
    assert (world.size(0)[0], loop.runtime.waiting) == (1, 0)


def test_a_fallback_selector_is_used_while_the_group_of_the_first_is_gated(stage):
    labels = ({"market": "spot"}, {"market": "on-demand"})
    world, loop = stage(
        worker_group("spot", 0, labels=labels[0], priority=10), worker_group("calm", 0, labels=labels[1])
    )
    ways = (selector(market="spot"), selector(market="on-demand"))  # Ray's `fallback_strategy`
    wanted = demand({"CPU": CPUS}, selectors=ways)
    loop.runtime.demands = (wanted,)
    set_gates(world.admin, 0, [GATE])
    loop.provider.scaler.step()
    loop.tick()
    assert (world.size(0)[0], world.size(1)[0]) == (0, 1)


def test_annotations_of_gang_schedulers_stay(stage):
    notes = {"scheduling.volcano.sh/group-min-member": "3", "kai.scheduler/queue": "team-a"}
    world, loop = stage(worker_group("small", 0), annotations=notes)
    loop.runtime.waiting = 2
    loop.tick(4)
    loop.runtime.busy.clear()
    loop.tick(12)
    found = world.admin.cluster()["metadata"]["annotations"]
    assert (world.size()[0], {key: found[key] for key in notes}) == (0, notes)


class RandomOrder:
    """A run of gates, edits, preemptions and work in a drawn order; counts what must not happen."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.world = DirectWorld()
        groups = [
            worker_group("spot", 0, priority=10, maxReplicas=6),
            worker_group("tpu", 0, priority=5, maxReplicas=3, numOfHosts=2),
            worker_group("calm", 0, maxReplicas=4),
        ]
        self.names = [group["groupName"] for group in groups]
        self.world.create(*groups, autoscalerOptions={"idleTimeoutSeconds": 10})
        self.loop = Loop(self.world, self.world.provider())
        self.kueue = KueueDouble(self.world.admin, {"spot": 6, "tpu": 3})
        self.foreign = {name: set() for name in self.names}  # gates of others than Kueue
        self.allowed = {}  # pods that were there before a tick, also above a quota that was lowered
        self.in_gated = self.lost = self.above = 0

    def groups(self):
        return self.world.admin.cluster()["spec"]["workerGroupSpecs"]

    def run(self, steps=16):
        for _ in range(steps):
            self.draw.choice((self.gate, self.quota, self.preempt, self.edit, self.work, self.work))()
            self.tick()
        self.kueue.quota = {"spot": 6, "tpu": 3}
        for name in self.names:
            self.foreign[name].clear()
        self.write_gates()
        for _ in range(4):
            self.tick()
            self.loop.clock.advance(700.0)  # what was asked for before a gate is asked for again
        for _ in range(10):
            self.tick()
        return self

    def tick(self):
        before = self.groups()
        self.loop.tick(operator=False)
        for old, new in zip(before, self.groups(), strict=True):
            gates = gates_of(old)
            self.in_gated += bool(gates) and new["replicas"] > old["replicas"]
            self.lost += len(set(gates) - set(gates_of(new)))
        gated = {group["groupName"]: group.get("numOfHosts", 1) for group in before if gates_of(group)}
        steps = (self.kueue.step, self.world.operator.step)
        for step in reversed(steps) if gated else steps:  # what is gated must not depend on who is faster
            step()
        self.world.caught_up(self.loop.provider)
        for name, hosts in gated.items():
            made, quota = len(self.world.operator.workers(name)), self.kueue.quota.get(name, 99)
            self.above += max(0, made - max(quota * hosts, self.allowed.get(name, 0)))
        for name in self.kueue.quota:
            self.allowed[name] = len(self.world.operator.workers(name))

    def is_full(self):
        """Whether work that still waits has no room within limits and quotas."""
        room = 0
        for group in self.groups():
            most = min(group["maxReplicas"], self.kueue.quota.get(group["groupName"], 99))
            room += most * group.get("numOfHosts", 1)
        return len(self.loop.runtime.busy) >= room

    def gate(self):
        name = self.draw.choice(self.names[:2])
        (self.foreign[name].discard if self.foreign[name] else self.foreign[name].add)(OTHER)
        self.write_gates()

    def write_gates(self):
        for index, group in enumerate(self.groups()):
            others = sorted(self.foreign[group["groupName"]])
            set_gates(self.world.admin, index, [*(g for g in gates_of(group) if g == GATE), *others])

    def quota(self):
        name = self.draw.choice(("spot", "tpu"))
        self.kueue.quota = {**self.kueue.quota, name: self.draw.randint(0, 4)}
        self.kueue.step()

    def preempt(self):
        name = self.draw.choice(self.names)
        pods = self.world.admin.pods(f"ray.io/group={name}")
        if pods:
            chosen = self.draw.choice(pods)
            for pod in pods:  # a slice goes as a whole
                if pod is chosen or (replica_of(pod) and replica_of(pod) == replica_of(chosen)):
                    self.world.admin.delete_pod(pod["metadata"]["name"], grace_s=0)

    def edit(self):
        index = self.draw.randrange(3)
        self.world.admin.edit_group(
            index, maxReplicas=self.draw.randint(2, 6), priority=self.draw.randint(0, 9)
        )

    def work(self):
        if self.draw.random() < 0.6:
            self.loop.runtime.waiting += self.draw.randint(1, 3)
        else:
            self.loop.runtime.busy.clear()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_random_orders_no_gated_group_grows_and_no_gate_is_lost():
    seen = [RandomOrder(seed).run() for seed in range(length(30, 1000))]
    assert [sum(getattr(one, key) for one in seen) for key in ("in_gated", "lost", "above")] == [0, 0, 0]
    assert [one for one in seen if one.loop.runtime.waiting and not one.is_full()] == []
    assert sum(len(one.world.operator.made) for one in seen) > 5 * len(seen)


@pytest.mark.slow
def test_a_scaler_that_does_not_know_gates_is_found(monkeypatch):
    monkeypatch.setattr(WorkerGroup, "gates", ())
    seen = [RandomOrder(seed).run() for seed in range(12)]
    assert sum(one.in_gated for one in seen) > 0
    assert sum(one.above for one in seen) > 0
