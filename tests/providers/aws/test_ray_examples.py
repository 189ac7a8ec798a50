"""Ray's 14 examples for AWS, every key in our words: each launches its machines, or names its line.

The wheel has only `defaults.yaml`, which is used as it is. The others have no comments here, and short shell
commands. Ids that a user has to replace are those of things that the server has.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from pathlib import Path

import pytest
from tests.providers.aws.ec2_server import REGION, add_images

from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster
from muster.autoscaler.lifecycle.preflight import preflight
from muster.base.clock import ManualClock
from muster.base.ids import RandomIds
from muster.config.document import Document
from muster.config.to_spec import node_launches
from muster.errors import ConfigError
from muster.providers.aws.account import made_beside, prepare
from muster.providers.aws.provider import AwsParts, AwsProvider
from muster.providers.kind import parse_config

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DISK = "BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: 140}}]"
SPOT = "InstanceMarketOptions: {MarketType: spot}"
COMMANDS = """
file_mounts: {}
cluster_synced_files: []
file_mounts_sync_continuously: false
rsync_exclude: ["**/.git", "**/.git/**"]
rsync_filter: [.gitignore]
initialization_commands: []
setup_commands: [echo set up]
head_setup_commands: []
worker_setup_commands: []
head_start_ray_commands:
  - ray stop
  - ulimit -n 65536; ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - ray stop
  - ulimit -n 65536; ray start --address=$RAY_HEAD_IP:6379 --object-manager-port=8076
"""
FORMS = {
    "development-example": f"""
min_workers: 2
max_workers: 2
upscaling_speed: 1.0
idle_timeout_minutes: 5
head_node: {{InstanceType: m4.16xlarge, ImageId: AMI, DISK}}
worker_nodes: {{InstanceType: m4.16xlarge, ImageId: AMI, DISK, SPOT}}
{COMMANDS}""",
    "example-full": f"""
max_workers: 2
upscaling_speed: 1.0
docker:
  image: rayproject/ray-ml:latest-gpu
  container_name: ray_container
  pull_before_run: true
  run_options: [--ulimit nofile=65536:65536]
idle_timeout_minutes: 5
available_node_types:
  ray.head.default: {{resources: {{}}, node_config: {{InstanceType: m5.large, ImageId: AMI, DISK}}}}
  ray.worker.default:
    min_workers: 0
    max_workers: 2
    resources: {{}}
    node_config: {{InstanceType: m5.large, ImageId: AMI, SPOT}}
head_node_type: ray.head.default
{COMMANDS}head_node: {{}}
worker_nodes: {{}}
""",
    "example-gpu-docker": f"""
max_workers: 2
docker: {{image: rayproject/ray-ml:latest-gpu, container_name: ray_nvidia_docker}}
available_node_types:
  ray.head.gpu: {{resources: {{}}, node_config: {{InstanceType: p2.xlarge, ImageId: AMI, DISK}}}}
  ray.worker.default:
    docker: {{worker_image: rayproject/ray-ml:latest-cpu}}
    min_workers: 1
    max_workers: 2
    resources: {{}}
    node_config: {{InstanceType: m5.large, ImageId: AMI, SPOT}}
head_node_type: ray.head.gpu
upscaling_speed: 1.0
idle_timeout_minutes: 5
{COMMANDS}""",
    "example-head-and-worker-security-group": """
max_worker_nodes: 1
available_node_types:
  ray.head.default: {node_config: {SecurityGroupIds: [GROUP]}}
  ray.worker.default: {node_config: {SecurityGroupIds: [GROUP]}}
""",
    "example-java": f"""
min_workers: 1
max_workers: 1
available_node_types:
  ray.head.default: {{node_config: {{InstanceType: m4.4xlarge, ImageId: AMI, DISK}}}}
  ray.worker.default: {{node_config: {{InstanceType: m4.4xlarge, ImageId: AMI, SPOT}}}}
{COMMANDS}""",
    "example-launch-templates": """
max_workers: 2
available_node_types:
  ray.head.default:
    resources: {}
    node_config:
      LaunchTemplate: {LaunchTemplateId: TEMPLATE, Version: $Latest}
      ImageId: latest_dlami
      InstanceType: m5a.large
  ray.worker.default:
    min_workers: 0
    max_workers: 1
    resources: {}
    node_config:
      LaunchTemplate: {LaunchTemplateName: ExampleLaunchTemplate, Version: 2}
      ImageId: latest_dlami
      InstanceType: m5a.large
head_node_type: ray.head.default
""",
    "example-minimal": """
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}}
  ray.worker.default: {min_workers: 1, max_workers: 4, resources: {}, node_config: {InstanceType: m5.large}}
