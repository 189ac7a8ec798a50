"""What the head of a cluster may do in an account, and what it may not: a simulation of its policy."""

from __future__ import annotations

import json
from pathlib import Path

import botocore
import pytest
from tests.providers.aws.policy_evaluator import is_allowed

from muster.config.document import Document
from muster.providers.aws.account import needed_policy
from muster.providers.aws.policy import assumed_by_ec2, head_policy, partition_of, ssm_policy
from muster.providers.kind import parse_config

WORKERS = "arn:aws:iam::123456789012:role/workers"
EC2 = "arn:aws:ec2:us-east-1:123456789012"
OWN, OTHER = "c1", "c2"
SPOT = "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"


def requested(cluster: str, tag: str = "ray-cluster-name") -> dict[str, str]:
    return {f"aws:RequestTag/{tag}": cluster}


def has(cluster: str, tag: str = "ray-cluster-name") -> dict[str, str]:
    return {f"aws:ResourceTag/{tag}": cluster}


CREATED = {"ec2:CreateAction": "RunInstances"}
MUST = {
    "list its machines": ("ec2:DescribeInstances", "*", {}),
    "launch a machine with its tag": ("ec2:RunInstances", f"{EC2}:instance/*", requested(OWN)),
    "use any image": ("ec2:RunInstances", "arn:aws:ec2:us-east-1::image/ami-1", {}),
    "use a subnet for a fleet": ("ec2:CreateFleet", f"{EC2}:subnet/subnet-1", {}),
    "create a fleet": ("ec2:CreateFleet", f"{EC2}:fleet/*", requested(OWN, "muster-cluster")),
    "create a template": (
        "ec2:CreateLaunchTemplate",
        f"{EC2}:launch-template/*",
        requested(OWN, "muster-cluster"),
    ),
    "tag a machine that it creates": ("ec2:CreateTags", f"{EC2}:instance/i-1", {**CREATED, **requested(OWN)}),
    "tag a volume that it creates": ("ec2:CreateTags", f"{EC2}:volume/vol-1", CREATED),
    "tag its own machine": ("ec2:CreateTags", f"{EC2}:instance/i-1", has(OWN)),
    "terminate its own machine": ("ec2:TerminateInstances", f"{EC2}:instance/i-1", has(OWN)),
    "give workers their role": ("iam:PassRole", WORKERS, {"iam:PassedToService": "ec2.amazonaws.com"}),
    "make the role of spot": (
        "iam:CreateServiceLinkedRole",
        SPOT,
        {"iam:AWSServiceName": "spot.amazonaws.com"},
    ),
}
MUST_NOT = {
    "terminate another cluster's machine": ("ec2:TerminateInstances", f"{EC2}:instance/i-2", has(OTHER)),
    "terminate a machine of nobody": ("ec2:TerminateInstances", f"{EC2}:instance/i-2", {}),
    "claim another's machine by a tag": (
        "ec2:CreateTags",
        f"{EC2}:instance/i-2",
        {**has(OTHER), **requested(OWN)},
    ),
    "claim a machine of nobody by a tag": ("ec2:CreateTags", f"{EC2}:instance/i-2", requested(OWN)),
    "launch a machine without its tag": ("ec2:RunInstances", f"{EC2}:instance/*", requested(OTHER)),
    "give workers another role": (
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/admin",
        {"iam:PassedToService": "ec2.amazonaws.com"},
    ),
    "give its workers' role to another service": (
        "iam:PassRole",
        WORKERS,
        {"iam:PassedToService": "lambda.amazonaws.com"},
    ),
    "change its own policy": ("iam:PutRolePolicy", "arn:aws:iam::123456789012:role/muster-c1", {}),
}


@pytest.fixture(scope="module")
def policy():
    return json.loads(json.dumps(head_policy(OWN, "us-east-1", [WORKERS])))


def test_the_policy_allows_what_the_head_must_do_and_nothing_of_what_it_must_not(policy):
    assert (len(MUST), len(MUST_NOT)) == (12, 8)
    wrong = [name for name, asked in MUST.items() if not is_allowed(policy, *asked)]
    wrong += [name for name, asked in MUST_NOT.items() if is_allowed(policy, *asked)]
    assert wrong == []


def test_a_head_whose_workers_have_no_role_passes_none():
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert not is_allowed(head_policy(OWN, "us-east-1"), "iam:PassRole", WORKERS, passed)


LAUNCHED = """
cluster_name: c1
provider: {type: aws, region: us-east-1, use_ssm: true}
available_node_types:
  head: {resources: {CPU: 2}, node_config: {InstanceType: m5.large, IamInstanceProfile: {Name: heads}}}
  worker: {resources: {CPU: 2}, node_config: {InstanceType: m5.large, IamInstanceProfile: {Name: workers}}}
head_node_type: head
"""


def test_whoever_runs_up_may_pass_every_role_of_the_file_and_open_its_sessions():
    printed = json.loads(needed_policy(parse_config(Document(LAUNCHED, "c1.yaml"))))
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    roles = [WORKERS.replace("workers", name) for name in ("heads", "workers", "others")]
    assert [is_allowed(printed, "iam:PassRole", role, passed) for role in roles] == [True, True, False]
    document = "arn:aws:ssm:us-east-1::document/AWS-StartSSHSession"
    places = [
        (document, {}),
        *((f"{EC2}:instance/i-1", {"ssm:resourceTag/ray-cluster-name": one}) for one in (OWN, OTHER)),
    ]
    assert [is_allowed(printed, "ssm:StartSession", *place) for place in places] == [True, True, False]
    without = json.loads(
        needed_policy(parse_config(Document(LAUNCHED.replace(", use_ssm: true", ""), "c1.yaml")))
    )
    assert not any(is_allowed(without, "ssm:StartSession", *place) for place in places)


@pytest.mark.parametrize(
    ("region", "partition", "service"),
    [
        ("cn-north-1", "aws-cn", "ec2.amazonaws.com.cn"),
        ("us-gov-west-1", "aws-us-gov", "ec2.amazonaws.com"),
        ("eu-west-1", "aws", "ec2.amazonaws.com"),
    ],
)
def test_names_are_those_of_the_regions_partition(region, partition, service):
    machine = f"arn:{partition}:ec2:{region}:123456789012:instance/i-1"
    assert is_allowed(head_policy(OWN, region), "ec2:TerminateInstances", machine, has(OWN))
    assert assumed_by_ec2(region)["Statement"][0]["Principal"] == {"Service": service}
    assert ssm_policy(region).startswith(f"arn:{partition}:")
    assert f'"arn:{partition}:' in json.dumps(head_policy(OWN, region))


def test_every_partition_that_boto3_knows_is_known():
    found = json.loads((Path(botocore.__file__).parent / "data" / "partitions.json").read_text())
    listed = [(region, one["id"]) for one in found["partitions"] for region in one["regions"]]
    regions = {region: partition for region, partition in listed if not region.endswith("-global")}
    assert len(set(regions.values())) >= 6
    assert {region: partition_of(region) for region in regions} == regions


def test_the_policy_fits_into_a_role():
    """AWS allows 10,240 characters without spaces for the inline policies of a role."""
    roles = [f"arn:aws:iam::123456789012:role/{'w' * 40}{number}" for number in range(20)]
    assert len(json.dumps(head_policy("c" * 50, "us-gov-west-1", roles)).replace(" ", "")) < 10_240
