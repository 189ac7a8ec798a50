"""The base class by itself: defaults, and what it says when something is missing."""

from __future__ import annotations

import pytest
from tests.providers.v1.scripted import Scripted

import muster.autoscaler
from muster.autoscaler import NodeLaunchException, NodeProvider
from muster.autoscaler.node_provider import NodeProvider as BySubmodule


def test_it_is_one_class_under_all_its_names():
    assert muster.autoscaler.NodeProvider is NodeProvider is BySubmodule
    assert "NodeProvider" in dir(muster.autoscaler)


def test_what_needs_no_override_has_rays_defaults():
    provider = NodeProvider({"type": "mine"}, "c")
    config = {"cluster_name": "c"}
    assert (provider.provider_config, provider.cluster_name) == ({"type": "mine"}, "c")
    assert provider.is_readonly() is False
    assert provider.safe_to_scale() is True
    assert provider.post_process() is None
    assert provider.max_terminate_nodes is None
    for step in (
        NodeProvider.bootstrap_config,
        NodeProvider.fillout_available_node_types_resources,
        provider.prepare_for_head_node,
    ):
        assert step(config) is config


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.non_terminated_nodes({}),
        lambda p: p.nodes_for_teardown({}),
        lambda p: p.is_running("n"),
        lambda p: p.is_terminated("n"),
        lambda p: p.node_tags("n"),
        lambda p: p.external_ip("n"),
        lambda p: p.internal_ip("n"),
        lambda p: p.create_node({}, {}, 1),
        lambda p: p.create_node_with_resources_and_labels({}, {}, 1, {}, {}),
        lambda p: p.set_node_tags("n", {}),
        lambda p: p.terminate_node("n"),
        lambda p: p.terminate_nodes(["n"]),
    ],
)
def test_what_must_be_overridden_says_so_with_the_name_of_the_class(call):
    class Half(NodeProvider):
        pass

    with pytest.raises(NotImplementedError, match=r"^Half "):
        call(Half({}, "c"))


def test_without_a_command_runner_of_its_own_ssh_is_used():
    with pytest.raises(NotImplementedError, match=r"n-1.*SSH"):
        NodeProvider({}, "c").get_command_runner("", "n-1", {}, "c", None, False)


def test_the_new_create_goes_to_the_old_one():
    class Old(NodeProvider):
        def create_node(self, node_config, tags, count):
            return {f"n-{i}": tags for i in range(count)}

    made = Old({}, "c").create_node_with_resources_and_labels({}, {"a": "b"}, 2, {"CPU": 1}, {"x": "y"})
    assert made == {"n-0": {"a": "b"}, "n-1": {"a": "b"}}


def test_terminating_many_is_terminating_each_and_adds_up_what_is_told():
    class Telling(NodeProvider):
        def terminate_node(self, node_id):
            return {node_id: "gone"} if node_id != "quiet" else None

    assert Telling({}, "c").terminate_nodes(["a", "quiet", "b"]) == {"a": "gone", "b": "gone"}


def test_addresses_are_remembered_looked_up_again_when_unknown_and_not_given_to_the_dead():
    provider = Scripted()
    listings = []
    provider.before_list = listings.append
    (first,) = provider.create_node({}, {}, 1)
    ip = provider.internal_ip(first)
    assert [provider.get_node_id(ip, use_internal_ip=True) for _ in range(3)] == [first] * 3
    assert len(listings) == 1
    provider.terminate_node(first)
    (second,) = provider.create_node({}, {}, 1)
    provider.nodes[second]["ip"] = ip
    assert provider.get_node_id(ip, use_internal_ip=True) == second
    with pytest.raises(ValueError, match=r"'scripted-\d+' .* 1\.2\.3\.4"):
        provider.get_node_id("1.2.3.4")


def test_a_launch_exception_carries_what_ray_gives_it():
    error = NodeLaunchException("QuotaExceeded", "48 of 48 vCPUs are in use", None)
    assert (error.category, error.description, error.src_exc_info) == (
        "QuotaExceeded",
        "48 of 48 vCPUs are in use",
        None,
    )
    assert str(error) == f"{error.category}: {error.description}"