""",
    "example-ml": f"""
min_workers: 0
max_workers: 0
upscaling_speed: 1.0
docker: {{image: "", container_name: "", pull_before_run: true, run_options: []}}
idle_timeout_minutes: 5
available_node_types:
  ray.head.default: {{node_config: {{InstanceType: m4.16xlarge, ImageId: latest_dlami, DISK}}}}
  ray.worker.default: {{node_config: {{InstanceType: m4.16xlarge, ImageId: latest_dlami}}}}
{COMMANDS}""",
    "example-multi-node-type": """
max_workers: 40
upscaling_speed: 1.0
available_node_types:
  cpu_4_ondemand:
    node_config: {InstanceType: m4.xlarge, ImageId: latest_dlami}
    min_workers: 1
    max_workers: 5
  cpu_16_spot:
    node_config: {InstanceType: m4.4xlarge, ImageId: latest_dlami, SPOT}
    resources: {Custom1: 1, is_spot: 1}
    max_workers: 10
  gpu_1_ondemand:
    node_config: {InstanceType: p2.xlarge, ImageId: latest_dlami}
    resources: {Custom2: 2}
    max_workers: 4
    worker_setup_commands: [pip install tensorflow-gpu]
  gpu_8_ondemand:
    node_config: {InstanceType: p3.8xlarge, ImageId: latest_dlami}
    max_workers: 2
    worker_setup_commands: [pip install tensorflow-gpu]
head_node_type: cpu_4_ondemand
idle_timeout_minutes: 2
""",
    "example-network-interfaces": """
max_workers: 2
available_node_types:
  ray.head.default:
    resources: {}
    node_config:
      NetworkInterfaces:
        - {DeviceIndex: 0, SubnetId: SUBNET, PrivateIpAddress: ADDRESS.77, Groups: [GROUP]}
        - {DeviceIndex: 1, SubnetId: SUBNET, PrivateIpAddress: ADDRESS.78, Groups: [GROUP]}
        - {DeviceIndex: 2, SubnetId: SUBNET, PrivateIpAddress: ADDRESS.79, Groups: [GROUP]}
      ImageId: latest_dlami
      InstanceType: m5.large
  ray.worker.efa:
    min_workers: 0
    max_workers: 1
    resources: {}
    node_config:
      NetworkInterfaces:
        - DeviceIndex: 0
          NetworkCardIndex: 0
          AssociatePublicIpAddress: false
          SubnetId: SUBNET
          Groups: [GROUP]
          InterfaceType: efa
        - DeviceIndex: 1
          NetworkCardIndex: 1
          AssociatePublicIpAddress: false
          SubnetId: SUBNET
          Groups: [GROUP]
          InterfaceType: efa
      ImageId: latest_dlami
      InstanceType: p3dn.24xlarge
  ray.worker.default:
    min_workers: 0
    max_workers: 1
    resources: {}
    node_config:
      NetworkInterfaces:
        - {DeviceIndex: 0, AssociatePublicIpAddress: false, SubnetId: SUBNET, Groups: [GROUP]}
      ImageId: latest_dlami
      InstanceType: m5.large
head_node_type: ray.head.default
""",
    "example-security-group": """
max_workers: 1
""",
    "example-subnets": """
max_workers: 1
head_node: {SubnetIds: [SUBNET]}
worker_nodes: {SubnetIds: [SUBNET]}
""",
    "example-cloudwatch": """
max_workers: 2
available_node_types:
  ray.head.default: {node_config: {InstanceType: c5a.large, ImageId: AMI}, resources: {}}
  ray.worker.default:
    node_config:
      InstanceType: c5a.large
      ImageId: AMI
      IamInstanceProfile: {Name: ray-autoscaler-cloudwatch-v1}
    resources: {}
    min_workers: 0
    max_workers: 2
