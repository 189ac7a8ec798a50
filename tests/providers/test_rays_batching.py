"""Subclasses of Ray's own BatchingNodeProvider, loaded by name as a user's class is: what they are told."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from tests.providers.test_kind import config_of, surroundings

from muster.config.to_spec import NodeLaunch
from muster.providers.background_calls import inline_pools
from muster.providers.batching import REQUIRED_FLAGS, SubmittingProvider, submitting
from muster.providers.kind import build_provider
from muster.providers.v1.adapter import V1Adapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rays = pytest.importorskip(
        "ray.autoscaler.batching_node_provider", reason="Ray's own autoscaler is not installed"
    )

FLAGS = dict.fromkeys(REQUIRED_FLAGS, True)
LAUNCHES = {"cpu": NodeLaunch(node_type="cpu"), "gpu": NodeLaunch(node_type="gpu")}


class Manager(rays.BatchingNodeProvider):
    """Keeps what it is told; the test decides which machines come and go."""

    managers: list[Manager] = []  # noqa: RUF012 - for the test that builds one from a file

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.there = {"head": node("head", "headgroup")}
        self.told = []
        self.is_ready, self.is_down = True, False
        self.managers.append(self)

    def get_node_data(self):
        return dict(self.there)

    def submit_scale_request(self, scale_request):
        if self.is_down:
            raise ConnectionError("the manager is down")
        self.told.append((dict(scale_request.desired_num_workers), set(scale_request.workers_to_delete)))

    def safe_to_scale(self):
        return self.is_ready


def node(kind="worker", node_type="cpu"):
    return rays.NodeData(kind=kind, type=node_type, ip="10.0.0.9", status="up-to-date")


@pytest.fixture
def manager():
    made = Manager(FLAGS, "c")
    made.there |= {"w1": node(), "w2": node()}
    return made


@pytest.fixture
def port(manager):
    return V1Adapter(submitting(manager), lambda: LAUNCHES, cluster_name="c", pools=inline_pools())


def test_a_launch_is_submitted_and_one_that_has_not_come_yet_is_not_forgotten(manager, port):
    port.launch("r-1", {"cpu": 2})
    port.list_instances()
    port.launch("r-2", {"cpu": 1, "gpu": 1})
    port.terminate("t-1", ["w1"])
    assert manager.told[0] == ({"cpu": 4}, set())
    assert manager.told[-2:] == [({"cpu": 5, "gpu": 1}, set()), ({"cpu": 4, "gpu": 1}, {"w1"})]
    manager.there |= {"w3": node(), "w4": node()}
    port.launch("r-3", {"cpu": 1})
    assert manager.told[-1] == ({"cpu": 5, "gpu": 1}, {"w1"})
    assert (port.poll_launch_failures(), port.poll_terminate_failures()) == ((), ())


def test_machines_that_leave_are_named_until_they_are_gone_and_counted_once(manager, port):
    port.terminate("t-1", ["w1"])
    port.terminate("t-2", ["w1"])
    port.terminate("t-3", ["w2"])
    assert manager.told == [({"cpu": 1}, {"w1"}), ({"cpu": 0}, {"w1", "w2"})]
    del manager.there["w1"]
    port.launch("r-1", {"cpu": 1})
    assert manager.told[-1] == ({"cpu": 1}, {"w2"})


def test_the_replacement_of_a_machine_that_died_is_not_requested_on_top_of_it(manager, port):
    port.launch("r-1", {"cpu": 1})
    manager.there["w3"] = node()
    port.list_instances()
    del manager.there["w2"]
    port.launch("r-2", {"cpu": 1})
    assert [told for told, _ in manager.told] == [{"cpu": 3}, {"cpu": 3}]


def test_a_repeated_attempt_requests_nothing_more(manager, port):
    port.launch("r-1", {"cpu": 1})
    port.launch("r-1~2.t-9", {"cpu": 1})
    assert [told for told, _ in manager.told] == [{"cpu": 3}, {"cpu": 3}]


def test_what_could_not_be_submitted_is_a_failure_and_is_not_kept(manager, port):
    manager.is_down = True
    port.launch("r-1", {"cpu": 3})
    port.terminate("t-1", ["w1"])
    assert [f.message for f in port.poll_launch_failures()] == ["ConnectionError: the manager is down"] * 3
    assert [f.cloud_id for f in port.poll_terminate_failures()] == ["w1"]
    manager.is_down = False
    port.launch("r-2", {"cpu": 1})
    assert manager.told == [({"cpu": 3}, set())]


def test_a_manager_that_is_not_ready_is_asked_again_later(manager, port):
    manager.is_ready = False
    port.launch("r-1", {"cpu": 1})
    (failure,) = port.poll_launch_failures()
    assert (failure.kind.value, manager.told) == ("throttled", [])
    assert "Manager.safe_to_scale()" in failure.message


def test_it_is_wrapped_when_a_cluster_file_names_it_and_its_nodes_are_listed_with_their_types(tmp_path):
    flags = ", ".join(f"{flag}: true" for flag in REQUIRED_FLAGS)
    config = config_of(tmp_path, f"type: external, module: {__name__}.Manager, {flags}")
    port = build_provider(config, lambda: LAUNCHES, surroundings(tmp_path))
    try:
        assert isinstance(port.v1, SubmittingProvider)
        port.launch("r-1", {"cpu": 1})
        for _ in range(2000):
            if not port.under_way("r-1"):
                break
            port.list_instances()
        manager = Manager.managers[-1]
        assert manager.told == [({"cpu": 1}, set())]
        assert {m.node_type: m.kind.name for m in port.list_instances().values()} == {"headgroup": "HEAD"}
    finally:
        port.close()


def test_other_classes_are_left_as_they_are():
    plain = SimpleNamespace()
    assert submitting(plain) is plain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = pytest.importorskip("ray.autoscaler.node_provider").NodeProvider
    rayish = type("Rayish", (base,), {})({}, "c")
    assert submitting(rayish) is rayish


def test_our_own_class_does_not_request_a_replacement_twice_either():
    from tests.providers.test_batching import Manager as Ours
    from tests.providers.test_batching import worker

    ours = Ours(w1=worker(), w2=worker())
    port = V1Adapter(submitting(ours), lambda: LAUNCHES, cluster_name="c", pools=inline_pools())
    port.launch("r-1", {"cpu": 1})
    port.launch("r-1~2.t-9", {"cpu": 1})
    ours.there["w3"] = worker()
    port.list_instances()
    del ours.there["w2"]
    port.launch("r-2", {"cpu": 1})
    assert [told.desired_num_workers["cpu"] for told in ours.told] == [3, 3, 3]
