"""The promises of every v1 provider, against a moto server over HTTP; and how each refusal is understood."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.providers.aws.ec2_server import REGION, backend

from muster.cli.main import cli
from muster.cluster.model import FailureKind
from muster.providers.aws.v1_view import AwsNodeProvider
from muster.providers.contract.subject import RefusedOrder
from muster.testing.provider_contract import ProviderContract

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
IMAGE = "ami-03cf127a"
CODES = {
    FailureKind.CAPACITY: "InsufficientInstanceCapacity",
    FailureKind.QUOTA: "VcpuLimitExceeded",
    FailureKind.PERMISSION: "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    FailureKind.CONFIG: "InvalidSubnetID.NotFound",
}


def test_a_check_leaves_no_launch_template(empty_ec2, tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    file = tmp_path / "aws.yaml"
    types = f"{{w: {{resources: {{CPU: 2}}, node_config: {{InstanceType: m5.large, ImageId: {IMAGE}}}}}}}"
    file.write_text(
        f"cluster_name: c\nprovider: {{type: aws, region: {REGION}}}\navailable_node_types: {types}\n"
    )
    words = [
        "provider",
        "check",
        "--config",
        str(file),
        "-y",
        "--several",
        "1",
        "--line",
        "ids that create returns",
    ]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert empty_ec2.faults.calls["CreateLaunchTemplate"] > 0
    assert backend().launch_templates == {}


class TestAwsProvider(ProviderContract):
    node_config = {"InstanceType": "m5.large", "ImageId": IMAGE}  # noqa: RUF012 - as in its base
    crowd = 4
    several = 2
    starts_within_s = 60.0

    @pytest.fixture(autouse=True)
    def server(self, ec2):
        self.faults = ec2.faults

    def make_provider(self, cluster_name):
        return AwsNodeProvider({"region": REGION}, cluster_name)

    def make_refused(self, kind, cluster_name):
        if kind not in CODES:
            return None
        self.faults.stock, self.faults.codes = {"*": 0}, {"*": CODES[kind]}
        return RefusedOrder(self.make_provider(cluster_name))
