"""The configuration that a RayCluster describes: pure."""

from __future__ import annotations

from decimal import Decimal

import pytest
from tests.kube.operator import ray_cluster, worker_group
from tests.mistakes.views import assert_line

from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kuberay.ray_cluster import cluster_config, head_port, quantity, whole


def group(name="small", limits=None, requests=None, **more):
    sizes = {key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    node_selector = more.pop("nodeSelector", {})
    container = {"name": "ray", "resources": sizes}
    template = {"spec": {"containers": [container], "nodeSelector": node_selector}}
    return worker_group(name, 1, template=template, **more)


def config(*groups, annotations=None, **spec):
    made = ray_cluster("demo", *groups, **spec)
    made["metadata"] |= {"namespace": "research", "annotations": annotations or {}}
    return cluster_config(made)


def resources(**given):
    return config(group(**given)).available_node_types["small"].resources


def refusal(*groups, **more):
    with pytest.raises(ConfigError) as found:
        config(*groups, **more)
    return str(found.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1", 1), ("500m", "0.5"), ("1n", "1e-9"), ("2u", "2e-6"), ("1k", 1000), ("1K", 1000)],
        *[("3M", 3_000_000), ("1Ki", 1024), ("2Gi", 2 * 2**30), ("1.5Gi", 3 * 2**29), ("1E", 10**18)],
        *[("1Ei", 2**60), ("1e3", 1000), (4, 4)],
    ],
)
def test_quantities_have_kubernetes_units(text, value):
    assert quantity(text) == Decimal(str(value))


