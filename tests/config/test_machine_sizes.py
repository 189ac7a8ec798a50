"""The resources of machine types that a file names and does not describe."""

from __future__ import annotations

import importlib
import json
from fractions import Fraction

import pytest

from muster.config.check import MachineSize
from muster.config.document import Document
from muster.providers.kind import known_sizes, parse_config, rules_named

GIB = 2**30


def resources(provider: str, entry: str, extra: str = "") -> dict[str, float]:
    text = f"provider: {{type: {provider}}}\nhead_node_type: h\navailable_node_types:\n"
    text += f"  h: {{resources: {{CPU: 0}}}}\n  w: {{{entry}}}\n{extra}"
    return parse_config(Document(text, "c.yaml")).available_node_types["w"].resources


def share(gib: Fraction | int) -> int:
    return int(gib * GIB * Fraction(7, 10))


@pytest.mark.parametrize(
    ("provider", "machine", "size"),
    [
        ("aws", "m5.large", MachineSize(2, 8192)),
        ("aws", "t1.micro", MachineSize(1, 627)),
        ("aws", "g4dn.12xlarge", MachineSize(48, 196608, "GPU", 4, "T4")),
        ("aws", "p4de.24xlarge", MachineSize(96, 1179648, "GPU", 8, "A100")),
        ("aws", "trn1.32xlarge", MachineSize(128, 524288, "neuron_cores", 32, "aws-neuron-core")),
        ("aws", "f2.6xlarge", MachineSize(24, 262144)),
        ("gcp", "n1-standard-2", MachineSize(2, 7680)),
        ("gcp", "zones/us-west1-b/machineTypes/n1-standard-2", MachineSize(2, 7680)),
        ("gcp", "a2-highgpu-4g", MachineSize(48, 348160, "GPU", 4, "A100")),
        ("gcp", "a3-ultragpu-8g", MachineSize(224, 3022848, "GPU", 8, "H200")),
        ("gcp", "n2-custom-6-20480", MachineSize(6, 20480)),
        ("gcp", "custom-4-8192-ext", MachineSize(4, 8192)),
        ("azure", "Standard_NC6s_v3", MachineSize(6, 114688, "GPU", 1, "V100")),
        ("azure", "standard_d2s_V3", MachineSize(2, 8192)),
        ("aws", "n1-standard-2", None),
        ("aws", "custom-4-8192", None),
        ("aliyun", "ecs.g6.large", None),
        ("aws", "", None),
    ],
)
def test_the_size_of_a_machine_type(provider, machine, size):
    assert rules_named(provider).size_of(machine) == size


def test_aws_completes_what_is_given_and_leaves_the_memory_of_the_head_to_the_head():
    config = parse_config(
        Document("""\
provider: {type: aws}
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: g4dn.xlarge}}
  none: {node_config: {InstanceType: g4dn.xlarge}}
  empty: {resources: {}, node_config: {InstanceType: g4dn.xlarge}}
  some: {resources: {CPU: 1, custom: 5}, node_config: {InstanceType: g4dn.xlarge}}
""", "c.yaml")
    )  # fmt: skip
    gpu = {"CPU": 4, "GPU": 1, "accelerator_type:T4": 1}
    whole = {**gpu, "memory": share(16)}
    assert {name: entry.resources for name, entry in config.available_node_types.items()} == {
        "ray.head.default": gpu,
        "none": whole,
        "empty": whole,
        "some": {**whole, "CPU": 1, "custom": 5},
    }


@pytest.mark.parametrize(
    ("provider", "machine"),
    [("gcp", "{machineType: n2-standard-2}"), ("azure", "{azure_arm_parameters: {vmSize: Standard_D2s_v3}}")],
)
def test_other_clouds_use_an_entry_as_it_is_unless_it_gives_nothing(provider, machine):
    assert resources(provider, f"resources: {{TPU: 1}}, node_config: {machine}") == {"TPU": 1}
    found = {"CPU": 2, "memory": share(8)}
    assert resources(provider, f"resources: {{}}, node_config: {machine}") == found
    assert resources(provider, f"node_config: {machine}") == found


