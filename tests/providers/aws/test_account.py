"""What `up` asks of an account, makes in it and removes again; and what is said of an account that cannot."""

from __future__ import annotations

import re
import stat
import warnings

import pytest
from tests.mistakes.views import assert_line
from tests.providers.aws.ec2_server import REGION

from muster.config.document import Document
from muster.config.to_spec import node_launches
from muster.providers.aws.account import check_account, needed_policy, prepare, purge
from muster.providers.aws.provider import AwsProvider
from muster.providers.kind import parse_config

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
IMAGE = "ami-03cf127a"
FILE = """
cluster_name: c1
provider: {{type: aws, region: {region}{provider}}}
max_workers: 4
head_node_type: head
available_node_types:
  head:
    resources: {{CPU: 2}}
    node_config: {{InstanceType: m5.large, ImageId: {image}{more}}}
"""


def made(provider="", more="", region=REGION, image=IMAGE, types=""):
    text = FILE.format(provider=provider, more=more, region=region, image=image) + types.lstrip("\n")
    config = parse_config(Document(text, "c1.yaml"))
    return AwsProvider(config.provider.settings(), "c1"), config


def told(**changes) -> list[str]:
    """Return what is wrong, each with its fix; a star marks what is fatal."""
    found = check_account(*made(**changes))
    return [f"{'* ' if one.is_fatal else ''}{one.problem}; {one.fix}" for one in found]


def test_an_account_that_can_be_used_has_nothing_to_say(ec2):
    assert told() == []


def test_without_credentials_the_fix_is_said_and_nothing_else_is_asked(ec2, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (found,) = check_account(*made())
    assert found.is_fatal
    assert_line("providers", "aws without credentials", found.problem)
    assert ec2.faults.calls.total() == 0


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("ExpiredToken", "your AWS credentials have expired: log in again"),
        ("InvalidClientTokenId", "AWS does not know these credentials: check the profile or the keys"),
    ],
)
def test_credentials_that_are_refused_are_said_with_the_fix(ec2, code, fix):
    ec2.faults.refused["GetCallerIdentity"] = code, "The security token included in the request is invalid"
    (line,) = told()
    assert line.startswith(f"* {code}") and fix in line


def test_a_missing_right_is_named_with_the_line_of_the_policy_that_gives_it(ec2):
    ec2.faults.denied |= {"RunInstances", "CreateFleet"}
    run, fleet = told()
    assert "UnauthorizedOperation" in run and '"Action": "ec2:RunInstances"' in run
    assert '"Action": "ec2:CreateFleet"' in fleet and "RunInstances" not in fleet


def test_a_size_that_the_machine_does_not_have_is_said(ec2):
    text = FILE.format(provider="", more="", region=REGION, image=IMAGE).replace("CPU: 2", "CPU: 64")
    config = parse_config(Document(text, "c1.yaml"))
    found = check_account(AwsProvider(config.provider.settings(), "c1"), config)
    assert [one for one in found if re.search(r" head: .* 64 CPUs, .* m5\.large .* 2$", one.problem)]


def test_a_region_that_is_not_one_is_refused_with_the_nearest(ec2):
    (line,) = told(region="us-east-11")
    assert "'us-east-11' " in line and " 'us-east-1'?" in line
    assert ec2.faults.calls.total() == 0


def test_an_image_that_is_not_there_and_one_for_other_processors(ec2):
    assert any("ami-0123456789" in line for line in told(image="ami-0123456789"))
    text = FILE.format(provider="", more="", region=REGION, image=IMAGE).replace("m5.large", "m6g.large")
    config = parse_config(Document(text, "c1.yaml"))
    found = check_account(AwsProvider(config.provider.settings(), "c1"), config)
    assert [one.problem for one in found if re.search(r" x86_64, .* m6g\.large .* arm64", one.problem)]


def test_subnets_that_are_not_there_or_have_no_addresses(empty_ec2, monkeypatch):
    assert "subnet-0000" in told(more=", SubnetIds: [subnet-0000]")[0]
    from moto.ec2.models import ec2_backends

    for subnet in ec2_backends["123456789012"][REGION].describe_subnets():
        monkeypatch.setattr(subnet, "_available_ip_addresses", 0)
    assert [one for one in told() if re.match(r"\* .* head: subnets .* 0 .* 1\b", one)]


def test_a_key_pair_of_another_account_is_said(ec2):
    (line, *_) = told(more=", KeyName: theirs")
    assert line.startswith("* ") and " head: " in line and " theirs " in line


