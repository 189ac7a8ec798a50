"""What is sent to EC2 for configs that are not plain: reservations, interfaces, several types, templates."""

from __future__ import annotations

import itertools

import pytest
from tests.providers.aws.ec2_server import REGION

from muster.cluster.model import Offer
from muster.errors import CapacityExhausted, ProviderMisconfigured
from muster.providers.aws.provider import AwsNodeProvider
from muster.providers.node_provider import BatchRefused, NodeBatch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
IMAGE = "ami-03cf127a"
PLAIN = {"InstanceType": "m5.large", "ImageId": IMAGE}
_numbers = itertools.count(1)


@pytest.fixture
def provider(ec2):
    return AwsNodeProvider({"region": REGION}, f"launch-{next(_numbers)}")


def batch(config=PLAIN, count=1, *offers, request="r-1"):
    tags = {"ray-launch-request": request, "ray-user-node-type": "w", "ray-node-type": "worker"}
    return NodeBatch(node_config=dict(config), tags=tags, count=count, offers=offers)


def sent(ec2, *ends: str) -> dict[str, str]:
    body = ec2.faults.bodies[-1]
    return {end: next((v for k, v in body.items() if k.endswith(end)), "") for end in ends}


def test_a_reserved_offer_is_bought_from_the_reservation_of_its_type(ec2, provider):
    target = {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}
    config = {**PLAIN, "CapacityReservationSpecification": target}
    provider.create_node_batch(batch(config, 1, Offer(zone="us-east-1a", market="reserved")))
    assert sent(ec2, "Action", "CapacityReservationId") == {
        "Action": "RunInstances",
        "CapacityReservationId": "cr-1",
    }
    on_demand = batch(config, 1, Offer(zone="us-east-1a"), request="r-2")
    provider.create_node_batch(on_demand)
    assert sent(ec2, "Action")["Action"] == "CreateFleet"
    with pytest.raises(ProviderMisconfigured, match="CapacityReservationSpecification"):
        provider.create_node_batch(
            batch(PLAIN, 1, Offer(zone="us-east-1a", market="reserved"), request="r-3")
        )


def test_a_config_with_interfaces_is_bought_by_run_instances_with_the_subnet_in_them(ec2, provider):
    provider.create_node_batch(batch({**PLAIN, "NetworkInterfaces": [{"DeviceIndex": 0}]}))
    found = sent(ec2, "Action", "NetworkInterface.1.SubnetId", "InstanceMarketOptions.MarketType")
    assert found["Action"] == "RunInstances"
    assert found["NetworkInterface.1.SubnetId"].startswith("subnet-")


def test_several_machine_types_are_places_of_one_fleet(ec2, provider):
    config = {"InstanceTypes": ["m5.large", "m6i.large"], "ImageId": IMAGE}
    provider.create_node_batch(batch(config, 2, Offer(zone="us-east-1a"), Offer(zone="us-east-1b")))
    body = ec2.faults.bodies[-1]
    numbers = {key.split(".")[3] for key in body if ".Overrides." in key}
    assert len(numbers) == 4
    assert sorted(value for key, value in body.items() if key.endswith("Priority")) == [
        "0.0",
        "1.0",
        "2.0",
        "3.0",
    ]


def test_without_offers_ec2_chooses_among_all_subnets(ec2, provider):
    spot = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.05"}}
    provider.create_node_batch(batch({**PLAIN, "InstanceMarketOptions": spot}))
    found = sent(ec2, "SpotOptions.AllocationStrategy", "DefaultTargetCapacityType", "MaxPrice", "Priority")
    assert found == {
        "SpotOptions.AllocationStrategy": "price-capacity-optimized",
        "DefaultTargetCapacityType": "spot",
        "MaxPrice": "0.05",
        "Priority": "",
    }


def test_a_place_that_was_sold_out_a_moment_ago_is_not_asked_again(ec2, provider):
    ec2.faults.stock = {"* us-east-1a *": 0}
    for number in range(2):
        with pytest.raises(BatchRefused) as refused:
            provider.create_node_batch(batch(PLAIN, 2, Offer(zone="us-east-1a"), request=f"r-{number}"))
    assert ec2.faults.calls["CreateFleet"] == 1
    assert [type(one) for one in refused.value.units] == [CapacityExhausted] * 2
    assert "sold out a moment ago" in str(refused.value)
    assert refused.value.units[0].offers == ("us-east-1a/on-demand",)


def test_a_zone_without_a_subnet_is_said(ec2, provider):
    with pytest.raises(
        ProviderMisconfigured, match="there is no subnet in us-east-9z: give SubnetIds with one"
    ):
        provider.create_node_batch(batch(PLAIN, 1, Offer(zone="us-east-9z")))


def test_a_template_that_was_removed_is_made_again(ec2, provider):
    provider.create_node_batch(batch())
    provider.cleanup_cluster_resources()
    assert len(provider.create_node_batch(batch(request="r-2"))) == 1


def test_tags_of_the_file_are_on_the_machine_beside_ours(ec2, provider):
    own = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "a"}]}]
    (node,) = provider.create_node_batch(batch({**PLAIN, "TagSpecifications": own}))
    provider.machines.refresh()
    tags = provider.node_tags(node)
    assert (tags["team"], tags["ray-launch-request"], tags["muster-cluster"]) == (
        "a",
        "r-1",
        provider.cluster_name,
    )
