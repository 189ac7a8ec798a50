"""Ray's cluster files are read: those of the wheel, and in our words the forms of its repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line

from muster.base.resources import Resources
from muster.cluster.model import Demand
from muster.cluster.planner.pack import PlannedDemand, what_if
from muster.config.document import Document
from muster.config.schema import ClusterConfig
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kind import parse_config


def wheel_files() -> list[Path]:
    """The YAML files of the installed Ray that are cluster files: they name a provider or belong to one."""
    found = importlib.util.find_spec("ray")
    if found is None or not found.submodule_search_locations:
        return []
    folder = Path(found.submodule_search_locations[0]) / "autoscaler"
    return sorted(path for path in folder.rglob("*.yaml") if "cluster_name:" in path.read_text())


IN_WHEEL = {str(path.relative_to(path.parents[2])): path for path in wheel_files()}


def parsed(text: str) -> ClusterConfig:
    return parse_config(Document(text, "c.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return str(caught.value)


@pytest.mark.skipif(not IN_WHEEL, reason="needs the installed ray, whose YAML files are the input")
def test_every_cluster_file_of_the_wheel_is_read_or_says_what_it_lacks():
    refused = {}
    for name, path in IN_WHEEL.items():
        text = path.read_text(encoding="utf-8")
        if "provider:" not in text:  # only merged into a user's file
            text += "\nprovider: {type: local, head_ip: a, worker_ips: [b]}\n"
        try:
            to_spec(parsed(text))
        except ConfigError as problem:
            refused[name] = str(problem)
    assert len(IN_WHEEL) >= 7
    assert refused == {}


@pytest.mark.skipif(not IN_WHEEL, reason="needs the installed ray, whose YAML files are the input")
@pytest.mark.parametrize("provider", ["aws", "azure", "gcp", "spark", "vsphere"])
def test_a_file_that_names_only_the_provider_gets_rays_types(provider):
    """The names matter: a file that gives types without `head_node_type` gets its head by name."""
    path = next(path for path in IN_WHEEL.values() if path.parent.name == provider)
    assert shape(parsed(f"provider: {{type: {provider}}}\n")) == shape(
        parsed(path.read_text(encoding="utf-8"))
    )


def shape(config: ClusterConfig) -> object:
    types = config.available_node_types
    return (
        {
            name: (entry.resources, entry.min_workers, config.type_max_workers(name))
            for name, entry in types.items()
        },
        (config.cluster_name, config.head_node_type, config.max_workers, config.idle_timeout_minutes),
    )


# Files of Ray's repository that the wheel does not have, shortened to what is special about them.
FORMS = {
    "aws, minimal": """
cluster_name: smallest
provider: {type: aws, region: us-west-2}
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}}
  ray.worker.default: {min_workers: 1, max_workers: 4, resources: {}, node_config: {InstanceType: m5.large}}
""",
    "aws, types without resources and a head that is not named": """
cluster_name: ml
min_workers: 0
max_workers: 0
docker: {image: "", container_name: "", pull_before_run: true, run_options: []}
provider: {type: aws, region: us-west-2, availability_zone: "us-west-2a,us-west-2b"}
auth: {ssh_user: ubuntu}
available_node_types:
  ray.head.default: {node_config: {InstanceType: m4.16xlarge, ImageId: latest_dlami}}
  ray.worker.default: {node_config: {InstanceType: m4.16xlarge, ImageId: latest_dlami}}
file_mounts: {}
""",
    "aws, launch templates": """
cluster_name: launch_templates
max_workers: 2
provider: {type: aws, region: us-west-2}
available_node_types:
  ray.head.default:
    resources: {}
    node_config: {LaunchTemplate: {LaunchTemplateId: lt-0, Version: $Latest}, InstanceType: m5a.large}
  ray.worker.default:
    min_workers: 0
    max_workers: 1
    resources: {}
    node_config: {LaunchTemplate: {LaunchTemplateName: Example, Version: 2}, InstanceType: m5a.large}
head_node_type: ray.head.default
""",
    "aws, the old form": """
cluster_name: old
min_workers: 1
max_workers: 2
provider: {type: aws, region: us-west-2, key_pair: {key_name: k}}
file_mounts: {~/tests: .}
head_node: {ImageId: latest_dlami, InstanceType: t1.micro}
worker_nodes: {ImageId: latest_dlami, InstanceType: t1.micro}
""",
    "aws, old keys left empty": """
cluster_name: empty-old
provider: {type: aws, region: us-west-2}
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}, max_workers: 0}
  ray.worker.default: {resources: {}, node_config: {InstanceType: m5.large}}
head_node: {}
worker_nodes: {}
""",
    "gcp, only the provider": """
cluster_name: minimal
max_workers: 1
provider: {type: gcp, region: us-west1, availability_zone: us-west1-a, project_id: null}
auth: {ssh_user: ubuntu}
""",
    "gcp, default names and no head_node_type": """
