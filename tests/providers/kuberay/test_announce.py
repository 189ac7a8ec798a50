"""Decisions in Kubernetes: Events, a condition, busy pods, and the spend that outlives a head."""

from __future__ import annotations

import json

import pytest
from tests.kube.api_server import NAMESPACE
from tests.kube.operator import worker_group
from tests.kube.world import until

from muster.autoscaler.events import EventLog
from muster.cluster.plan import Plan
from muster.providers.kuberay.announce import CONDITION, PROTECTED, SPEND, ClusterAnnouncer, recorded_spend
from muster.providers.kuberay.ray_cluster import SETTINGS
from muster.stores.ledger.memory import MemoryInstanceStore

pytestmark = pytest.mark.slow


def notes(total):
    prices = {name: {"price_per_hour": 360.0} for name in ("headgroup", "small")}
    return {SETTINGS: json.dumps({"muster": {"budget": {"total": total}}, "available_node_types": prices})}


class Announced:
    """The loop of a RayCluster with the listeners that show what it does."""

    def __init__(self, stage):
        self.stage, self.log = stage, EventLog()
        provider = stage.provider
        self.announcer = ClusterAnnouncer(provider.effects, provider.paths, lambda: self.log.newest)

    def tick(self, times=1):
        for _ in range(times):
            self.stage.clock.advance(40.0)
            self.stage.runtime.now = self.stage.clock.now()
            result = self.stage.controller.tick()
            self.log.on_tick(result)
            self.announcer.on_tick(result)
            self.stage.provider.scaler.step()
            self.stage.world.operator.step()
            self.stage.world.caught_up(self.stage.provider)


def events(world):
    found = world.admin.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    uid = world.admin.cluster()["metadata"]["uid"]  # a real server keeps those of clusters before
    mine = [one for one in found if one["involvedObject"].get("uid") == uid]
    return {(one["type"], one["reason"], one["involvedObject"]["kind"]) for one in mine}


def annotated(world, name):
    found = world.admin.pod(name)["metadata"].get("annotations") or {}
    return {key: found[key] for key in PROTECTED if key in found}


def test_with_the_extra_role_decisions_are_events_and_a_condition_and_busy_pods_are_protected(loop, world):
    shown = Announced(loop(worker_group("small", 0, maxReplicas=2), role="with-extra-role"))
    shown.stage.runtime.waiting = 1
    shown.tick(4)
    (pod,) = world.operator.workers("small")
    until(lambda: annotated(world, pod) == PROTECTED)
    until(lambda: ("Normal", "Scaling", "RayCluster") in events(world))
    (condition,) = until(lambda: (world.admin.cluster().get("status") or {}).get("conditions"))
    assert (condition["type"], condition["status"]) == (CONDITION, "True")
    assert "desiredWorkerReplicas" in world.admin.cluster()["status"]  # what the operator wrote is there
    shown.stage.runtime.busy.clear()
    shown.tick(1)
    until(lambda: annotated(world, pod) == {}) if world.operator.workers("small") else None


def test_with_the_stock_role_of_1_3_nothing_is_shown_and_nothing_breaks(loop, world):
    shown = Announced(loop(worker_group("small", 0), role="kuberay-1.3"))
    shown.stage.runtime.waiting = 1
    shown.tick(4)
    until(lambda: len(shown.stage.provider.effects._off) == 3)
    assert (events(world), shown.stage.states()) == (set(), ["RAY_RUNNING"])


def test_a_new_head_keeps_the_spend(loop, world):
    shown = Announced(loop(worker_group("small", 0), annotations=notes(1000)))
    shown.stage.runtime.waiting = 1
    shown.tick(6)
    known = until(lambda: recorded_spend(world.admin.cluster()))
    assert known.spent > 1.0
    store = MemoryInstanceStore(clock=shown.stage.clock)
    store.commit(0, Plan(tick_id="t", at=shown.stage.clock.now(), memory=known))
    assert store.load().memory.spent == known.spent


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spent": "x"}'])
def test_a_spend_that_cannot_be_read_is_none(text):
    assert recorded_spend({"metadata": {"annotations": {SPEND: text}}}) is None
