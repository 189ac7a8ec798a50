"""BatchingNodeProvider: a manager is told the whole wish at once, and nothing asked for is forgotten."""

from __future__ import annotations

import pytest
from tests.mistakes.views import assert_line

from muster.autoscaler import BatchingNodeProvider
from muster.autoscaler.node_provider import NodeData, ScaleRequest
from muster.config.to_spec import NodeLaunch
from muster.errors import ConfigError
from muster.providers.background_calls import inline_pools
from muster.providers.batching import REQUIRED_FLAGS, submitting
from muster.providers.v1.adapter import V1Adapter

FLAGS = dict.fromkeys(REQUIRED_FLAGS, True)
HEAD = NodeData(kind="head", type="headgroup", ip="10.0.0.1", status="up-to-date")


def worker(status="up-to-date", ip="10.0.0.2", index=None):
    return NodeData(kind="worker", type="cpu", ip=ip, status=status, replica_index=index)


class Manager(BatchingNodeProvider):
    def __init__(self, **nodes):
        super().__init__(FLAGS, "c")
        self.there = {"head": HEAD, **nodes}
        self.told = []
        self.down = False

    def get_node_data(self):
        return self.there

    def submit_scale_request(self, scale_request):
        if self.down:
            raise ConnectionError("the manager is down")
        self.told.append(scale_request)


@pytest.fixture
def manager():
    """The class as the adapter gets it: each change is submitted."""
    return submitting(Manager(w1=worker(), w2=worker("waiting-for-ssh", None, "cpu-0")))


def create(manager, count):
    manager.create_node({}, {"ray-user-node-type": "cpu"}, count)


@pytest.mark.parametrize("flag", REQUIRED_FLAGS)
def test_all_three_flags_must_be_true(flag):
    with pytest.raises(ConfigError, match=f"{flag}.*BatchingNodeProvider"):
        BatchingNodeProvider({**FLAGS, flag: False}, "c")


def test_nodes_are_what_the_manager_says(manager):
    assert manager.non_terminated_nodes({}) == ["head", "w1", "w2"]
    assert manager.non_terminated_nodes({"ray-node-type": "worker", "ray-node-status": "up-to-date"}) == [
        "w1"
    ]
    assert [manager.is_running(n) for n in ("head", "w1", "w2", "gone")] == [True, True, False, False]
    assert [manager.is_terminated(n) for n in ("w2", "gone")] == [False, True]
    assert (manager.internal_ip("w1"), manager.external_ip("w2")) == ("10.0.0.2", None)
    assert manager.node_tags("w2") == {
        "ray-node-type": "worker",
        "ray-node-status": "waiting-for-ssh",
        "ray-user-node-type": "cpu",
        "ray-replica-index": "cpu-0",
    }
    with pytest.raises(NotImplementedError) as refused:
        manager.set_node_tags("w1", {})
    assert_line("providers", "batching, tags", str(refused.value))


def test_each_call_tells_the_whole_wish_and_what_was_asked_for_stays_asked_for(manager):
    create(manager, 2)
    create(manager, 1)  # the first two do not exist yet
    assert manager.told == [ScaleRequest({"cpu": 4}, set()), ScaleRequest({"cpu": 5}, set())]


def test_terminating_lowers_the_number_once_and_names_the_node_until_it_is_gone(manager):
    manager.terminate_nodes(["w1", "w2", "never-seen"])
    manager.terminate_node("w1")
    assert manager.told == [ScaleRequest({"cpu": 0}, {"w1", "w2"})]
    del manager.there["w1"]
    create(manager, 1)
    assert manager.told[1:] == [ScaleRequest({"cpu": 1}, {"w2"})]


def test_the_head_is_not_for_the_autoscaler_to_terminate(manager):
    with pytest.raises(ValueError, match="head") as refused:
        manager.terminate_node("head")
    assert_line("providers", "batching, head", str(refused.value))
    assert manager.told == []


def test_a_wish_that_could_not_be_told_is_not_kept(manager):
    manager._provider.down = True
    for call in (lambda: create(manager, 3), lambda: manager.terminate_node("w1")):
        with pytest.raises(ConnectionError):
            call()
    manager._provider.down = False
    create(manager, 1)
    assert manager.told == [ScaleRequest({"cpu": 3}, set())]


def test_it_works_under_the_adapter(manager):
    launches = {"cpu": NodeLaunch(node_type="cpu")}
    port = V1Adapter(manager, lambda: launches, cluster_name="c", pools=inline_pools())
    port.launch("r-1", {"cpu": 7})
    port.launch("r-1", {"cpu": 7})
    assert manager.told[-1] == ScaleRequest({"cpu": 9}, set())
    port.terminate("t-1", ["w1"])
    assert manager.told[-1] == ScaleRequest({"cpu": 8}, {"w1"})
    assert port.traits().installs_runtime
    assert set(port.list_instances()) == {"head", "w1", "w2"}
