"""V1Adapter buys exactly what was asked for, whatever the create calls do."""

from __future__ import annotations

import pytest
from tests.providers.v1.scripted import LAUNCHES, Scripted, adapted, counted

from muster.autoscaler import NodeLaunchException
from muster.cluster.model import FailureKind, LaunchFailure, Offer
from muster.errors import ProviderError


@pytest.fixture
def v1():
    return Scripted()


@pytest.mark.conformance("NP-1")
def test_np_1_launches_and_terminations_add_up(v1):
    port = adapted(v1)
    port.launch("r-1", {"cpu": 2})
    assert counted(port) == {"cpu": 2}
    port.launch("r-2", {"cpu": 2, "gpu": 1})
    assert counted(port) == {"cpu": 4, "gpu": 1}
    port.terminate("t-1", list(port.list_instances()))
    assert counted(port) == {}
    port.launch("r-3", {"cpu": 1})
    assert counted(port) == {"cpu": 1}
    assert (port.poll_launch_failures(), port.poll_terminate_failures()) == ((), ())


@pytest.mark.conformance("NP-2")
def test_np_2_a_create_error_is_told_with_type_and_request(v1):
    def refuse(tags, count):
        raise RuntimeError("the cloud is on fire")

    v1.before_create = refuse
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1})
    assert port.poll_launch_failures() == (
        LaunchFailure(
            request_id="r-1",
            node_type="cpu",
            kind=FailureKind.UNKNOWN,
            message="RuntimeError: the cloud is on fire",
            may_exist=True,
        ),
    )
    assert port.poll_launch_failures() == ()


def test_machines_are_made_in_batches_with_rays_tags_and_the_types_config(v1):
    port = adapted(v1)
    port.launch("r-1", {"cpu": 12})
    assert sorted(v1.creates) == [("cpu", 2), ("cpu", 5), ("cpu", 5)]
    config, tags, _, resources, labels = v1.last_create
    assert tags == {
        "ray-node-name": f"ray-{v1.cluster_name}-worker",
        "ray-node-type": "worker",
        "ray-node-status": "uninitialized",
        "ray-launch-config": "h-cpu",
        "ray-launch-request": "r-1",
        "ray-user-node-type": "cpu",
    }
    assert (config, resources, labels) == (
        {"InstanceType": "small", "tags": ["a"]},
        {"CPU": 4},
        {"zone": "a"},
    )
    assert counted(port) == {"cpu": 12}


def test_a_provider_may_write_into_the_config_it_is_given(v1):
    v1.before_create = lambda *_: v1.last_create[0]["tags"].append("mine")
    adapted(v1).launch("r-1", {"cpu": 1})
    assert LAUNCHES["cpu"].node_config == {"InstanceType": "small", "tags": ["a"]}


def test_a_batch_that_breaks_half_way_fails_exactly_the_machines_that_are_missing(v1):
    def stop_after_three(tags, count):
        for _ in range(3):
            super(Scripted, v1).create_node({}, tags, 1)
        raise NodeLaunchException("InsufficientCapacity", "only three left")

    v1.before_create = stop_after_three
    port = adapted(v1)
    port.launch("r-1", {"cpu": 5})
    assert counted(port) == {"cpu": 3}
    unit = LaunchFailure(
        request_id="r-1",
        node_type="cpu",
        kind=FailureKind.CAPACITY,
        message="InsufficientCapacity: only three left",
        may_exist=True,
    )
    assert port.poll_launch_failures() == (unit, unit)


def test_fewer_ids_than_asked_for_fail_the_rest(v1):
    def two_vanish(made):
        for node_id in list(made)[:2]:
            del v1.nodes[node_id], made[node_id]
        return made

    v1.after_create = two_vanish
    port = adapted(v1)
    port.launch("r-1", {"cpu": 4})
    failures = port.poll_launch_failures()
    assert [(f.request_id, f.node_type, f.kind) for f in failures] == [
        ("r-1", "cpu", FailureKind.CAPACITY)
    ] * 2
    assert failures[0].message == "the provider made 2 of 4 cpu and gave no reason"


def test_a_lost_reply_fails_nothing_that_came(v1):
    def lost(made):
        raise TimeoutError("no answer")

    v1.after_create = lost
    port = adapted(v1)
    port.launch("r-1", {"cpu": 3, "gpu": 1})
    assert counted(port) == {"cpu": 3, "gpu": 1}
    assert port.poll_launch_failures() == ()


def test_one_failed_batch_leaves_the_other_batches_alone(v1):
    def only_small(tags, count):
        if count == 5:
            raise NodeLaunchException("Quota", "you have reached your limit of instances: quota exceeded")

    v1.before_create = only_small
    port = adapted(v1)
    port.launch("r-1", {"cpu": 7})
    assert counted(port) == {"cpu": 2}
    assert [f.kind for f in port.poll_launch_failures()] == [FailureKind.QUOTA] * 5


@pytest.mark.parametrize("request_id", ["r-1", "r-1~2.t-7"])
def test_a_request_repeated_after_a_restart_buys_only_what_is_missing(v1, request_id):
    def first_two_then_die(tags, count):
        super(Scripted, v1).create_node({}, tags, 2)
        raise SystemExit("killed")

    v1.before_create = first_two_then_die
    adapted(v1).launch(request_id, {"cpu": 5})
    v1.before_create = lambda *_: None
    restarted = adapted(v1)
    restarted.launch(request_id, {"cpu": 5})
    assert v1.creates == [("cpu", 5), ("cpu", 3)]
    assert [m.request_id for m in restarted.list_instances().values()] == [request_id] * 5


