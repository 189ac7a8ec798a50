"""How fast AWS is called, which names and rights follow from a file, and how places are left alone."""

from __future__ import annotations

import pytest

from muster.base.clock import ManualClock
from muster.errors import ProviderDenied
from muster.providers.aws.calls import RateLimit, RequestRate
from muster.providers.aws.defaults import ClusterDefaults
from muster.providers.aws.fleet import token_of
from muster.providers.aws.listing import Ec2Machine, MachineList
from muster.providers.aws.places import SOLD_OUT_S, PurchaseTarget, SoldOut, Subnet
from muster.providers.aws.policy import head_policy, launcher_policy
from muster.providers.aws.provider import AwsParts, AwsProvider
from muster.providers.aws.tags import from_aws, key_name, to_aws, with_access
from muster.providers.background_calls import inline_pools

LIMIT = RateLimit(burst=2, per_s=1)


def test_a_burst_is_free_and_then_calls_wait_their_turn():
    rate = RequestRate(LIMIT, now=0.0)
    assert [rate.reserve(0.0) for _ in range(4)] == [0.0, 0.0, 1.0, 2.0]
    assert rate.reserve(10.0) == 0.0


def test_throttling_halves_the_rate_and_each_accepted_call_gives_a_little_back():
    rate = RequestRate(LIMIT, now=0.0)
    rate.throttled(0.0)
    assert (rate.per_s, rate.reserve(0.0)) == (0.5, 2.0)
    for _ in range(10):
        rate.throttled(0.0)
    assert rate.per_s == 0.2
    for _ in range(16):
        rate.accepted()
    assert rate.per_s == 1.0


def subnet(name="s-1", zone="z-a", free=10):
    return Subnet(subnet_id=name, zone=zone, vpc="v", free=free, is_public=True)


def test_a_stock_that_is_sold_out_is_left_alone_for_minutes_and_a_full_subnet_alone_for_itself():
    clock = ManualClock()
    sold_out = SoldOut(clock)
    here = PurchaseTarget(machine_type="m", subnet=subnet(), market="spot")
    beside = PurchaseTarget(machine_type="m", subnet=subnet("s-2"), market="spot")
    other = PurchaseTarget(machine_type="m", subnet=subnet("s-3", "z-b"), market="spot")
    sold_out.note(here, "InsufficientFreeAddressesInSubnet")
    assert sold_out.usable([here, beside, other]) == [beside, other]
    sold_out.note(here, "InsufficientInstanceCapacity")
    assert sold_out.usable([here, beside, other]) == [other]
    clock.advance(SOLD_OUT_S + 1)
    assert sold_out.usable([here, beside, other]) == [here, beside, other]


def test_what_the_account_may_not_ask_is_logged_once_for_all_types(caplog):
    class Denied:
        clock, region = ManualClock(), "us-east-1"

        def pages(self, operation, key, **parameters):
            raise ProviderDenied(f"ec2:{operation} is denied")

    defaults = ClusterDefaults(Denied(), {}, "c1", uses_docker=False)
    assert [defaults.sizes([name]) for name in ("m5.large", "g4dn.xlarge")] == [{}, {}]
    assert len(caplog.records) == 1


def test_a_token_is_short_ascii_and_follows_from_its_parts():
    token = token_of("c1", "r-1", 0)
    assert token == token_of("c1", "r-1", 0) != token_of("c1", "r-1", 1)
    assert len(token) <= 64 and token.isascii()


def test_the_name_of_a_node_is_the_tag_name_as_with_ray():
    assert to_aws({"ray-node-name": "x", "a": "b"}) == [
        {"Key": "Name", "Value": "x"},
        {"Key": "a", "Value": "b"},
    ]
    assert from_aws(to_aws({"ray-node-name": "x", "a": "b"})) == {"ray-node-name": "x", "a": "b"}


def test_a_machine_shows_the_zone_and_market_that_it_really_has():
    tags = {"muster-zone": "z-a", "muster-market": "spot"}
    machine = Ec2Machine(node_id="i-1", tags=tags, zone="z-b", is_spot=False)
    assert machine.shown_tags() == {"muster-zone": "z-b", "muster-market": "on-demand"}
    reserved = Ec2Machine(node_id="i-1", tags={"muster-market": "reserved"}, zone="z-b")
    assert reserved.shown_tags() == {"muster-market": "reserved"}
    assert Ec2Machine(node_id="i-1", tags={}, zone="z-b").shown_tags() == {}


def test_a_file_without_a_key_gets_the_one_that_up_makes():
    data = {"provider": {"type": "aws", "region": "r-1"}, "auth": {"ssh_user": "u"}}
    assert with_access(data, "c/1")["auth"] == {
        "ssh_user": "u",
        "ssh_private_key": "~/.ssh/muster-c-1-r-1.pem",
    }
    own = {**data, "auth": {"ssh_private_key": "k"}}
    assert with_access(own, "c1") == own
    assert key_name({"key_pair": {"key_name": "mine"}}, "c1") == "mine"


def test_with_ssm_machines_are_reached_by_a_session_and_internal_addresses():
    made = with_access({"provider": {"type": "aws", "region": "r-1", "use_ssm": True}}, "c1")
    assert made["provider"]["use_internal_ips"] is True
    assert "--target {instance_id}" in made["auth"]["ssh_proxy_command"]


def test_the_policies_let_nobody_end_the_machines_of_another_cluster():
    for policy in (head_policy("c1", "us-east-1"), launcher_policy("c1", "us-east-1")):
        ends = [one for one in policy["Statement"] if "ec2:TerminateInstances" in one["Action"]]
        assert [one["Condition"] for one in ends] == [
            {"StringEquals": {"aws:ResourceTag/ray-cluster-name": "c1"}}
        ]


class Listing:
    """Counts the lists; one machine, in a state that a test sets."""

    def __init__(self) -> None:
        self.lists, self.state = 0, "running"

    def pages(self, operation, key, **parameters):
        self.lists += 1
        return iter([{"Instances": [{"InstanceId": "i-1", "State": {"Name": self.state}}]}])


def test_a_list_serves_for_a_minute_while_nothing_changes():
    clock, calls = ManualClock(), Listing()
    machines = MachineList(calls, "c1", clock, keeps_stopped=False)

    def lists(seconds: int) -> int:
        before = calls.lists
        for _ in range(seconds // 5):
            clock.advance(5.0)
            machines.newest()
        return calls.lists - before

    assert (lists(60), lists(300)) == (12, 4)
    machines.note_tags("i-1", {"a": "b"})
    assert lists(60) == 12
    calls.state = "pending"
    lists(90)
    assert lists(60) == 12


@pytest.mark.parametrize(
    ("settings", "reached"),
    [
        ({}, ["1.1.1.1", "1.1.1.2"]),
        ({"use_internal_ips": True}, ["10.0.0.1", "10.0.0.2"]),
        ({"use_internal_ips": True, "use_external_head_ip": True}, ["1.1.1.1", "10.0.0.2"]),
    ],
)
def test_only_the_head_is_reached_from_outside_where_the_file_says_so(settings, reached):
    found = {
        kind: Ec2Machine(
            node_id=kind,
            tags={"ray-node-type": kind},
            internal_ip=f"10.0.0.{number}",
            external_ip=f"1.1.1.{number}",
        )
        for number, kind in enumerate(("head", "worker"), start=1)
    }
    parts = AwsParts(pools=inline_pools())
    provider = AwsProvider({"region": "us-east-1", **settings}, "addresses", dict, parts)
    provider.machine = found.__getitem__
    assert [provider.address(kind, is_inside=False) for kind in found] == reached