def test_the_gpus_that_gcp_adds_to_a_machine_count():
    added = "[{acceleratorType: projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4, acceleratorCount: 2}]"
    assert resources("gcp", f"node_config: {{machineType: n1-standard-4, guestAccelerators: {added}}}") == {
        **{"CPU": 4, "memory": share(15), "GPU": 2, "accelerator_type:T4": 1}
    }


@pytest.mark.parametrize("odd", [None, 1, "x", [1], [{}], [{"acceleratorType": 1, "acceleratorCount": "x"}]])
def test_odd_accelerators_are_left_to_the_cloud_to_refuse(odd):
    found = rules_named("gcp").machine_resources({"machineType": "n1-standard-4", "guestAccelerators": odd})
    assert found == {"CPU": 4, "memory": share(15)}


def test_a_type_of_unknown_size_has_what_the_file_gives():
    assert resources("aws", "resources: {}, node_config: {InstanceType: x9.big}") == {}
    assert resources("aws", "resources: {CPU: 3}, node_config: {InstanceType: x9.big}") == {"CPU": 3}


def test_every_line_of_the_table_is_a_size_that_a_machine_can_have():
    sizes = known_sizes()
    assert len(sizes) > 2_500
    assert {provider for provider, _ in sizes} == {"aws", "azure", "gcp"}
    odd = [
        name
        for name, size in sizes.items()
        if not (1 <= size.cpus <= 2_000 and 256 <= size.memory_mib <= 2**26 and 0 <= size.accelerators <= 64)
    ]
    assert odd == []
    assert {size.resource for size in sizes.values()} == {"", "GPU", "HPU", "neuron_cores"}


def test_accelerators_have_the_names_that_rays_nodes_report():
    rays = pytest.importorskip("ray.util.accelerators.accelerators")
    known = {value for name, value in vars(importlib.import_module(rays.__name__)).items() if name.isupper()}
    # Types that Ray has no constant for: its nodes report the maker's name.
    others = {"A10", "M60", "RTX-PRO-4500", "Radeon-MI25", "Radeon-Pro-V520", "T4g"}
    named = {size.accelerator_type for size in known_sizes().values()} - {""}
    assert named <= known | others
    assert named >= {"T4", "A100", "H100", "V100", "L4", "aws-neuron-core"}


@pytest.mark.slow
@pytest.mark.parity
def test_every_type_of_aws_has_the_resources_that_ray_finds(monkeypatch):
    """Ray asks AWS, here a fake one with the types of one region; both complete the same file."""
    moto = pytest.importorskip("moto")
    provider = pytest.importorskip("ray.autoscaler._private.aws.node_provider").AWSNodeProvider
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with moto.mock_aws():
        boto3 = importlib.import_module("boto3")
        pages = boto3.client("ec2", "us-east-1").get_paginator("describe_instance_types").paginate()
        offered = sorted(entry["InstanceType"] for page in pages for entry in page["InstanceTypes"])
        types = {name: {"resources": {}, "node_config": {"InstanceType": name}} for name in offered}
        types["some"] = {"resources": {"CPU": 1, "own": 5}, "node_config": {"InstanceType": "g4dn.xlarge"}}
        file = {
            "cluster_name": "all",
            "provider": {"type": "aws", "region": "us-east-1"},
            "head_node_type": "g5.xlarge",
            "available_node_types": types,
        }
        rays = provider.fillout_available_node_types_resources(json.loads(json.dumps(file)))
    ours = parse_config(Document(json.dumps(file), "c.json")).available_node_types
    # Ray's autoscaler calls the GPUs of g7 otherwise than Ray's nodes do; ours is the name of the nodes.
    renamed = {"accelerator_type:RTX PRO 4500", "accelerator_type:RTX PRO Server 6000"}
    different = {
        name: (entry["resources"], ours[name].resources)
        for name, entry in rays["available_node_types"].items()
        if ours[name].resources and ours[name].resources != entry["resources"]
        if not renamed & set(entry["resources"])
    }
    unknown = [name for name in offered if not ours[name].resources]  # newer than the table
    assert different == {}
    assert (len(offered) > 1_000, len(unknown) < len(offered) / 20) == (True, True), unknown