head_node_type: ray.head.default
""",
}
PORTS = "{FromPort: PORT, ToPort: PORT, IpProtocol: TCP, IpRanges: [{CidrIp: 0.0.0.0/0}]}"
ZONES = f"availability_zone: '{REGION}a,{REGION}b'"
PROVIDER = {
    "example-security-group": "security_group: {GroupName: test_security_group_name, IpPermissions: ["
    f"{PORTS.replace('PORT', '443')}, {PORTS.replace('PORT', '8265')}]}}",
    "example-network-interfaces": "use_internal_ips: true",
    "example-cloudwatch": "cloudwatch: {agent: {config: agent.json, retryer: {max_attempts: 120}}, "
    "dashboard: {name: board, config: board.json}, alarm: {config: alarm.json}}",
    **dict.fromkeys(("example-full", "example-ml"), f"{ZONES}, cache_stopped_nodes: true"),
    **dict.fromkeys(("example-java", "example-gpu-docker"), ZONES),
    "development-example": f"availability_zone: {REGION}a",
}
# Line and key. Ray ignores a key that it does not know; EC2 has no machines of type p2 any more; a machine
# without a type was an m1.small once.
REFUSED = {
    "example-head-and-worker-security-group": (4, "max_worker_nodes"),
    "example-cloudwatch": (2, "provider.cloudwatch"),
    "example-gpu-docker": (7, "p2.xlarge"),
    "example-multi-node-type": (16, "p2.xlarge"),
    "example-subnets": (5, "InstanceType"),
}


@pytest.fixture(scope="module")
def account(ec2_process):
    """Return what stands for the ids that users replace."""
    import boto3

    ec2_process.faults.reset()
    add_images()
    client = boto3.client(
        "ec2",
        endpoint_url=ec2_process.url,
        region_name=REGION,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    (subnet,) = (
        one for one in client.describe_subnets()["Subnets"] if one["AvailabilityZone"] == f"{REGION}c"
    )  # which sells the machines of all examples
    group = client.create_security_group(GroupName="examples", Description="-", VpcId=subnet["VpcId"])
    template = {
        "LaunchTemplateName": "ExampleLaunchTemplate",
        "LaunchTemplateData": {"InstanceType": "m5.large"},
    }
    with contextlib.suppress(client.exceptions.ClientError):  # an earlier fixture may have made it
        client.create_launch_template(**template)
    made = client.create_launch_template_version(**template)
    return {
        "AMI": "ami-00000000",
        "SUBNET": subnet["SubnetId"],
        "ADDRESS": subnet["CidrBlock"].rpartition(".")[0],
        "GROUP": group["GroupId"],
        "TEMPLATE": made["LaunchTemplateVersion"]["LaunchTemplateId"],
        "SPOT": SPOT,
        "DISK": DISK,
    }


def text_of(name: str, account) -> str:
    if name == "defaults":
        found = importlib.util.find_spec("ray")
        if found is None or not found.submodule_search_locations:
            pytest.skip("needs the installed ray, whose defaults.yaml is the input")
        path = Path(found.submodule_search_locations[0]) / "autoscaler" / "aws" / "defaults.yaml"
        return path.read_text(encoding="utf-8").replace("us-west-2", REGION)
    form = FORMS[name]
    for word, value in account.items():
        form = form.replace(word, value)
    more = f", {PROVIDER[name]}" if name in PROVIDER else ""
    provider = f"provider: {{type: aws, region: {REGION}{more}}}"
    return f"cluster_name: {name}\n{provider}\nauth: {{ssh_user: ubuntu}}{form}"


def refusal(text: str, file: Path) -> tuple[int | None, str] | None:
    """Return the line and the text of the first problem that `up` would report; None without one."""
    file.write_text(text)
    context = LaunchContext(file.parent / "clusters", {}, ManualClock(10_000.0), RandomIds())
    try:
        with OpenCluster(context, file) as session:
            found = [one for one in asyncio.run(preflight(session)) if one.is_fatal and one.key]
    except ConfigError as error:
        return error.line, error.path
    return (int(found[0].place.rpartition(":")[2]), found[0].problem) if found else None


@pytest.mark.parametrize("name", ["defaults", *FORMS])
def test_an_example_launches_its_machines_or_the_error_names_its_line(ec2, account, name, tmp_path):
    text = text_of(name, account)
    refused = refusal(text, tmp_path / "example.yaml")
    if name in REFUSED:
        line, word = REFUSED[name]
        assert refused is not None and refused[0] == line and word in refused[1]
        return
    assert refused is None
    config = parse_config(Document(text, "example.yaml"))
    provider = AwsProvider(
        config.provider.settings(), config.cluster_name, parts=AwsParts(clock=ManualClock(10_000.0))
    )
    plan = " ".join(made_beside(config, lambda: provider))
    prepare(config, lambda: provider, lambda step: None)
    for node_type, launch in node_launches(config).items():
        tags = {"ray-node-type": "head" if node_type == config.head_type else "worker"}
        (machine,) = provider.create(f"{name}-{node_type}", launch, {**tags, "ray-user-node-type": node_type})
        listed = provider.calls.ec2("describe_instances", InstanceIds=[machine])
        image = listed["Reservations"][0]["Instances"][0]["ImageId"]
        assert image.startswith("ami-")
        if "latest_dlami" in str(launch.node_config):
            old = "p3dn" in str(launch.node_config)
            assert image == ("ami-00000003" if old else "ami-00000001")  # the newest of its name
            assert image in plan


def test_there_are_fourteen(account):
    assert len({"defaults", *FORMS}) == 14
