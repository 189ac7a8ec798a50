"""Which machines of a cluster nobody owns: pure, from a list and what the head says."""

from __future__ import annotations

from msgspec.structs import replace
from tests.mistakes.views import assert_line
from tests.support.builders import cloud_instance

from muster.autoscaler.lifecycle.gc import HeadAnswer, HeadState, answer_of, unowned, without_record
from muster.cluster.model import NodeKind
from muster.config.schema import ClusterConfig, Market, NodeTypeConfig, OfferConfig, ProviderConfig

CONFIG = ClusterConfig(
    cluster_name="c1",
    provider=ProviderConfig(type="external"),
    available_node_types={"cpu": NodeTypeConfig(price_per_hour=0.5), "free": NodeTypeConfig()},
)
HEAD = cloud_instance("m-head", node_type="cpu", kind=NodeKind.HEAD, internal_ip="10.0.0.1")
ONE, TWO = cloud_instance("m-1", node_type="cpu"), cloud_instance("m-2", node_type="cpu", request_id="r-2")
STRANGE = cloud_instance("m-x", node_type="", kind=NodeKind.UNMANAGED)
LISTED = {machine.cloud_id: machine for machine in (HEAD, TWO, ONE, STRANGE)}


def names(state, owned=(), head_id=""):
    answer = HeadAnswer(state=state, detail="", owned=frozenset(owned), head_id=head_id)
    found = unowned(CONFIG, LISTED, answer)
    return [one.cloud_id for one in found.machines]


def test_a_running_head_owns_itself_and_what_it_has_records_of():
    assert names(HeadState.RUNS, {"m-1"}) == names(HeadState.RUNS, {"m-1"}, "m-head") == ["m-2"]


def test_a_head_that_another_one_has_replaced_is_owned_by_nobody():
    assert names(HeadState.RUNS, {"m-1", "m-2"}, "m-new") == ["m-head"]


def test_without_a_head_or_one_that_can_be_asked_nothing_is_owned():
    assert names(HeadState.NONE) == names(HeadState.SILENT) == ["m-1", "m-2", "m-head"]


def test_the_price_is_that_of_the_file_and_not_known_where_one_is_missing():
    none = HeadAnswer(state=HeadState.NONE, detail="")
    assert unowned(CONFIG, LISTED, none).price_per_hour == 1.5
    free = {**LISTED, "m-3": cloud_instance("m-3", node_type="free")}
    assert unowned(CONFIG, free, none).price_per_hour is None
    assert unowned(CONFIG, free, none).machines[1].request_id == "r-2"


def test_a_machine_costs_what_its_offer_costs():
    offers = (OfferConfig(zone="a", market=Market.SPOT, price_per_hour=0.2), OfferConfig(price_per_hour=0.7))
    types = {"cpu": NodeTypeConfig(price_per_hour=9.0, offers=offers)}
    places = (("a", "spot"), ("b", "on-demand"), ("b", "spot"))
    listed = [cloud_instance(f"m-{z}{m}", node_type="cpu", zone=z, market=m) for z, m in places]
    config, none = replace(CONFIG, available_node_types=types), HeadAnswer(state=HeadState.NONE, detail="")
    found = unowned(config, {one.cloud_id: one for one in listed}, none)
    assert {one.cloud_id: one.price_per_hour for one in found.machines} == {
        "m-aspot": 0.2,
        "m-bon-demand": 0.7,
        "m-bspot": 9.0,
    }


def test_a_listed_head_that_was_not_started_from_here_cannot_be_asked():
    assert without_record({"m-1": ONE}).state is HeadState.NONE
    found = without_record(LISTED)
    assert (found.state, "m-head (10.0.0.1)" in found.detail) == (HeadState.SILENT, True)


def test_a_monitor_that_is_gone_or_has_said_nothing_yet_cannot_be_asked():
    assert_line("autoscaler", "monitor gone", answer_of(None, is_alive=False, where="here").detail)
    assert answer_of(None, is_alive=True, where="here").state is HeadState.SILENT
