"""The provider of docs/providers.md keeps its promises, and its cluster file builds it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line

from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cluster.model import FailureKind
from muster.config.to_spec import NodeLaunch, node_launches
from muster.providers.background_calls import inline_pools
from muster.providers.kind import ProviderContext, build_provider, load_config
from muster.providers.v1.adapter import V1Adapter
from muster.testing import ProviderContract

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "providers"
HOSTS = [f"10.0.0.{number}" for number in range(1, 21)]


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("rack_provider", None)


def rack(place, cluster_name="rack", hosts=HOSTS, start="true"):
    from rack_provider import RackProvider

    config = {"state": str(place / "rack.db"), "hosts": hosts, "start": start, "stop": "true"}
    return RackProvider(config, cluster_name)


class TestRackProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path, _examples):
        self.place = tmp_path

    def make_provider(self, cluster_name):
        return rack(self.place, cluster_name)


def adapted(provider):
    launches = {"host": NodeLaunch(node_type="host")}
    return V1Adapter(provider, lambda: launches, cluster_name="rack", pools=inline_pools())


def test_what_the_rack_does_not_have_is_a_failure_each_and_the_others_start(tmp_path):
    started = tmp_path / "started"
    port = adapted(
        rack(tmp_path, hosts=HOSTS[:2], start=f"echo {{host}} {{node_id}} {{node_type}} >> {started}")
    )
    port.launch("r-1", {"host": 3})
    assert started.read_text().splitlines() == ["10.0.0.1 rack-1 host", "10.0.0.2 rack-2 host"]
    (failure,) = port.poll_launch_failures()
    assert failure.kind is FailureKind.CAPACITY
    assert_line("providers", "example rack in use", failure.message)


def test_a_host_that_does_not_start_is_free_again_and_counts_as_failed(tmp_path):
    port = adapted(rack(tmp_path, hosts=HOSTS[:1], start="echo no route to host >&2; exit 1"))
    port.launch("r-1", {"host": 1})
    assert port.list_instances() == {}
    assert ["no route to host" in f.message for f in port.poll_launch_failures()] == [True]
    assert rack(tmp_path, hosts=HOSTS[:1]).create_node({}, {"ray-user-node-type": "host"}, 1) is None


def test_the_page_shows_the_example_as_it_is():
    page = (EXAMPLES.parents[1] / "docs" / "providers.md").read_text()
    for name in ("rack_provider.py", "rack.yaml"):
        assert (EXAMPLES / name).read_text() in page, f"docs/providers.md shows another {name}"


def test_the_cluster_file_of_the_example_builds_the_provider(tmp_path):
    config = load_config(EXAMPLES / "rack.yaml")
    around = ProviderContext(
        cluster_name="rack", home=tmp_path, address="", clock=SystemClock(), ids=RandomIds()
    )
    port = build_provider(config, lambda: node_launches(config), around)
    port.close()
    assert port.v1.provider_config["hosts"] == [f"10.0.0.{number}" for number in (11, 12, 13, 14)]
    assert port.traits().installs_runtime
