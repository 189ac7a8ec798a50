"""Write the least-privilege policies of the launcher and of the head. Pure; no boto3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.providers.aws.machine_config import TAGGED
from muster.providers.aws.tags import SSM_DOCUMENT, TAG_CLUSTER, TAG_MADE_BY, resource_name

LOOK = (
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeKeyPairs",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
    "ec2:DescribeVpcs",
    "pricing:GetProducts",
    "servicequotas:GetServiceQuota",
    "sts:DecodeAuthorizationMessage",
)
END = ("ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances")
MAKE = (
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CreateSecurityGroup",
    "ec2:ImportKeyPair",
    "ec2:RevokeSecurityGroupIngress",
)
REMOVE = ("ec2:DeleteKeyPair", "ec2:DeleteLaunchTemplate", "ec2:DeleteSecurityGroup")
ROLE = (
    "iam:AddRoleToInstanceProfile",
    "iam:AttachRolePolicy",
    "iam:CreateInstanceProfile",
    "iam:CreateRole",
    "iam:DeleteInstanceProfile",
    "iam:DeleteRole",
    "iam:DeleteRolePolicy",
    "iam:DetachRolePolicy",
    "iam:GetInstanceProfile",
    "iam:GetRole",
    "iam:ListAttachedRolePolicies",
    "iam:ListRolePolicies",
    "iam:PassRole",
    "iam:PutRolePolicy",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
    "iam:TagRole",
)
EC2 = ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")  # the second one is that of the regions in China
SERVICES = ("spot.amazonaws.com", "ec2fleet.amazonaws.com")  # each has a role, made at its first use
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "us-iso-": "aws-iso", "us-isob-": "aws-iso-b"}
_PARTITIONS |= {"eu-isoe-": "aws-iso-e", "us-isof-": "aws-iso-f", "eusc-": "aws-eusc"}


def partition_of(region: str) -> str:
    """Return the first part of ARNs in a region: `aws`, or that of China, GovCloud and others."""
    return next((found for start, found in _PARTITIONS.items() if region.startswith(start)), "aws")


def assumed_by_ec2(region: str) -> dict[str, Any]:
    """Return the trust policy of the head's role."""
    service = EC2[partition_of(region) == "aws-cn"]
    return _policy({"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"})


def ssm_policy(region: str) -> str:
    return f"arn:{partition_of(region)}:iam::aws:policy/AmazonSSMManagedInstanceCore"


def head_policy(cluster_name: str, region: str, passed: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the head's monitor needs: it launches for its cluster, and changes only what is its own.

    A machine gets the cluster's tag when it is created or not at all: who could add it later could terminate
    machines of others. `passed` are the roles of workers that have an instance profile.
    """
    on = f"arn:{partition_of(region)}:ec2:*:*:{{}}/*".format
    own, made = (f"aws:ResourceTag/{tag}" for tag in (TAG_CLUSTER, TAG_MADE_BY))
    gives_own, gives_made = (f"aws:RequestTag/{tag}" for tag in (TAG_CLUSTER, TAG_MADE_BY))
    launch, tagged_at_once = ("ec2:RunInstances", "ec2:CreateFleet"), (*TAGGED, "fleet", "launch-template")
    created = {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}
    profile = role_named(resource_name(cluster_name), region, "instance-profile")
    services = [role_named(f"aws-service-role/{one}/*", region) for one in SERVICES]
    all_else = _allow(launch)  # all that a launch uses, except for the machine
    all_else["NotResource"] = [on("instance"), on("fleet")]
    del all_else["Resource"]
    return _policy(
        _allow(LOOK),
        all_else,
        _allow(launch, on("instance"), {gives_own: cluster_name}),
        _allow(("ec2:CreateFleet",), on("fleet"), {gives_made: cluster_name}),
        _allow(("ec2:CreateLaunchTemplate",), on("launch-template"), {gives_made: cluster_name}),
        _allow(("ec2:CreateTags",), [on(kind) for kind in tagged_at_once], created),
        _allow(("ec2:CreateTags", *END), on("instance"), {own: cluster_name}),
        _allow(("ec2:DeleteLaunchTemplate",), when={made: cluster_name}),
        _allow(("iam:GetInstanceProfile",), profile),
        _allow(("iam:CreateServiceLinkedRole",), services, {"iam:AWSServiceName": list(SERVICES)}),
        *([_allow(("iam:PassRole",), list(passed), {"iam:PassedToService": list(EC2)})] if passed else []),
    )


def launcher_policy(
    cluster_name: str, region: str, passed: Sequence[str] = (), *, uses_ssm: bool = False
) -> dict[str, Any]:
    """Return what `muster up` and `muster down --purge` need beside that: the group, the key, the role.

    `passed` are the roles of all machines. With `uses_ssm`, SSH goes through sessions of Systems Manager.
    """
    own = [role_named(resource_name(cluster_name), region, kind) for kind in ("role", "instance-profile")]
    arn, session = f"arn:{partition_of(region)}:", ("ssm:StartSession",)
    sessions = (
        _allow(session, f"{arn}ssm:*:*:document/{SSM_DOCUMENT}"),
        _allow(session, f"{arn}ec2:*:*:instance/*", {f"ssm:resourceTag/{TAG_CLUSTER}": cluster_name}),
    )
    return _policy(
        *head_policy(cluster_name, region, passed)["Statement"],
        _allow(MAKE),
        _allow(("ec2:CreateTags",), when={"ec2:CreateAction": ["CreateSecurityGroup", "ImportKeyPair"]}),
        _allow(REMOVE, when={f"aws:ResourceTag/{TAG_MADE_BY}": cluster_name}),
        _allow(ROLE, own),
        _allow(("iam:GetInstanceProfile", "iam:SimulatePrincipalPolicy")),
        *(sessions if uses_ssm else ()),
    )


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(
    actions: Sequence[str], resource: str | list[str] = "*", when: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return {**found, "Condition": {"StringEquals": when}} if when else found


def role_named(name: str, region: str, kind: str = "role") -> str:
    return f"arn:{partition_of(region)}:iam::*:{kind}/{name}"
