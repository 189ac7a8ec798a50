"""The configuration of a RayCluster while people edit it."""

from __future__ import annotations

import pytest
from tests.kube.operator import worker_group
from tests.mistakes.views import assert_line

from muster.errors import ConfigError
from muster.providers.kuberay.client import KubeError
from muster.providers.kuberay.source import RayClusterSource


def limits(source):
    spec, problem = source.current()
    return {kind.name: (kind.min_nodes, kind.max_nodes) for kind in spec.node_types[1:]}, problem


def test_an_edit_is_in_force_after_the_next_read_and_a_bad_one_leaves_the_last_good_one(world):
    world.create(worker_group("small", 0, maxReplicas=3))
    provider = world.provider()
    source = RayClusterSource(provider, {})
    version = source.config_version()
    assert limits(source) == ({"small": (0, 3)}, "")
    world.admin.edit_group(0, maxReplicas=5)
    assert limits(source) == ({"small": (0, 3)}, "")  # as last read: the source itself asks nobody
    provider.scaler.step()
    assert (limits(source), source.config_version() != version) == (({"small": (0, 5)}, ""), True)
    world.admin.edit_group(0, minReplicas=9, rayStartParams={"resources": "{oops"})
    provider.scaler.step()
    found, problem = limits(source)
    assert found == {"small": (5, 5)}  # the limits, which the operator follows
    assert_line("providers", "kuberay bad edit", problem)
    world.admin.edit_group(0, minReplicas=1, rayStartParams={})
    provider.scaler.step()
    assert limits(source) == ({"small": (1, 5)}, "")


def test_a_status_that_changes_is_no_edit(world):
    world.create(worker_group("small", 0))
    provider = world.provider()
    source = RayClusterSource(provider, {})
    version = source.config_version()
    world.admin.merge_cluster({"status": {"state": "ready"}}, sub="/status")
    provider.scaler.step()
    assert source.config_version() == version


def test_a_cluster_that_cannot_be_used_or_is_not_there_is_an_error_at_the_start(world):
    provider = world.provider()
    with pytest.raises(KubeError) as missing:
        RayClusterSource(provider, {})
    assert missing.value.code == 404
    world.create(worker_group("small", 0, template={"spec": {"containers": []}}))
    with pytest.raises(ConfigError) as unusable:
        RayClusterSource(provider, {})
    assert unusable.value.path.startswith("workerGroupSpecs[0]")
