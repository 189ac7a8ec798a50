"""Ray's own AWS provider under our adapter, against an AWS in this process (moto): the file is completed,
machines are launched, and a stopped one is started again under its old id.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from muster.config.document import Document
from muster.config.to_spec import node_launches
from muster.providers.background_calls import inline_pools
from muster.providers.batching import submitting
from muster.providers.bootstrap import filled_in
from muster.providers.kind import parse_config
from muster.providers.v1.adapter import V1Adapter
from muster.providers.v1.kind import make_external, usable_class

MODULE = "ray.autoscaler._private.aws.node_provider"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    moto = pytest.importorskip("moto")
    pytest.importorskip(MODULE, reason="Ray's own autoscaler, or boto3, is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of boto3 and of Ray
]
FILE = f"""
cluster_name: mine
provider: {{type: external, module: {MODULE}.AWSNodeProvider, region: us-west-2, disable_node_updaters: true}}
max_workers: 2
auth: {{ssh_user: ubuntu}}
head_node_type: head
available_node_types:
  head:
    resources: {{}}
    node_config:
      InstanceType: m5.large
      ImageId: ami-0a2363a9cff180a64
      IamInstanceProfile: {{Arn: "arn:aws:iam::123456789012:instance-profile/mine"}}
  cpu:
    resources: {{}}
    node_config: {{InstanceType: m5.xlarge, ImageId: ami-0a2363a9cff180a64}}
"""


@pytest.fixture
def aws(tmp_path, monkeypatch):
    (tmp_path / ".ssh").mkdir()
    for name, value in {
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-west-2",
    }.items():
        monkeypatch.setenv(name, value)
    with moto.mock_aws():
        yield


@pytest.mark.usefixtures("aws")
def test_sizes_keys_and_networks_are_filled_in_and_a_stopped_machine_comes_back_as_a_new_one():
    written = parse_config(Document(FILE, "mine.yaml"))
    config = filled_in(written, usable_class(written.provider.settings()))
    cpu = config.available_node_types["cpu"]
    assert cpu.resources["CPU"] == 4
    assert set(cpu.node_config) >= {"KeyName", "SubnetIds", "SecurityGroupIds"}
    assert Path(config.auth.settings()["ssh_private_key"]).is_file()

    provider = submitting(make_external(config.provider.settings(), "mine"))
    launches = node_launches(config)
    port = V1Adapter(provider, lambda: launches, cluster_name="mine", pools=inline_pools())
    port.launch("r-1", {"cpu": 1})
    assert port.poll_launch_failures() == ()
    ((first, machine),) = port.list_instances().items()
    assert (machine.node_type, machine.request_id, machine.launch_hash) == (
        "cpu",
        "r-1",
        launches["cpu"].launch_hash,
    )
    port.terminate("t-1", [first])
    assert (dict(port.list_instances()), port.poll_terminate_failures()) == ({}, ())
    port.launch("r-2", {"cpu": 1})
    assert port.poll_launch_failures() == ()
    assert [(m.cloud_id, m.request_id) for m in port.list_instances().values()] == [(first, "r-2")]