cluster_name: gcp-types
provider: {type: gcp, region: us-west1, availability_zone: us-west1-a, project_id: null}
available_node_types:
  ray_head_default: {resources: {CPU: 2}, node_config: {machineType: n1-standard-2}}
  ray_worker_small:
    resources: {CPU: 2}
    node_config: {machineType: n1-standard-2, scheduling: [{preemptible: true}]}
""",
    "gcp, a TPU": """
cluster_name: tputest
max_workers: 7
available_node_types:
  ray_head_default: {resources: {CPU: 2}, node_config: {machineType: n2-standard-2}}
  ray_tpu:
    min_workers: 7
    resources: {TPU: 1}
    node_config: {acceleratorType: v2-8, runtimeVersion: v2-alpha}
provider: {type: gcp, region: us-central1, availability_zone: us-central1-f, project_id: null}
head_node_type: ray_head_default
""",
    "azure, zones and no head_node_type": """
cluster_name: zones
max_workers: 6
provider: {type: azure, location: westus2, resource_group: ray-zones, availability_zone: "1,2,3"}
available_node_types:
  ray.head.default:
    resources: {CPU: 2}
    node_config: {azure_arm_parameters: {vmSize: Standard_D2s_v3, availability_zone: none}}
  ray.worker.default: {resources: {CPU: 2}, node_config: {azure_arm_parameters: {vmSize: Standard_D2s_v3}}}
  ray.worker.zone2: {resources: {CPU: 2}, node_config: {azure_arm_parameters: {vmSize: Standard_D2s_v3}}}
""",
    "vsphere, types without node_config": """
cluster_name: default
max_workers: 5
provider: {type: vsphere}
auth: {ssh_user: ray, ssh_private_key: ~/ray-bootstrap-key.pem}
available_node_types:
  ray.head.default: {resources: {}}
  ray.worker.default: {min_workers: 1, max_workers: 3, resources: {}}
""",
    "local, a coordinator and empty types": """
cluster_name: minimal-automatic
provider: {type: local, coordinator_address: "HOST:1234"}
min_workers: 0
max_workers: 2
available_node_types: {}
head_node_type: {}
""",
    "local, listed computers": """
cluster_name: minimal-manual
provider: {type: local, head_ip: h, worker_ips: [a, b]}
auth: {ssh_user: me, ssh_private_key: ~/.ssh/id_rsa}
""",
    "aliyun": """
cluster_name: default
provider:
  type: aliyun
  region: cn-hangzhou
  access_key:
  security_group_rule: [{port_range: 22/22, ip_protocol: tcp}]
available_node_types:
  ray.head.default: {max_workers: 0, resources: {CPU: 2}, node_config: {InstanceType: ecs.n4.large}}
  ray.worker.default: {min_workers: 1, resources: {CPU: 8}, node_config: {InstanceType: ecs.n4.2xlarge}}
head_node: {}
worker_nodes: {}
""",
    "external, default names": """
cluster_name: ours
provider: {type: external, module: a.b.C}
available_node_types:
  ray.head.default: {resources: {CPU: 0}, node_config: {}}
  ray.worker.default: {resources: {CPU: 8}, node_config: {}}
""",
}
HEADS = {
    "aws, the old form": "ray-legacy-head-node-type",
    "gcp, only the provider": "ray_head_default",
    "gcp, default names and no head_node_type": "ray_head_default",
    "gcp, a TPU": "ray_head_default",
    "local, a coordinator and empty types": "local.cluster.node",
    "local, listed computers": "local.cluster.node",
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_rays_repository_is_read_with_its_head(name):
    spec = to_spec(parsed(FORMS[name]))
    assert spec.head_node_type == HEADS.get(name, "ray.head.default")


@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith(("aws", "gcp", "azure"))])
def test_rays_files_for_the_clouds_can_be_planned_with_as_they_are(name):
    spec = to_spec(parsed(FORMS[name]))
    wanted = PlannedDemand(demands=(Demand(shape=Resources.of(CPU=1), count=2, name="work"),))
    answer = what_if(spec, wanted)
    assert [outcome.unplaced for outcome in answer.packing.demands] == [0]


def test_a_default_head_that_is_not_among_the_files_types_is_no_default():
    text = "provider: {type: aws}\navailable_node_types:\n  a: {resources: {}}\n"
    assert parsed(text).head_type == "a"
    assert_line("config", "two types and no head", refusal(text + "  b: {resources: {}}\n"))


def test_of_a_key_that_is_there_twice_the_error_says_which_one_ray_takes():
    said = refusal("cluster_name: a\nprovider: {type: aws}\nmax_workers: 1\nmax_workers: 2\n")
    assert_line("config", "key twice", said)


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "ConfigMap"])
def test_a_kubernetes_object_is_recognised(kind):
    text = f"apiVersion: ray.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{rayVersion: 2.60.0}}\n"
    assert_line("config", f"Kubernetes object, {kind}", refusal(text))
    assert_line("config", f"Kubernetes objects, {kind}", refusal(f"{text}---\nkind: ConfigMap\n"))
