"""Calls that moto does not have, or does not check, are compared with AWS's own description of its services.

botocore's Stubber refuses parameters and answers that the service model does not have.
"""

from __future__ import annotations

import json
import shlex

import pytest

from muster.base.clock import ManualClock
from muster.cluster.model import FailureKind
from muster.providers.aws import prices
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.defaults import ClusterDefaults
from muster.providers.aws.fleet import FleetBuyer, FleetRequest
from muster.providers.aws.machine_config import LaunchKeys, read_config
from muster.providers.aws.places import PurchaseTarget, SoldOut, Subnet
from muster.providers.aws.preflight import AccountCheck, CheckedType
from muster.providers.aws.sizes import InstanceSizes, read_size
from muster.providers.aws.tags import SSM_PROXY

stub = pytest.importorskip("botocore.stub", reason="boto3 is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
REGION, TOKEN = "us-east-1", "muster-0123456789"
SUBNET = Subnet(subnet_id="subnet-1", zone="us-east-1a", vpc="vpc-1", free=9, is_public=True)
BLOCK = {
    "InstanceType": "p5.48xlarge",
    "ImageId": "ami-1",
    "InstanceMarketOptions": {"MarketType": "capacity-block"},
    "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
}
GROUP = {
    "InstanceType": "m5.large",
    "ImageId": "ami-1",
    "CapacityReservationSpecification": {
        "CapacityReservationTarget": {
            "CapacityReservationResourceGroupArn": "arn:aws:resource-groups:us-east-1:1:group/g"
        }
    },
}


@pytest.fixture
def calls(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    return AwsCalls(REGION, ManualClock())


@pytest.fixture
def stubbed(calls):
    """Return a function that says what a service is asked next, and answers; all of it must be asked."""
    made = {}

    def expect(service, operation, answer, parameters):
        if service not in made:
            made[service] = stub.Stubber(calls.wire.client(service))
            made[service].activate()
        made[service].add_response(operation, answer, parameters)

    yield expect
    for one in made.values():
        one.assert_no_pending_responses()
        one.deactivate()


def keys(calls):
    return LaunchKeys(
        calls.wire.members_of("RunInstancesRequest"), calls.wire.members_of("RequestLaunchTemplateData")
    )


def order(calls, node_config, market, count=2):
    config = read_config(node_config, keys(calls))
    place = PurchaseTarget(machine_type=config.machine_types[0], subnet=SUBNET, market=market, offer="o")
    return FleetRequest(
        request_id="r-1",
        node_type="w",
        config=config,
        settings=dict(config.settings),
        targets=(place,),
        tags={"ray-node-name": "n"},
        count=count,
        token=TOKEN,
        is_fleet=market != "reserved",
    )


@pytest.mark.parametrize(("node_config", "market"), [(BLOCK, "capacity-block"), (GROUP, "")])
def test_machines_of_a_reservation_and_of_a_capacity_block_are_asked_for_as_ec2_describes_it(
    calls, stubbed, node_config, market
):
    asked = {
        "ImageId": "ami-1",
        "InstanceType": node_config["InstanceType"],
        "CapacityReservationSpecification": node_config["CapacityReservationSpecification"],
        "SubnetId": "subnet-1",
        "MinCount": 1,
        "MaxCount": 2,
        "ClientToken": stub.ANY,
        "TagSpecifications": stub.ANY,
        **({"InstanceMarketOptions": {"MarketType": market}} if market else {}),
    }
    machines = [{"InstanceId": f"i-{n}", "CapacityReservationId": "cr-1"} for n in (1, 2)]
    stubbed("ec2", "run_instances", {"Instances": machines}, asked)
    buyer = FleetBuyer(calls, "c1", SoldOut(calls.clock), calls.clock)
    made, failures = buyer.buy(order(calls, node_config, "reserved"))
    assert (sorted(made), failures) == (["i-1", "i-2"], [])


def test_a_spot_fleet_is_asked_for_as_ec2_describes_it(calls, stubbed):
    stubbed("ec2", "create_launch_template", {"LaunchTemplate": {"LaunchTemplateId": "lt-1"}}, None)
    refused = {"LaunchTemplateAndOverrides": {"Overrides": {"SubnetId": "subnet-1"}}}
    refused |= {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "none", "Lifecycle": "spot"}
    overrides = {"Overrides": {"InstanceType": "m5.large", "SubnetId": "subnet-1"}}
    made = {"LaunchTemplateAndOverrides": overrides, "InstanceIds": ["i-1"], "InstanceType": "m5.large"}
    answer = {"FleetId": "fleet-1", "Instances": [made], "Errors": [refused]}
    stubbed("ec2", "create_fleet", answer, None)
    buyer = FleetBuyer(calls, "c1", SoldOut(calls.clock), calls.clock)
    launched, failures = buyer.buy(order(calls, {"InstanceType": "m5.large", "ImageId": "ami-1"}, "spot"))
    assert list(launched) == ["i-1"]
    assert [one.kind for one in failures] == [FailureKind.CAPACITY]


def reservation(**changes):
    return {
        "CapacityReservations": [
            {
                "CapacityReservationId": "cr-1",
                "State": "active",
                "AvailableInstanceCount": 1,
                "ReservationType": "capacity-block",
                **changes,
            }
        ]
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            reservation(EndDate="2026-12-01T11:30:00Z"),
            "has 1 machines left for up to 4, it ends at 2026-12-01",
        ),
        (reservation(State="payment-pending"), "is payment-pending"),
        (reservation(AvailableInstanceCount=4), ""),
    ],
)
def test_what_is_left_of_a_reservation_is_asked_and_read_as_ec2_describes_it(calls, stubbed, answer, said):
    stubbed("ec2", "describe_capacity_reservations", answer, {"CapacityReservationIds": ["cr-1"]})
    defaults = ClusterDefaults(calls, {}, "c1", uses_docker=False)
    check = AccountCheck(calls, None, defaults, keys(calls))
    planned = CheckedType(name="block", node_config=BLOCK, least=0, most=4)
    found = list(check._reservation(read_config(BLOCK, keys(calls)), planned, ()))
    assert [said in one.problem for one in found] == ([True] if said else [])


