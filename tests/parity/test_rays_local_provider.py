"""Ray's own local provider under our adapter: it makes fewer without a word, and uses its ids again."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from muster.cluster.model import FailureKind
from muster.config.to_spec import NodeLaunch
from muster.providers.background_calls import inline_pools
from muster.providers.v1.adapter import V1Adapter
from muster.providers.v1.kind import make_external
from muster.testing import ProviderContract

# Ray's class leaves files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MODULE = "ray.autoscaler._private.local.node_provider"
TYPE = "local.cluster.node"  # the only one it has
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip(MODULE, reason="Ray's own autoscaler is not installed")


def provider(cluster_name, workers=20):
    ips = [f"127.1.0.{number}" for number in range(1, workers + 1)]
    section = {
        "type": "external",
        "module": f"{MODULE}.LocalNodeProvider",
        "head_ip": "127.0.0.1",
        "worker_ips": ips,
    }
    return make_external(section, cluster_name)


@pytest.fixture(autouse=True)
def _files_are_removed():
    """It keeps its state under Ray's directory, by the name of the cluster."""
    before = set(Path("/tmp/ray").glob("cluster-*"))
    yield
    for file in set(Path("/tmp/ray").glob("cluster-*")) - before:
        file.unlink(missing_ok=True)


def adapted(name, workers=2):
    launches = {TYPE: NodeLaunch(node_type=TYPE)}
    return V1Adapter(provider(name, workers), lambda: launches, cluster_name=name, pools=inline_pools())


def test_the_machines_it_did_not_make_fail_at_once():
    port = adapted(f"short-{os.getpid()}")
    port.launch("r-1", {TYPE: 5})
    assert len(port.list_instances()) == 2
    text = f"the provider made 2 of 5 {TYPE} and gave no reason"
    assert [(f.kind, f.message) for f in port.poll_launch_failures()] == [(FailureKind.CAPACITY, text)] * 3


def test_an_id_used_again_is_listed_with_its_new_request():
    port = adapted(f"again-{os.getpid()}")
    port.launch("r-1", {TYPE: 2})
    port.terminate("t-1", ["127.1.0.1"])
    port.launch("r-2", {TYPE: 1})
    assert {m.cloud_id: m.request_id for m in port.list_instances().values()} == {
        "127.1.0.1": "r-2",
        "127.1.0.2": "r-1",
    }
    assert (port.poll_launch_failures(), port.poll_terminate_failures()) == ((), ())


class TestRaysLocalProvider(ProviderContract):
    node_type = TYPE

    def make_provider(self, cluster_name):
        return provider(f"{cluster_name}-{os.getpid()}")
