"""What is sent to EC2 for configs that are not plain: reservations, interfaces, several types, templates."""

from __future__ import annotations

import itertools

import pytest
from tests.providers.aws.ec2_server import REGION

from muster.cluster.model import FailureKind, Offer
from muster.config.to_spec import NodeLaunch
from muster.providers.aws.provider import AwsParts, AwsProvider
from muster.providers.background_calls import inline_pools

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
IMAGE = "ami-03cf127a"
PLAIN = {"InstanceType": "m5.large", "ImageId": IMAGE}
_numbers = itertools.count(1)


class Launches:
    """A provider whose node type `w` is what a test says."""

    def __init__(self) -> None:
        parts = AwsParts(pools=inline_pools())
        self.config = PLAIN
        self.provider = AwsProvider({"region": REGION}, f"launch-{next(_numbers)}", self._types, parts)

    def _types(self):
        return {"w": NodeLaunch(node_type="w", node_config=self.config)}

    def __call__(self, config=PLAIN, count=1, *offers, request="r-1"):
        """Launch machines, and return a failure for each that did not come."""
        self.config = config
        self.provider.launch(request, {"w": count}, offers)
        return self.provider.poll_launch_failures()


@pytest.fixture
def launch(ec2):
    return Launches()


def sent(ec2, *ends: str) -> dict[str, str]:
    body = ec2.faults.bodies[-1]
    return {end: next((v for k, v in body.items() if k.endswith(end)), "") for end in ends}


def test_a_reserved_offer_is_bought_from_the_reservation_of_its_type(ec2, launch):
    target = {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}
    config = {**PLAIN, "CapacityReservationSpecification": target}
    assert launch(config, 1, Offer(zone="us-east-1a", market="reserved")) == ()
    assert sent(ec2, "Action", "CapacityReservationId") == {
        "Action": "RunInstances",
        "CapacityReservationId": "cr-1",
    }
    launch(config, 1, Offer(zone="us-east-1a"), request="r-2")
    assert sent(ec2, "Action")["Action"] == "CreateFleet"
    (failure,) = launch(PLAIN, 1, Offer(zone="us-east-1a", market="reserved"), request="r-3")
    assert failure.kind is FailureKind.CONFIG


def test_a_config_with_interfaces_is_bought_by_run_instances_with_the_subnet_in_them(ec2, launch):
    launch({**PLAIN, "NetworkInterfaces": [{"DeviceIndex": 0}]})
    found = sent(ec2, "Action", "NetworkInterface.1.SubnetId", "InstanceMarketOptions.MarketType")
    assert found["Action"] == "RunInstances"
    assert found["NetworkInterface.1.SubnetId"].startswith("subnet-")


def test_several_machine_types_are_places_of_one_fleet(ec2, launch):
    config = {"InstanceTypes": ["m5.large", "m6i.large"], "ImageId": IMAGE}
    launch(config, 2, Offer(zone="us-east-1a"), Offer(zone="us-east-1b"))
    body = ec2.faults.bodies[-1]
    numbers = {key.split(".")[3] for key in body if ".Overrides." in key}
    assert len(numbers) == 4
    assert sorted(value for key, value in body.items() if key.endswith("Priority")) == [
        "0.0",
        "1.0",
        "2.0",
        "3.0",
    ]


def test_without_offers_ec2_chooses_among_all_subnets(ec2, launch):
    spot = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.05"}}
    launch({**PLAIN, "InstanceMarketOptions": spot})
    found = sent(ec2, "SpotOptions.AllocationStrategy", "DefaultTargetCapacityType", "MaxPrice", "Priority")
    assert found == {
        "SpotOptions.AllocationStrategy": "price-capacity-optimized",
        "DefaultTargetCapacityType": "spot",
        "MaxPrice": "0.05",
        "Priority": "",
    }


def test_a_place_that_was_sold_out_a_moment_ago_is_not_asked_again(ec2, launch):
    ec2.faults.stock = {"* us-east-1a *": 0}
    for number in range(2):
        failures = launch(PLAIN, 2, Offer(zone="us-east-1a"), request=f"r-{number}")
    assert ec2.faults.calls["CreateFleet"] == 1
    assert [one.kind for one in failures] == [FailureKind.CAPACITY] * 2
    assert (failures[0].offer, failures[0].also) == ("us-east-1a/on-demand", ())


def test_a_zone_without_a_subnet_is_a_mistake_in_the_file(ec2, launch):
    (failure,) = launch(PLAIN, 1, Offer(zone="us-east-9z"))
    assert failure.kind is FailureKind.CONFIG


def test_a_template_that_was_removed_is_made_again(ec2, launch):
    launch()
    launch.provider.clean_up()
    assert launch(request="r-2") == ()


def test_tags_of_the_file_are_on_the_machine_beside_ours(ec2, launch):
    own = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "a"}]}]
    launch({**PLAIN, "TagSpecifications": own})
    (node,) = launch.provider.listing.refresh()
    tags = launch.provider.tags(node)
    assert (tags["team"], tags["ray-launch-request"], tags["muster-cluster"]) == (
        "a",
        "r-1",
        launch.provider.cluster_name,
    )
