"""What the log says of outages, of muster's own deletions, of credentials, and of groups that are gone."""

from __future__ import annotations

import logging

from tests.kube.operator import worker_group
from tests.mistakes.views import assert_line

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind
from muster.errors import MusterError
from muster.providers.kuberay import source as source_module
from muster.providers.kuberay.source import RayClusterSource


def fail_step(provider):
    try:
        provider.scaler.step()
    except MusterError:
        return
    raise AssertionError("the step did not fail")


def test_an_outage_is_one_line_and_its_end_another(world, api, caplog):
    caplog.set_level(logging.INFO)
    world.create(worker_group("small", 1))
    provider = world.provider()
    fault = api.fault("GET", "rayclusters", cut=True, times=100)
    for _ in range(6):
        fail_step(provider)
    fault.times = 0
    provider.scaler.step()
    records = [record for record in caplog.records if "API server" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.WARNING, logging.INFO]


def test_a_long_outage_is_one_problem_and_not_another_one_each_second(world, api, monkeypatch):
    world.create(worker_group("small", 1))
    provider = world.provider()
    source = RayClusterSource(provider, {})
    api.fault("GET", "rayclusters", cut=True, times=100)
    fail_step(provider)
    monkeypatch.setattr(source_module, "OLD_S", 0.0)
    problems = {source.current()[1] for _ in range(3)}
    monkeypatch.setattr(provider.scaler.cluster, "age_s", lambda: 1e6)
    assert problems == {source.current()[1]} - {""}


def test_a_deletion_of_our_own_is_not_called_a_loss(world, caplog):
    world.create(worker_group("small", 2))
    provider = world.provider()
    mine, theirs = world.operator.workers("small")
    world.operator.held |= {mine, theirs}
    provider.terminate(RequestId("t"), [CloudId(mine)])
    provider.scaler.step()
    world.admin.delete_pod(theirs)
    world.operator.step()
    world.caught_up(provider)
    world.sees(provider, *world.operator.workers("small"), mine, theirs)
    provider.list_instances()
    named = [text.split()[1] for text in caplog.messages if text.startswith("pod ")]
    assert named == [theirs]


def test_a_refused_token_fails_no_launch(world, api):
    world.create(worker_group("small", 0))
    token = api.token("kuberay-1.3")
    provider = world.provider(token=token)
    rules = api.role_of(token)
    api.revoke(token)
    provider.launch(RequestId("r"), {"small": 1})
    fail_step(provider)
    assert (list(provider.poll_launch_failures()), provider.under_way(RequestId("r"))) == ([], True)
    api.tokens[token] = rules
    provider.scaler.step()
    assert world.size()[0] == 1


def test_a_pod_of_a_group_that_was_removed_is_explained(world):
    world.create(worker_group("small", 1), worker_group("other", 0))
    provider = world.provider()
    (pod,) = world.operator.workers("small")
    world.admin.merge_cluster({"spec": {"workerGroupSpecs": [worker_group("other", 0)]}})
    provider.terminate(RequestId("t"), [CloudId(pod)])
    provider.scaler.step()
    (failure,) = provider.poll_terminate_failures()
    assert (failure.cloud_id, failure.kind) == (pod, FailureKind.CONFIG)
    assert_line("providers", "kuberay pod of a removed group", failure.message)