def test_a_quota_is_asked_and_read_as_aws_describes_it(calls, stubbed):
    asked = {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A"}
    stubbed("service-quotas", "get_service_quota", {"Quota": {"Value": 64.0}}, asked)
    check = AccountCheck(calls, None, None, None)
    assert check._quota("L-1216C47A") == 64.0


def test_a_size_is_asked_and_read_as_ec2_describes_it(calls, stubbed):
    described = {
        "InstanceType": "p5.48xlarge",
        "VCpuInfo": {"DefaultVCpus": 192},
        "MemoryInfo": {"SizeInMiB": 2097152},
        "GpuInfo": {"Gpus": [{"Name": "H100", "Manufacturer": "NVIDIA", "Count": 8}]},
        "NeuronInfo": {"NeuronDevices": [{"Count": 0, "CoreInfo": {"Count": 0}}]},
    }
    asked = {"Filters": [{"Name": "instance-type", "Values": ["p5.48xlarge"]}]}
    stubbed("ec2", "describe_instance_types", {"InstanceTypes": [described]}, asked)
    (found,) = calls.pages("describe_instance_types", "InstanceTypes", **asked)
    assert read_size(found, None).accelerators == 8
    assert InstanceSizes(calls.clock)({"type": "gcp"}, ["p5.48xlarge"]) == {}


def test_on_demand_prices_are_asked_and_read_as_the_price_list_describes_it(calls, stubbed):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "0.0960000000"}}
    product = {"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}}
    stubbed(
        "pricing",
        "get_products",
        {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)]},
        {"ServiceCode": "AmazonEC2", "Filters": stub.ANY},
    )
    assert prices._on_demand(calls, ["m5.large"], REGION) == {"m5.large": 0.096}


def test_a_session_of_systems_manager_names_a_document_and_a_parameter_that_there_are(calls):
    """The line is run by the AWS command line tool: its options are the members of StartSession."""
    words = shlex.split(SSM_PROXY.format(region=REGION, instance_id="i-1").replace("%p", "22"))
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options.pop("--region") == REGION
    name, _, value = options.pop("--parameters").partition("=")
    parameters = {
        "Target": options.pop("--target"),
        "DocumentName": options.pop("--document-name"),
        "Parameters": {name: [value]},
    }
    assert options == {}
    client = calls.wire.client("ssm")
    with stub.Stubber(client) as one:
        one.add_response("start_session", {"SessionId": "s"}, parameters)
        client.start_session(**parameters)
