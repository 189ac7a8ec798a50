"""The RayCluster is watched where the rights are there, and read at each tick where they are not."""

from __future__ import annotations

import pytest
from tests.kube.operator import worker_group
from tests.kube.world import until

from muster.base.clock import ManualClock
from muster.base.ids import RequestId
from muster.providers.kuberay import watch
from muster.providers.kuberay.client import KubePaths
from muster.providers.kuberay.watch import ClusterObject


def reads(api, token):
    """Return how often the RayCluster was read."""
    return sum(
        one.method == "GET" and one.path.endswith("/rayclusters/demo") and one.token == token
        for one in api.asked
    )


def watches(api, token):
    return sum(one.watch and "rayclusters" in one.path and one.token == token for one in api.asked)


def listed(provider, times=20):
    """Ticks as a loop does: each asks for a look at the RayCluster."""
    for _ in range(times):
        provider.list_instances()
        until(lambda: not provider.scaler.routine.woken.is_set())


def replicas(provider):
    return (provider.scaler.cluster.last() or {})["spec"]["workerGroupSpecs"][0]["replicas"]


def test_with_the_extra_role_an_edit_comes_by_itself(world):
    world.create(worker_group("small", 0))
    provider = world.provider("with-extra-role", threads=True)
    until(provider.scaler.watch.is_current, "the RayCluster is watched")
    world.admin.edit_group(0, replicas=3)
    until(lambda: replicas(provider) == 3, "the edit is seen without a tick")
    provider.launch(RequestId("r-1"), {"small": 1})
    until(lambda: world.size()[0] == 4, "and patches go on")
    until(lambda: replicas(provider) == 4)


def test_a_watched_cluster_is_read_before_a_patch_only(world, api):
    world.create(worker_group("small", 0))
    token = api.token("with-extra-role")
    provider = world.provider(token=token, threads=True)
    until(provider.scaler.watch.is_current)
    until(lambda: not provider.scaler.routine.woken.is_set())
    before = reads(api, token)
    listed(provider)
    assert reads(api, token) <= before + 1  # the first round may be under way
    provider.launch(RequestId("r-1"), {"small": 1})
    until(lambda: world.size()[0] == 1)
    assert before < reads(api, token) <= before + 3
    assert watches(api, token) == 1


@pytest.mark.parametrize("role", ["kuberay-1.3", "kuberay-1.7"])
def test_with_the_stock_roles_it_is_asked_once_whether_it_may_watch_and_then_read(world, api, role):
    world.create(worker_group("small", 0))
    token = api.token(role)
    provider = world.provider(token=token, threads=True)
    until(lambda: watches(api, token) == 1)
    before = reads(api, token)
    for _ in range(3):
        provider.list_instances()
        until(lambda: not provider.scaler.routine.woken.is_set())
        before += 1
        until(lambda most=before: reads(api, token) >= most)
    assert not provider.scaler.watch.is_current()
    assert watches(api, token) == 1


def test_a_watch_that_breaks_is_resumed_and_one_that_is_too_old_begins_anew(world, api, monkeypatch):
    monkeypatch.setattr(watch, "RETRY_S", (0.01, 0.05))
    world.create(worker_group("small", 0))
    provider = world.provider("with-extra-role", threads=True)
    until(provider.scaler.watch.is_current)
    api.stop_watches()
    world.admin.edit_group(0, replicas=2)
    until(lambda: replicas(provider) == 2)
    until(provider.scaler.watch.is_current)
    world.admin.edit_group(0, replicas=5)
    api.store.forget_history()
    api.stop_watches()
    until(lambda: replicas(provider) == 5)
    until(provider.scaler.watch.is_current)
    world.admin.edit_group(0, replicas=6)
    until(lambda: replicas(provider) == 6)


def test_a_cluster_that_is_deleted_is_read_again_and_the_answer_is_the_servers(world):
    world.create(worker_group("small", 0))
    provider = world.provider("with-extra-role", threads=True)
    until(provider.scaler.watch.is_current)
    world.admin.ask("DELETE", KubePaths("research", "demo").ray_cluster)

    def problem():
        provider.scaler.wake()
        return provider.scaler.cluster.problem

    assert until(problem).code == 404


def test_what_a_watch_brings_late_does_not_undo_a_newer_read():
    class Client:
        def get(self, path):
            return {"metadata": {"resourceVersion": "12"}}

    seen = ClusterObject(Client(), KubePaths("research", "demo"), ManualClock())
    seen.read()
    seen.note({"metadata": {"resourceVersion": "11"}})
    assert seen.last() == {"metadata": {"resourceVersion": "12"}}
    seen.note(None)
    seen.note({"metadata": {"resourceVersion": "13"}})
    assert seen.last() == {"metadata": {"resourceVersion": "13"}}