@pytest.mark.parametrize("text", ["1ki", "", "abc", "1 Gi", "--1", None, True, [], "1GB"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def test_quantities_are_rounded_up():
    assert (whole("1500m"), whole("0.1"), whole("1Gi")) == (2, 1, 2**30)


def test_limits_count_before_requests():
    found = resources(limits={"cpu": "4", "memory": "8Gi"}, requests={"cpu": "1", "memory": "1Gi"})
    assert found == {"CPU": 4, "memory": 8 * 2**30}
    assert resources(requests={"cpu": "1500m"}) == {"CPU": 2}


def test_start_parameters_count_before_the_container():
    params = {"num-cpus": "7", "num-gpus": "2", "memory": "1000"}
    found = resources(limits={"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 1}, rayStartParams=params)
    assert found == {"CPU": 7, "GPU": 2, "memory": 1000}


def test_the_groups_own_resources_count_before_all():
    own = {"CPU": "3", "memory": "2Gi", "GPU": 1, "special": "5", "object_store_memory": "1Gi"}
    params = {"num-cpus": "7", "resources": '{"other": 1}'}
    found = resources(limits={"cpu": "4"}, rayStartParams=params, resources=own)
    assert found == {"CPU": 3, "GPU": 1, "memory": 2 * 2**30, "special": 5}


@pytest.mark.parametrize("key", ["nvidia.com/gpu", "amd.com/gpu", "example.com/gpu"])
def test_accelerators_of_any_maker_are_gpus(key):
    assert resources(limits={"cpu": 1, "none/gpu": 0, key: "2"})["GPU"] == 2


@pytest.mark.parametrize(
    ("accelerator", "topology", "name"),
    [
        ("tpu-v4-podslice", "2x2x2", "TPU-v4-16-head"),
        ("tpu-v5-lite-podslice", "4x4", "TPU-v5litepod-16-head"),
        ("tpu-v5-lite-device", "2x4", "TPU-v5litepod-8-head"),
        ("tpu-v5p-slice", "2x2x4", "TPU-v5p-32-head"),
        ("tpu-v6e-slice", "2x2", "TPU-v6e-4-head"),
        ("tpu7x", "2x2x1", "TPU-v7x-8-head"),
    ],
)
def test_a_slice_of_tpus_has_a_head(accelerator, topology, name):
    selector = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    found = resources(limits={"cpu": 1, "google.com/tpu": "4"}, nodeSelector=selector)
    assert found == {"CPU": 1, "TPU": 4, name: 1}


def test_custom_resources_are_json_in_quotes_of_a_shell():
    text = '"{\\"Custom\\": 2, \\"object_store_memory\\": 5}"'
    assert resources(limits={"cpu": 1}, rayStartParams={"resources": text}) == {"CPU": 1, "Custom": 2}


def test_tpus_among_the_start_parameters_are_not_dropped():
    params = {"resources": '"{\\"TPU\\": 4, \\"Custom\\": 2}"'}
    found = resources(limits={"cpu": 1, "google.com/tpu": "8"}, rayStartParams=params)
    assert found == {"CPU": 1, "TPU": 4, "Custom": 2}
    key = "cloud.google.com/gke-tpu-"
    selector = {f"{key}accelerator": "tpu-v6e-slice", f"{key}topology": "2x2"}
    found = resources(limits={"cpu": 1}, rayStartParams=params, nodeSelector=selector)
    assert found == {"CPU": 1, "TPU": 4, "Custom": 2, "TPU-v6e-4-head": 1}


def test_resources_of_a_group_that_override_the_start_parameters_are_reported():
    said = []
    params = {"num-cpus": "2", "resources": '"{\\"Custom\\": 2}"'}
    made = ray_cluster("demo", group(limits={"cpu": 1}, rayStartParams=params, resources={"CPU": "3"}))
    assert cluster_config(made, warn=said.append).available_node_types["small"].resources == {"CPU": 3}
    (line,) = said
    assert_line("providers", "kuberay resources that override", line)


def test_a_minimum_above_the_maximum_is_cut_and_reported():
    said = []
    made = ray_cluster("demo", group(limits={"cpu": 1}, minReplicas=5, maxReplicas=2))
    found = cluster_config(made, warn=said.append).available_node_types["small"]
    assert (found.min_workers, found.max_workers, len(said)) == (2, 2, 1)
    assert_line("providers", "kuberay minimum above the maximum", said[0])


def test_a_group_without_cpus_is_named_with_the_fix():
    assert_line("providers", "kuberay group without CPUs", refusal(group(limits={"memory": "1Gi"})))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (group(limits={"cpu": "4 cores"}), "'4 cores' is not a quantity"),
        (group(limits={"cpu": 1}, rayStartParams={"resources": "{oops"}), "is not JSON of whole numbers"),
        (group(limits={"cpu": 1}, maxReplicas="many"), "'many' is not a whole number"),
        (group(limits={"cpu": 1}, labels={"a b": "c"}), "is not a label of Kubernetes"),
        (group(name="headgroup", limits={"cpu": 1}), "cannot be the name of a group"),
        (group(limits=["cpu"]), "not a mapping; fix it"),
    ],
)
def test_mistakes_name_the_field(made, text):
    found = refusal(made)
    assert text in found
    assert found.startswith("RayCluster research/demo: workerGroupSpecs[0]")


def test_counts_are_of_pods_and_the_clusters_maximum_is_their_sum():
    found = config(
        group(limits={"cpu": 1}, minReplicas=1, maxReplicas=3, numOfHosts=4),
        group(
            "other", limits={"cpu": 1}, maxReplicas=5, idleTimeoutSeconds=30, priority=7, labels={"a": "b"}
        ),
    )
    small, other = (found.available_node_types[name] for name in ("small", "other"))
    assert (small.min_workers, small.max_workers, other.min_workers, other.max_workers) == (4, 12, 0, 5)
    assert (other.idle_timeout_s, other.priority, other.labels, small.idle_timeout_s) == (
        30,
        7,
        {"a": "b"},
        None,
    )
    assert (found.max_workers, found.head_type, found.provider.namespace) == (17, "headgroup", "research")
    spec = to_spec(found)
    assert [(t.name, t.max_nodes) for t in spec.node_types] == [("headgroup", 1), ("small", 12), ("other", 5)]


@pytest.mark.parametrize(
    ("options", "minutes", "speed"),
    [
        ({}, 1.0, 1000),
        ({"idleTimeoutSeconds": 300, "upscalingMode": "Default"}, 5.0, 1000),
        ({"upscalingMode": "Aggressive"}, 1.0, 1000),
        ({"upscalingMode": "Conservative"}, 1.0, 1),
    ],
)
def test_options_of_the_autoscaler_are_used(options, minutes, speed):
    found = config(group(limits={"cpu": 1}), autoscalerOptions=options)
    assert (found.idle_timeout_minutes, found.upscaling_speed) == (minutes, speed)


def test_a_suspended_group_has_no_pods():
    found = config(group(limits={"cpu": 1}, suspend=True, minReplicas=2)).available_node_types["small"]
    assert (found.min_workers, found.max_workers) == (0, 0)


def test_labels_among_the_start_parameters_are_reported_and_not_used():
    said = []
    made = ray_cluster("demo", group(limits={"cpu": 1}, rayStartParams={"labels": "a=b"}))
    assert cluster_config(made, warn=said.append).available_node_types["small"].labels == {}
    (line,) = said
    assert_line("providers", "kuberay labels in the start parameters", line)


def test_settings_of_musters_own_are_in_an_annotation():
    text = "muster: {objective: cost}\navailable_node_types: {small: {price_per_hour: 0.5}}"
    found = config(group(limits={"cpu": 1}), annotations={"muster/config": text})
    assert (found.muster.objective.value, found.available_node_types["small"].price_per_hour) == ("cost", 0.5)
    assert found.muster.limits.max_concurrent == 1_000_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not YAML"),
        ("max_workers: 3", "has 'max_workers'"),
        ("available_node_types: {gone: {price_per_hour: 1}}", "has 'gone', which is not a group"),
        ("muster: {objectiv: cost}", "did you mean 'objective'?"),
    ],
)
def test_a_mistake_in_the_annotation_is_named(text, problem):
    assert problem in refusal(group(limits={"cpu": 1}), annotations={"muster/config": text})


@pytest.mark.parametrize(("params", "port"), [({}, 6379), ({"port": "6400"}, 6400), ({"port": "x"}, 6379)])
def test_the_heads_port_is_that_of_its_start_parameters(params, port):
    made = ray_cluster("demo")
    made["spec"]["headGroupSpec"]["rayStartParams"] = params
    assert (head_port(made), head_port({})) == (port, 6379)
