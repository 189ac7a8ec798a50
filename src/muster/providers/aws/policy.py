"""Writes the least policies: of who runs `muster up`, and of the head that buys workers. Pure; no boto3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from muster.providers.aws.names import resource_name
from muster.providers.aws.tags import TAG_CLUSTER, TAG_MADE_BY

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


def partition_of(region: str) -> str:
    """Returns the first part of ARNs in a region.

    Example:
        >>> partition_of("cn-north-1"), partition_of("eu-west-1")
        ('aws-cn', 'aws')
    """
    return next((found for start, found in _PARTITIONS.items() if region.startswith(start)), "aws")


def assumed_by_ec2(region: str) -> dict[str, Any]:
    """Returns the trust policy of the head's role."""
    service = EC2[partition_of(region) == "aws-cn"]
    return _policy({"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"})


def ssm_policy(region: str) -> str:
    return f"arn:{partition_of(region)}:iam::aws:policy/AmazonSSMManagedInstanceCore"


def head_policy(cluster_name: str, region: str, passed: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what the head's monitor needs: it launches for its cluster, and changes only what is its own.

    A machine gets the cluster's tag when it is created or not at all: who could add it later could terminate
    machines of others. `passed` are the roles of workers that have an instance profile.
    """
    own, made = {TAG_CLUSTER: cluster_name}, {TAG_MADE_BY: cluster_name}
    anything = f"arn:{partition_of(region)}:ec2:*:*"
    created = {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}
    launched = ("instance", "volume", "network-interface", "spot-instances-request")
    passes = {"StringEquals": {"iam:PassedToService": list(EC2)}}
    return _policy(
        _allow(LOOK),
        {  # all that a launch uses, except for the machine
            "Effect": "Allow",
            "Action": ["ec2:RunInstances", "ec2:CreateFleet"],
            "NotResource": [f"{anything}:instance/*", f"{anything}:fleet/*"],
        },
        _allow(("ec2:RunInstances", "ec2:CreateFleet"), resource=f"{anything}:instance/*", requested=own),
        _allow(("ec2:CreateFleet",), resource=f"{anything}:fleet/*", requested=made),
        _allow(("ec2:CreateLaunchTemplate",), resource=f"{anything}:launch-template/*", requested=made),
        _allow(("ec2:CreateTags",), resource=[f"{anything}:{one}/*" for one in launched], more=created),
        _allow(
            ("ec2:CreateTags",),
            resource=[f"{anything}:fleet/*", f"{anything}:launch-template/*"],
            requested=made,
            more=created,
        ),
        _allow(("ec2:CreateTags", *END), resource=f"{anything}:instance/*", tags=own),
        _allow(("ec2:DeleteLaunchTemplate",), tags=made),
        _allow(("iam:GetInstanceProfile",), resource=_named("instance-profile", cluster_name, region)),
        _service_roles(region),
        *([{**_allow(("iam:PassRole",), resource=list(passed)), "Condition": passes}] if passed else []),
    )


def launcher_policy(cluster_name: str, region: str, passed: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what `muster up` and `muster down --purge` need beside that: the group, the key, the role."""
    role, profile = (_named(kind, cluster_name, region) for kind in ("role", "instance-profile"))
    return _policy(
        *head_policy(cluster_name, region, passed)["Statement"],
        _allow(MAKE),
        _allow(("ec2:CreateTags",), more={"ec2:CreateAction": ["CreateSecurityGroup", "ImportKeyPair"]}),
        _allow(REMOVE, tags={TAG_MADE_BY: cluster_name}),
        _allow(ROLE, resource=[role, profile]),
        _allow(("iam:GetInstanceProfile", "iam:SimulatePrincipalPolicy")),
    )


def policy_text(policy: dict[str, Any]) -> str:
    """Returns a policy as users paste it."""
    return json.dumps(policy, indent=2)


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(
    actions: tuple[str, ...],
    *,
    resource: str | list[str] = "*",
    tags: Mapping[str, str] = MappingProxyType({}),  # that the resource has
    requested: Mapping[str, str] = MappingProxyType({}),  # that the call gives it
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    found: dict[str, Any] = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    equal = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
    equal |= {f"aws:RequestTag/{key}": value for key, value in requested.items()} | dict(more)
    return {**found, "Condition": {"StringEquals": equal}} if equal else found


def _service_roles(region: str) -> dict[str, Any]:
    roles = [f"arn:{partition_of(region)}:iam::*:role/aws-service-role/{one}/*" for one in SERVICES]
    names = {"iam:AWSServiceName": list(SERVICES)}
    return _allow(("iam:CreateServiceLinkedRole",), resource=roles, more=names)


def _named(kind: str, cluster_name: str, region: str) -> str:
    return f"arn:{partition_of(region)}:iam::*:{kind}/{resource_name(cluster_name)}"
