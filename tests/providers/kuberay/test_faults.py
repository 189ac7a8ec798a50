"""The provider under faults of the API server, a slow operator, and people who edit the RayCluster too."""

from __future__ import annotations

import threading

import pytest
from tests.kube.api_server import NAMESPACE
from tests.kube.operator import worker_group
from tests.kube.world import until
from tests.mistakes.views import assert_line

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind
from muster.providers.kuberay import provider as provider_module
from muster.providers.kuberay import watch
from muster.providers.kuberay.client import KubeError
from muster.providers.kuberay.pod_watch import PodsNotKnown

CLUSTER = "rayclusters/demo"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(watch, "RETRY_S", (0.01, 0.1))
    monkeypatch.setattr(provider_module, "RETRY_S", (0.01, 0.1))


def launch(provider, request="r-1", **shape):
    provider.launch(RequestId(request), shape)


def settled(provider, request):
    """Ticks until the request has reached the RayCluster."""
    until(lambda: (provider.list_instances(), not provider.under_way(RequestId(request)))[1], request)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 409, "times": 2},
        {"status": 500, "times": 3},
        {"status": 503, "times": 1, "headers": {"Retry-After": "0"}},
        {"status": 429, "times": 2, "headers": {"Retry-After": "0"}},
        {"cut": True, "times": 2},
        {"cut": True, "after": True},
        {"status": 500, "after": True},
        {"status": 504, "after": True, "times": 2},
    ],
    ids=["409", "500", "503", "429", "cut", "cut-after", "500-after", "504-after"],
)
def test_a_patch_that_fails_is_repeated_and_never_doubled(world, api, fault):
    world.create(worker_group("small", 1))
    provider = world.provider(threads=True)
    api.fault("PATCH", CLUSTER, **fault)
    launch(provider, small=2)
    settled(provider, "r-1")
    assert world.size() == (3, [])
    assert provider.poll_launch_failures() == []


def test_a_patch_that_the_schema_refuses_ends_its_requests_with_the_reason(world, api):
    world.create(worker_group("small", 1))
    provider = world.provider(threads=True)
    api.fault("PATCH", CLUSTER, status=422, times=50)
    launch(provider, small=2)
    until(lambda: provider.list_instances() and api.count("PATCH", CLUSTER) > 0)
    failures = until(provider.poll_launch_failures)
    assert [one.kind for one in failures] == [FailureKind.CONFIG] * 2
    assert "rayclusters.ray.io" in failures[0].message


def test_a_person_who_edits_the_cluster_at_the_same_time_keeps_what_we_did_not_decide(world, api):
    world.create(worker_group("small", 1), worker_group("large", 2))
    provider = world.provider()
    real, edits = provider.client.patch, []

    def patch_after_an_edit(path, body, **more):
        if not edits:
            edits.append(world.admin.edit_group(1, replicas=5, maxReplicas=7))
            world.admin.edit_group(0, minReplicas=1)
        return real(path, body, **more)

    provider.client.patch = patch_after_an_edit
    launch(provider, small=2)
    provider.scaler.step()
    assert world.size(0) == (3, [])
    assert (world.group(0)["minReplicas"], world.group(1)["replicas"], world.group(1)["maxReplicas"]) == (
        1,
        5,
        7,
    )


def test_an_edit_of_the_very_number_that_we_write_is_seen_before_ours_is_written(world):
    world.create(worker_group("small", 1))
    provider = world.provider()
    real, edits = provider.client.patch, []

    def patch_after_an_edit(path, body, **more):
        if not edits:
            edits.append(world.admin.edit_group(0, replicas=4))
        return real(path, body, **more)

    provider.client.patch = patch_after_an_edit
    launch(provider, small=1)
    provider.scaler.step()
    assert world.size() == (5, [])  # one more than the person's four


def test_an_operator_that_writes_the_status_all_the_time_cannot_starve_a_patch(world):
    world.create(worker_group("small", 1))
    provider = world.provider()
    real, numbers = provider.client.patch, iter(range(100))

    def patch_after_a_status(path, body, **more):
        world.admin.merge_cluster({"status": {"pass": next(numbers)}}, sub="/status")
        return real(path, body, **more)

    provider.client.patch = patch_after_a_status
    launch(provider, small=1)
    provider.scaler.step()
    assert world.size() == (2, [])


def test_groups_that_change_places_are_not_mistaken_for_each_other(world):
    world.create(worker_group("small", 1), worker_group("large", 2))
    provider = world.provider()
    real, edits = provider.client.patch, []

    def patch_after_a_swap(path, body, **more):
        if not edits:
            groups = world.admin.cluster()["spec"]["workerGroupSpecs"]
            edits.append(world.admin.merge_cluster({"spec": {"workerGroupSpecs": groups[::-1]}}))
        return real(path, body, **more)

    provider.client.patch = patch_after_a_swap
    launch(provider, small=1)
    provider.scaler.step()
    assert [(world.group(i)["groupName"], world.size(i)[0]) for i in (0, 1)] == [("large", 2), ("small", 2)]


