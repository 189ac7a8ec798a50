"""Read the error codes of AWS: what kind of failure a code is, and what the user can do about it. Pure.

The table is used for whole calls (`refusal`) and for the single overrides of a fleet. What it does not have
is judged by the words of the message, as for any provider.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from muster.cluster.model import FailureKind
from muster.errors import (
    CapacityExhausted,
    ProviderDenied,
    ProviderError,
    ProviderMisconfigured,
    QuotaExceeded,
    Throttled,
)
from muster.providers.v1.failures import kind_of_text

_K = FailureKind
_FRESH_PROFILE = re.compile(
    r"(InvalidParameterValue|InvalidLaunchTemplate): .*iam ?instance ?profile", re.IGNORECASE | re.DOTALL
)
MAX_TEXT = 300

KINDS: dict[str, FailureKind] = {
    **dict.fromkeys(
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacityOnHost",
            "InsufficientFreeAddressesInSubnet",  # of that subnet only
            "UnfulfillableCapacity",
            "Unsupported",  # not in this zone: another may have it
            "ReservationCapacityExceeded",
            "SpotMaxPriceTooLow",
            "MaxSpotPriceTooLow",
        ),
        _K.CAPACITY,
    ),
    **dict.fromkeys(
        (
            "VcpuLimitExceeded",
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "MaxFleetCountExceeded",
            "MaxSpotFleetRequestCountExceeded",
            "VolumeLimitExceeded",
            "NetworkInterfaceLimitExceeded",
            "AddressLimitExceeded",
            "LaunchTemplateLimitExceeded",
            "LaunchTemplateVersionLimitExceeded",
        ),
        _K.QUOTA,
    ),
    **dict.fromkeys(
        ("RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException", "SlowDown"),
        _K.THROTTLED,
    ),
    **dict.fromkeys(
        (
            "UnauthorizedOperation",
            "AccessDenied",
            "AccessDeniedException",
            "AuthFailure",
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "Blocked",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "InvalidClientTokenId",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
            "OptInRequired",
            "PendingVerification",
        ),
        _K.PERMISSION,
    ),
    **dict.fromkeys(
        (
            "InvalidAMIID.NotFound",
            "InvalidAMIID.Malformed",
            "InvalidAMIID.Unavailable",
            "InvalidBlockDeviceMapping",
            "InvalidGroup.NotFound",
            "InvalidInstanceType",
            "InvalidInstanceType.NotFound",
            "InvalidKeyPair.NotFound",
            "InvalidParameterCombination",
            "InvalidParameterValue",
            "InvalidSubnetID.NotFound",
            "InvalidVpcID.NotFound",
            "MissingParameter",
            "UnknownParameter",
        ),
        _K.CONFIG,
    ),
}
# A mismatch means that the same token was used with other parameters; `fleet` looks at what it made.
MISMATCH = frozenset({"IdempotentParameterMismatch", "IdempotentInstanceTerminated"})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
WRONG_KEY = frozenset(
    {"InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException", "AuthFailure"}
)
DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
# Another answer of AWS itself, not of the account: the outcome is not known, and the call may be repeated.
SERVER = frozenset(
    {"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestTimeout"}
)

CLASSES: dict[FailureKind, type[ProviderError]] = {
    _K.CAPACITY: CapacityExhausted,
    _K.QUOTA: QuotaExceeded,
    _K.THROTTLED: Throttled,
    _K.PERMISSION: ProviderDenied,
    _K.CONFIG: ProviderMisconfigured,
    _K.UNKNOWN: ProviderError,
}


def kind_of_code(code: str, message: str = "") -> FailureKind:
    """Return what a code means for the planner."""
    if is_fresh_profile(f"{code}: {message}"):
        return _K.UNKNOWN
    if code in KINDS:
        return KINDS[code]
    if code.startswith("InvalidLaunchTemplate"):
        return _K.CONFIG
    return kind_of_text(f"{code} {message}")


def is_fresh_profile(text: str) -> bool:
    """Return whether a refusal is about an instance profile that EC2 does not know everywhere yet."""
    return _FRESH_PROFILE.match(text) is not None


def refusal(code: str, message: str, operation: str, service: str = "ec2") -> ProviderError:
    """Return the error of a call that AWS refused: one sentence with the cause and the fix."""
    kind = kind_of_code(code, message)
    return CLASSES[kind](refusal_text(code, message, f"{service}:{operation}"))


def refusal_text(code: str, message: str, action: str) -> str:
    """Return the sentence; `action` is as a policy names it, like `ec2:CreateFleet`."""
    said = " ".join(message.split())[:MAX_TEXT]
    found = next((fix for codes, fix in _FIXES if code in codes), None)
    fix = "" if found is None else found(message, action)
    return f"{code}: {said}; {fix}" if fix else f"{code}: {said}"


_Fix = Callable[[str, str], str]  # from the message and the action


def _denied(message: str, action: str) -> str:
    wanted = "iam:PassRole" if "iam:PassRole" in message else action
    named = re.search(r"not authorized to perform:? ([a-z0-9-]+:[A-Za-z]+)", message)
    wanted = named[1] if named else wanted
    return f'add {{"Effect": "Allow", "Action": "{wanted}", "Resource": "*"}} to the policy of who asks'


_FIXES: tuple[tuple[frozenset[str], _Fix], ...] = (
    (DENIED, _denied),
    (
        EXPIRED,
        lambda message, action: (
            "your AWS credentials have expired: log in again (`aws sso login`, or new keys)"
        ),
    ),
    (WRONG_KEY, lambda message, action: "AWS does not know these credentials: check the profile or the keys"),
    (
        frozenset({"AuthFailure.ServiceLinkedRoleCreationNotPermitted"}),
        lambda message, action: (
            "spot needs a role once per account: "
            "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`"
        ),
    ),
    (
        frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable"}),
        lambda message, action: "give an ImageId of this region: images have another id in each region",
    ),
    (
        frozenset({"InvalidKeyPair.NotFound"}),
        lambda message, action: (
            "give a KeyName of this account and region, or leave it out and muster makes one"
        ),
    ),
    (
        frozenset({"InvalidSubnetID.NotFound", "InvalidGroup.NotFound", "InvalidVpcID.NotFound"}),
        lambda message, action: (
            "give ids of this account and region, or leave them out and muster finds some"
        ),
    ),
    (
        frozenset({"InsufficientFreeAddressesInSubnet"}),
        lambda message, action: "give more subnets, or larger ones",
    ),
    (
        frozenset(code for code, kind in KINDS.items() if kind is _K.QUOTA),
        lambda message, action: (
            "ask for more in Service Quotas (Amazon EC2), or use fewer or smaller machines"
        ),
    ),
)
