"""What AWS says, and what muster makes of it."""

from __future__ import annotations

import pytest

from muster.cluster.model import FailureKind
from muster.errors import CapacityExhausted, ProviderDenied, QuotaExceeded, Throttled
from muster.providers.aws.errors import kind_of_code, refusal

_K = FailureKind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", _K.CAPACITY),
        ("UnfulfillableCapacity", _K.CAPACITY),
        ("Unsupported", _K.CAPACITY),
        ("ReservationCapacityExceeded", _K.CAPACITY),
        ("InsufficientFreeAddressesInSubnet", _K.CAPACITY),
        ("VcpuLimitExceeded", _K.QUOTA),
        ("MaxSpotInstanceCountExceeded", _K.QUOTA),
        ("MaxFleetCountExceeded", _K.QUOTA),
        ("RequestLimitExceeded", _K.THROTTLED),
        ("UnauthorizedOperation", _K.PERMISSION),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", _K.PERMISSION),
        ("ExpiredToken", _K.PERMISSION),
        ("InvalidLaunchTemplateName.NotFoundException", _K.CONFIG),
        ("InvalidAMIID.NotFound", _K.CONFIG),
        ("InvalidParameterValue", _K.CONFIG),
        ("SomethingNew", _K.UNKNOWN),
        ("NewCapacityProblem", _K.CAPACITY),
    ],
)
def test_a_code_has_a_kind(code, kind):
    assert kind_of_code(code) is kind


def test_a_fresh_instance_profile_is_no_mistake_of_the_file():
    message = "Value (muster-c1) for parameter iamInstanceProfile.name is invalid."
    assert kind_of_code("InvalidParameterValue", message) is _K.UNKNOWN


@pytest.mark.parametrize(
    ("code", "message", "operation", "kind", "told"),
    [
        (
            "UnauthorizedOperation",
            "You are not authorized to perform this operation.",
            "CreateFleet",
            ProviderDenied,
            '"Action": "ec2:CreateFleet"',
        ),
        (
            "UnauthorizedOperation",
            "User: arn:aws:iam::1:user/me is not authorized to perform: iam:PassRole on resource: x",
            "RunInstances",
            ProviderDenied,
            '"Action": "iam:PassRole"',
        ),
        (
            "ExpiredToken",
            "The security token is expired",
            "DescribeInstances",
            ProviderDenied,
            "log in again",
        ),
        (
            "AuthFailure",
            "AWS was not able to validate",
            "DescribeInstances",
            ProviderDenied,
            "check the profile",
        ),
        ("VcpuLimitExceeded", "0 vCPUs", "RunInstances", QuotaExceeded, "Service Quotas"),
        ("InsufficientFreeAddressesInSubnet", "none", "RunInstances", CapacityExhausted, "give more subnets"),
        ("RequestLimitExceeded", "slow", "RunInstances", Throttled, "slow"),
    ],
)
def test_a_refusal_is_one_sentence_with_what_to_do(code, message, operation, kind, told):
    error = refusal(code, message, operation)
    assert type(error) is kind
    assert told in str(error) and "\n" not in str(error)
