from __future__ import annotations

import pytest
from tests.config.conftest import GOOD

from muster.base.resources import Resources
from muster.cluster.model import Backoff, ClusterSpec, LaunchLimits, NodeType, Objective, Timeouts
from muster.config.document import Document
from muster.config.to_spec import launch_hash, to_spec
from muster.providers.kind import parse_config, rules_named


def spec_of(text: str) -> ClusterSpec:
    return to_spec(parse_config(Document(text, "c.yaml")))


@pytest.mark.conformance("CF-4")
def test_counts_of_workers_become_counts_of_nodes_with_the_head():
    assert spec_of(GOOD) == ClusterSpec(
        cluster_name="demo",
        head_node_type="head",
        node_types=(
            NodeType(
                name="head",
                resources=Resources.of(CPU=2),
                max_nodes=1,
                machine_type="m5.large",
                launch_hash=launch_hash({"InstanceType": "m5.large"}, {"ssh_user": "ubuntu"}),
            ),
            NodeType(
                name="cpu",
                resources=Resources.of(CPU=8, memory=3.2e10),
                min_nodes=1,
                max_nodes=6,
                price_per_hour=0.4,
                launch_hash=launch_hash({}, {"ssh_user": "ubuntu"}),
            ),
        ),
        max_nodes=11,
        idle_timeout_s=300.0,
        install_runtime=True,
        limits=LaunchLimits(upscaling_speed=1.0),
    )


@pytest.mark.conformance("CF-4")
def test_a_type_without_a_maximum_takes_the_clusters_and_the_only_type_is_the_heads():
    text = "cluster_name: x\nprovider: {type: process}\navailable_node_types:\n  a: {resources: {}}\n"
    only = spec_of(text)
    assert (only.head_node_type, only.max_nodes) == ("a", 3)
    assert [(t.name, t.max_nodes) for t in only.node_types] == [("a", 1)]
    two = spec_of(text + "  b: {resources: {CPU: 1}}\nhead_node_type: a\nmax_workers: 7\n")
    assert [(t.name, t.max_nodes) for t in two.node_types] == [("a", 1), ("b", 7)]


def test_our_section_sets_objective_timeouts_limits_and_backoff():
    spec = spec_of(
        GOOD
        + "idle_timeout_minutes: 0.5\nupscaling_speed: 3\n"
        + "muster:\n  objective: cost\n  conserve_gpus: false\n"
        + "  timeouts: {request_s: 60, pending_idle_s: 30}\n"
        + "  limits: {max_concurrent: 4}\n  backoff: {base_s: 1}\n"
    )
    assert spec.objective is Objective.COST
    assert spec.conserve_gpus is False
    assert spec.idle_timeout_s == 30.0
    assert spec.timeouts == Timeouts(request_s=60.0, pending_idle_s=30.0)
    assert spec.limits == LaunchLimits(upscaling_speed=3.0, max_concurrent=4)
    assert spec.backoff == Backoff(base_s=1.0)


def test_provider_switches_reach_the_spec():
    spec = spec_of(
        GOOD.replace(
            "  region: eu-west-1", "  disable_launch_config_check: false\n  disable_node_updaters: true"
        )
    )
    assert (spec.check_launch_hash, spec.install_runtime) == (True, False)


@pytest.mark.parametrize(
    ("provider", "node_config", "name"),
    [
        ("aws", {"InstanceType": "p4d"}, "p4d"),
        ("azure", {"azure_arm_parameters": {"vmSize": "D4"}}, "D4"),
        ("azure", {"azure_arm_parameters": None}, ""),
        ("azure", {}, ""),
        ("gcp", {"machineType": "n2"}, "n2"),
        ("gcp", {"machineType": 7}, ""),
        ("kuberay", {"InstanceType": "p4d"}, ""),
    ],
)
@pytest.mark.conformance("CF-3")
def test_the_providers_name_of_a_machine_is_found_or_empty(provider, node_config, name):
    assert rules_named(provider).machine_type(node_config) == name
