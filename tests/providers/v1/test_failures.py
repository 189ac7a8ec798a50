"""What clouds' libraries raise, and what we make of it."""

from __future__ import annotations

import sys

import pytest

from muster.autoscaler import NodeLaunchException
from muster.cluster.model import FailureKind
from muster.errors import CapacityExhausted, ProviderError
from muster.providers.v1.failures import MAX_MESSAGE, kind_of, message_of

K = FailureKind
PRICE_TOO_LOW = (
    "Your Spot request price of 0.01 is lower than the minimum required Spot request fulfillment price"
)
NOT_IN_THIS_ZONE = (
    "Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone (eu-1a)"
)
FRESH_PROFILE = (
    "Value (ray-head) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
)
TOO_RESTRICTIVE = "VM(s) cannot be allocated, because the condition is too restrictive"


class ClientError(Exception):
    """As the library of AWS raises it."""

    def __init__(self, code, text="An error occurred"):
        self.response = {"Error": {"Code": code, "Message": text}}
        super().__init__(text)


class HttpError(Exception):
    """As others raise it: a status, and perhaps a reason."""

    def __init__(self, status, text=""):
        self.status_code = status
        super().__init__(text)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientError("InsufficientInstanceCapacity"), K.CAPACITY),
        (ClientError("InstanceLimitExceeded"), K.QUOTA),
        (ClientError("VcpuLimitExceeded"), K.QUOTA),
        (ClientError("RequestLimitExceeded"), K.THROTTLED),
        (ClientError("UnauthorizedOperation"), K.PERMISSION),
        (ClientError("AuthFailure"), K.PERMISSION),
        (ClientError("InvalidAMIID.NotFound"), K.CONFIG),
        (ClientError("InvalidParameterValue"), K.CONFIG),
        (ClientError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"), K.QUOTA),
        (ClientError("MaxFleetCountExceeded"), K.QUOTA),
        (ClientError("SpotMaxPriceTooLow", PRICE_TOO_LOW), K.CAPACITY),
        (RuntimeError(PRICE_TOO_LOW), K.CAPACITY),
        (ClientError("Unsupported", NOT_IN_THIS_ZONE), K.CAPACITY),
        (ClientError("UnfulfillableCapacity"), K.CAPACITY),
        (ClientError("ReservationCapacityExceeded"), K.CAPACITY),
        (ClientError("InsufficientFreeAddressesInSubnet"), K.CAPACITY),
        (ClientError("PendingVerification", "Your account is currently being verified."), K.PERMISSION),
        (ClientError("OptInRequired", "You are not subscribed to this service."), K.PERMISSION),
        (ClientError("Blocked", "Your account is currently blocked."), K.PERMISSION),
        (ClientError("AuthFailure.ServiceLinkedRoleCreationNotPermitted"), K.PERMISSION),
        (ClientError("InvalidLaunchTemplateId.Malformed"), K.CONFIG),
        (ClientError("InvalidParameterValue", FRESH_PROFILE), K.UNKNOWN),  # known everywhere in a moment
        (ClientError("UnsupportedOperation", "not supported by this AMI"), K.CONFIG),
        (HttpError(409, f"(OverconstrainedAllocationRequest) {TOO_RESTRICTIVE}"), K.CAPACITY),
        (HttpError(409, "Code: OverconstrainedZonalAllocationRequest"), K.CAPACITY),
        (RuntimeError("OverconstrainedAllocationRequest"), K.CAPACITY),
        (HttpError(429), K.THROTTLED),
        (HttpError(403, "Quota 'CPUS' exceeded. Limit: 24.0"), K.QUOTA),
        (HttpError(403), K.PERMISSION),
        (HttpError(400), K.CONFIG),
        (HttpError(500, "internal"), K.UNKNOWN),
        (RuntimeError("ZONE_RESOURCE_POOL_EXHAUSTED"), K.CAPACITY),
        (RuntimeError("rateLimitExceeded"), K.THROTTLED),
        (RuntimeError("SkuNotAvailable"), K.CAPACITY),
        (PermissionError(13, "nope"), K.PERMISSION),
        (NotImplementedError("create_node"), K.CONFIG),
        (NodeLaunchException("Quota", "ask for more", None), K.QUOTA),
        (NodeLaunchException("Sold out", "come back later", None), K.CAPACITY),
        (CapacityExhausted("none left"), K.CAPACITY),
        (ProviderError("no idea"), K.UNKNOWN),
        (ConnectionError("reset by peer"), K.UNKNOWN),
        (SystemExit(1), K.UNKNOWN),
    ],
)
def test_an_error_is_understood_by_its_type_code_or_text(error, kind):
    assert kind_of(error) is kind


def test_what_caused_an_error_is_looked_at_too():
    try:
        try:
            raise ClientError("InsufficientInstanceCapacity")
        except ClientError:
            source = sys.exc_info()
            raise RuntimeError("could not make the machine") from None
    except RuntimeError as error:
        hidden = error
    assert kind_of(NodeLaunchException("Other", "see below", source)) is K.CAPACITY
    assert kind_of(hidden) is K.CAPACITY


def test_causes_that_go_in_circles_end():
    error = RuntimeError("a")
    error.__cause__ = RuntimeError("b")
    error.__cause__.__cause__ = error
    assert kind_of(error) is K.UNKNOWN


def test_a_message_is_one_bounded_line_with_the_category_first():
    assert message_of(NodeLaunchException("Quota", "line one\nline two", None)) == "Quota: line one line two"
    assert message_of(KeyError("zone")) == "KeyError: 'zone'"
    assert message_of(CapacityExhausted("none left")) == "none left"
    assert len(message_of(RuntimeError("x" * 10_000))) == MAX_MESSAGE