def test_a_quota_of_zero_is_said(ec2, monkeypatch):
    monkeypatch.setattr("muster.providers.aws.preflight.AccountCheck._quota", lambda self, code: 0.0)
    (line,) = told()
    assert re.match(r"\* .* L-1216C47A .* 0 vCPUs, .* 2; ", line)


def test_group_key_and_profile_are_made_once_used_by_machines_and_removed_again(empty_ec2, tmp_path):
    ec2 = empty_ec2
    provider, config = made()
    for _ in range(2):
        prepare(config, lambda: provider, lambda step: None)
    calls = ec2.faults.calls
    assert (calls["CreateSecurityGroup"], calls["ImportKeyPair"], calls["CreateInstanceProfile"]) == (1, 1, 1)
    key = tmp_path / ".ssh" / "muster-c1-us-east-1.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    tags = {"ray-node-type": "head", "ray-user-node-type": "head"}
    (node,) = provider.create("up-1", node_launches(config)["head"], tags)
    (item,) = provider.calls.ec2("describe_launch_templates")["LaunchTemplates"]
    data = provider.calls.ec2("describe_launch_template_versions", LaunchTemplateId=item["LaunchTemplateId"])
    sent = data["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert sent["KeyName"] == "muster-c1-us-east-1"
    assert sent["IamInstanceProfile"] == {"Name": "muster-c1"}
    assert sent["MetadataOptions"]["HttpTokens"] == "required"
    assert sent["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert len(sent["SecurityGroupIds"]) == 1
    provider.terminate_machines([node])
    provider.clean_up()
    assert purge(provider, config, lambda step: None) == []
    assert not key.exists()
    left = provider.calls
    assert left.ec2("describe_launch_templates")["LaunchTemplates"] == []
    assert left.ec2("describe_key_pairs")["KeyPairs"] == []
    assert left.call("iam", "list_roles", {})["Roles"] == []
    assert left.call("iam", "list_instance_profiles", {})["InstanceProfiles"] == []
    names = [one["GroupName"] for one in left.ec2("describe_security_groups")["SecurityGroups"]]
    assert "muster-c1" not in names


def test_what_others_have_made_is_not_removed(empty_ec2):
    provider, config = made()
    provider.calls.ec2("create_security_group", GroupName="muster-c1", Description="mine")
    provider.calls.call("iam", "create_role", {"RoleName": "muster-c1", "AssumeRolePolicyDocument": "{}"})
    assert purge(provider, config, lambda step: None) == []
    names = [one["GroupName"] for one in provider.calls.ec2("describe_security_groups")["SecurityGroups"]]
    assert "muster-c1" in names
    assert [one["RoleName"] for one in provider.calls.call("iam", "list_roles", {})["Roles"]] == ["muster-c1"]


def test_with_ssm_no_port_is_opened(empty_ec2):
    ec2 = empty_ec2
    provider, config = made(provider=", use_ssm: true")
    ec2.faults.accepted.add("AttachRolePolicy")  # moto has none of AWS's own policies
    prepare(config, lambda: provider, lambda step: None)
    (group,) = (
        one
        for one in provider.calls.ec2("describe_security_groups")["SecurityGroups"]
        if one["GroupName"] == "muster-c1"
    )
    assert [rule["IpProtocol"] for rule in group["IpPermissions"]] == ["-1"]
    assert ec2.faults.calls["AttachRolePolicy"] == 1


def test_the_policy_that_is_printed_names_every_call_that_is_made(empty_ec2):
    ec2 = empty_ec2
    import json

    provider, config = made()
    prepare(config, lambda: provider, lambda step: None)
    check_account(provider, config)
    tags = {"ray-node-type": "head", "ray-user-node-type": "head"}
    (node,) = provider.create("up-1", node_launches(config)["head"], tags)
    provider.set_tags(node, {"a": "b"})
    provider.terminate_machines([node])
    provider.clean_up()
    purge(provider, config, lambda step: None)
    allowed = {
        action.partition(":")[2]
        for statement in json.loads(needed_policy(config))["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    free = {
        "GetCallerIdentity",
        "/",
    }  # everybody may ask who they are; the rest are calls without a name here
    assert {call for call in ec2.faults.calls if call} - allowed - free == set()


def test_credentials_in_the_file_are_refused():
    from muster.errors import ConfigError

    with warnings.catch_warnings(), pytest.raises(ConfigError) as refused:
        AwsProvider({"region": REGION, "aws_credentials": {"aws_access_key_id": "x"}}, "c1")
    assert_line("providers", "aws credentials in the file", str(refused.value))
