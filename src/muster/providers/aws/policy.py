"""Writes the least policies: of who runs `muster up`, and of the head that buys workers. Pure; no boto3."""

from __future__ import annotations

import json
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
BUY = ("ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:CreateTags", "ec2:RunInstances")
END = ("ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances")
MAKE = (
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CreateSecurityGroup",
    "ec2:ImportKeyPair",
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
ASSUMED_BY_EC2 = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}
SSM_POLICY = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"


def head_policy(cluster_name: str) -> dict[str, Any]:
    """Returns what the head's monitor needs: it buys for its cluster, and ends only what is its own."""
    return _policy(
        _allow(LOOK),
        _allow(BUY),
        _allow(END, cluster=(TAG_CLUSTER, cluster_name)),
        _allow(("ec2:DeleteLaunchTemplate",), cluster=(TAG_MADE_BY, cluster_name)),
        _allow(("iam:GetInstanceProfile",), resource=_named("instance-profile", cluster_name)),
    )


def launcher_policy(cluster_name: str) -> dict[str, Any]:
    """Returns what `muster up` and `muster down --purge` need beside that: the group, the key, the role."""
    role, profile = _named("role", cluster_name), _named("instance-profile", cluster_name)
    return _policy(
        *head_policy(cluster_name)["Statement"],
        _allow(MAKE),
        _allow(REMOVE, cluster=(TAG_MADE_BY, cluster_name)),
        {"Effect": "Allow", "Action": list(ROLE), "Resource": [role, profile]},
        {
            "Effect": "Allow",
            "Action": "iam:CreateServiceLinkedRole",
            "Resource": "*",
            "Condition": {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
        },
    )


def policy_text(policy: dict[str, Any]) -> str:
    """Returns a policy as users paste it."""
    return json.dumps(policy, indent=2)


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(
    actions: tuple[str, ...], *, resource: str = "*", cluster: tuple[str, str] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    if cluster is not None:
        found["Condition"] = {"StringEquals": {f"aws:ResourceTag/{cluster[0]}": cluster[1]}}
    return found


def _named(kind: str, cluster_name: str) -> str:
    return f"arn:aws:iam::*:{kind}/{resource_name(cluster_name)}"