def test_a_request_repeated_in_the_same_life_buys_nothing_even_if_machines_died(v1):
    port = adapted(v1)
    port.launch("r-1", {"cpu": 2})
    for node_id in v1.non_terminated_nodes({}):
        v1.terminate_node(node_id)
    port.launch("r-1", {"cpu": 2})
    assert v1.creates == [("cpu", 2)]


def test_machines_of_another_attempt_are_not_taken_for_this_one(v1):
    adapted(v1).launch("r-1", {"cpu": 1})
    adapted(v1).launch("r-1~2.t-9", {"cpu": 1})
    assert v1.creates == [("cpu", 1), ("cpu", 1)]


def test_machines_that_cannot_be_looked_for_are_not_bought(v1):
    """The request may have been filled by an earlier life: buying blindly could buy twice."""

    def unreachable(filters):
        raise ConnectionError("the cloud does not answer")

    v1.before_list = unreachable
    port = adapted(v1)
    port.launch("r-1", {"cpu": 2})
    assert v1.creates == []
    assert [f.message for f in port.poll_launch_failures()] == [
        "ConnectionError: the cloud does not answer"
    ] * 2


def test_a_loose_filter_of_the_provider_does_not_stop_us_from_buying(v1):
    port = adapted(v1)
    port.launch("r-1", {"cpu": 2})
    v1.non_terminated_nodes = lambda filters: Scripted.non_terminated_nodes(v1, {})
    port.launch("r-2", {"cpu": 2})
    assert v1.creates == [("cpu", 2), ("cpu", 2)]


def test_a_type_that_left_the_config_fails_unit_by_unit_and_the_others_come(v1):
    port = adapted(v1)
    port.launch("r-1", {"tpu": 2, "cpu": 1})
    assert counted(port) == {"cpu": 1}
    assert (
        port.poll_launch_failures()
        == (
            LaunchFailure(
                request_id="r-1",
                node_type="tpu",
                kind=FailureKind.CONFIG,
                message="node type 'tpu' is not in available_node_types",
            ),
        )
        * 2
    )


def test_a_provider_of_an_older_kind_is_asked_by_the_method_it_has():
    class Oldest:
        cluster_name, provider_config = "old", {}
        made = None

        def non_terminated_nodes(self, tag_filters):
            return []

        def create_node(self, node_config, tags, count):
            self.made = "create_node", count

    class Older(Oldest):
        def create_node_with_resources(self, node_config, tags, count, resources):
            self.made = "create_node_with_resources", resources

    oldest, older = Oldest(), Older()
    adapted(oldest).launch("r-1", {"cpu": 2})
    adapted(older).launch("r-1", {"cpu": 2})
    assert (oldest.made, older.made) == (("create_node", 2), ("create_node_with_resources", {"CPU": 4}))


@pytest.mark.conformance("RO-1")
def test_a_read_only_provider_is_asked_for_nothing(v1):
    v1.is_readonly = lambda: True
    port = adapted(v1)
    assert port.traits().read_only
    for call in (lambda: port.launch("r-1", {"cpu": 1}), lambda: port.terminate("t-1", ["x"])):
        with pytest.raises(ProviderError, match="Scripted is read-only"):
            call()
        with pytest.raises(NotImplementedError):
            call()
    assert (v1.creates, v1.terminates) == ([], [])


@pytest.mark.parametrize(
    ("config", "says_so", "expected"),
    [({}, False, False), ({"disable_node_updaters": True}, False, True), ({}, True, True)],
)
def test_who_installs_the_runtime(config, says_so, expected):
    v1 = Scripted(config)
    v1.installs_runtime = says_so
    assert adapted(v1).traits().installs_runtime is expected


class Choosing(Scripted):
    """A provider that buys in the zone and on the market that it is given."""

    buys_offers = True


def test_an_offer_is_passed_as_tags_and_in_the_node_config_and_comes_back_in_the_list():
    v1 = Choosing()
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1}, (Offer(zone="a", market="spot", price_per_hour=0.5),))
    config, tags, *_ = v1.last_create
    assert config["offer"] == {"zone": "a", "market": "spot", "price_per_hour": 0.5}
    assert (tags["muster-zone"], tags["muster-market"]) == ("a", "spot")
    (machine,) = port.list_instances().values()
    assert (machine.zone, machine.market) == ("a", "spot")


def test_only_a_provider_that_says_so_is_given_offers(v1):
    assert (adapted(v1).traits().buys_offers, adapted(Choosing()).traits().buys_offers) == (False, True)
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1})
    assert "offer" not in v1.last_create[0]
    assert not [tag for tag in v1.last_create[1] if tag.startswith("muster-")]


def test_a_provider_gets_the_first_offer_only():
    v1 = Choosing()
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1}, (Offer(zone="a"), Offer(zone="b")))
    assert (v1.last_create[0]["offer"]["zone"], port.traits().takes_next_offer) == ("a", False)