@pytest.mark.parametrize("what", ["cut", "forget"])
def test_a_watch_that_breaks_or_is_too_old_goes_on_and_misses_nothing(world, api, what):
    world.create(worker_group("small", 2))
    provider = world.provider()
    if what == "cut":
        api.fault("GET", "watch=1", status=500)
        api.stop_watches()
    else:
        api.store.forget_history()
        api.stop_watches()
    world.admin.edit_group(0, replicas=4)
    world.operator.step()
    world.sees(provider, *world.operator.workers("small"))
    assert len(provider.list_instances()) == 5


def test_a_resumed_watch_does_not_list_again(world, api):
    world.create(worker_group("small", 2))
    provider = world.provider()
    lists = api.count("GET", "/pods?labelSelector=ray.io%2Fcluster%3Ddemo", provider.client.access.token)
    api.stop_watches()
    world.admin.edit_group(0, replicas=3)
    world.operator.step()
    world.sees(provider, *world.operator.workers("small"))
    asked = [one for one in api.asked if one.token == provider.client.access.token and "/pods?" in one.path]
    assert sum(not one.watch for one in asked) == 1 == sum(not one.watch for one in asked[:lists])


def test_a_list_that_is_older_than_what_was_seen_is_not_believed(world, api):
    world.create(worker_group("small", 1))
    provider = world.provider()
    api.freeze(lists=2)
    world.admin.edit_group(0, replicas=3)
    world.operator.step()
    names = world.operator.workers("small")
    world.sees(provider, *names)
    api.store.forget_history()
    api.stop_watches()
    shown = set()
    until(lambda: (shown.add(frozenset(provider.list_instances())), api.stale_lists == 0)[1])
    until(lambda: api.count("GET", "watch=1", provider.client.access.token) >= 2)
    assert shown == {frozenset({*names, "demo-head"})}


def test_a_rotated_token_is_read_again(world, api, tmp_path):
    world.create(worker_group("small", 1))
    token_file = tmp_path / "token"
    token_file.write_text(api.token("kuberay-1.3"))
    provider = world.provider(token=token_file.read_text(), threads=True)
    provider.client.access.token_file = token_file
    old = token_file.read_text()
    token_file.write_text(api.token("kuberay-1.3"))
    api.revoke(old)
    api.stop_watches()
    launch(provider, small=1)
    settled(provider, "r-1")
    assert world.size() == (2, [])
    world.operator.step()
    world.caught_up(provider)


def test_a_missing_right_is_named_with_its_verb_and_resource(world, api):
    world.create(worker_group("small", 1))
    reader = api.token(
        (*(rule for rule in api.tokens[api.token("kuberay-1.3")] if "pods" in rule.resources),)
    )
    provider = world.provider(token=reader)
    launch(provider, small=1)
    with pytest.raises(KubeError, match="get"):
        provider.scaler.step()
    (failure,) = provider.poll_launch_failures()
    assert failure.kind is FailureKind.PERMISSION


def test_an_account_without_any_right_has_no_list_to_conclude_from(world, api):
    world.create(worker_group("small", 1))
    provider = provider_module.KubeRayProvider(
        world.client("nobody"), provider_module.KubePaths(NAMESPACE, "demo")
    )
    provider._watch.routine.start()
    until(lambda: provider._watch._problem is not None)
    with pytest.raises(PodsNotKnown) as denied:
        provider.list_instances()
    assert_line("providers", "kuberay without rights", str(denied.value))
    provider.close()


def test_an_operator_that_is_far_behind_is_not_asked_twice(world):
    world.create(worker_group("small", 1))
    provider = world.provider()
    launch(provider, "r-1", small=2)
    provider.scaler.step()
    for _ in range(10):  # ticks go by, and no pod comes
        provider.list_instances()
        launch(provider, "r-1", small=2)
        provider.scaler.step()
    assert world.size() == (3, [])
    launch(provider, "r-1~2.t-9", small=2)  # the records' second try, ten minutes later
    provider.scaler.step()
    assert world.size() == (3, [])
    (name,) = world.operator.workers("small")
    for number in range(5):
        provider.terminate(RequestId(f"t-{number}"), [CloudId(name)])
        provider.scaler.step()
    assert world.size() == (2, [name])
    world.operator.step(3)
    assert (len(world.operator.workers("small")), world.operator.deleted) == (2, [name])


def test_a_server_that_does_not_answer_holds_up_no_tick(world, api):
    world.create(worker_group("small", 1))
    provider = world.provider(threads=True)
    gate = threading.Event()
    api.fault("GET", CLUSTER, gate=gate, times=3)
    until(lambda: provider.list_instances() and api.faults[-1].times < 3, "a read is held up")
    for number in range(5):
        provider.list_instances()
        launch(provider, f"r-{number}", small=1)
        assert provider.poll_launch_failures() == []
        assert provider.under_way(RequestId(f"r-{number}"))
    gate.set()
    settled(provider, "r-4")
    assert world.size() == (6, [])
