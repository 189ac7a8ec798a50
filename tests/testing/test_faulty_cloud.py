"""The faulty cloud does what it is told, and the autoscaler gets what it wants through each fault."""

from __future__ import annotations

import itertools
import threading

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import BUSY, HEAD_NODE, spec
from tests.support.builders import demand, node_report, node_type

from muster.cluster.controller import ClusterController
from muster.config.to_spec import NodeLaunch
from muster.errors import CapacityExhausted, ConfigError, ProviderError
from muster.providers.background_calls import inline_pools
from muster.providers.v1 import tags as t
from muster.providers.v1.adapter import V1Adapter
from muster.providers.v1.failures import kind_of
from muster.providers.v1.kind import make_external
from muster.testing import ProviderContract
from muster.testing.faulty_cloud import Fault, FaultyCloud, faults_of

names = (f"faulty-{number}" for number in itertools.count())
TAGS = {t.TAG_RAY_NODE_KIND: "worker", t.TAG_RAY_USER_NODE_TYPE: "cpu"}


def cloud(*faults, **settings):
    return FaultyCloud({"faults": list(faults), **settings}, next(names))


def made(provider, count=1):
    provider.create_node({}, dict(TAGS), count)
    return provider


class TestFaultyCloud(ProviderContract):
    """Without faults it keeps every promise; a refusal of each kind is understood."""

    def make_provider(self, cluster_name):
        return FaultyCloud({}, cluster_name)

    def make_refused(self, kind, cluster_name):
        from muster.providers.contract.subject import RefusedOrder

        fault = {"fault": "fail", "call": "create_node", "kind": kind.value}
        return RefusedOrder(FaultyCloud({"faults": [fault]}, cluster_name))


def test_a_new_machine_is_missing_from_so_many_lists():
    provider = made(cloud({"fault": "list_late", "lists": 2}))
    seen = [len(provider.non_terminated_nodes({})) for _ in range(4)]
    assert (seen, provider.joined()) == ([0, 0, 1, 1], ["machine-1"])


def test_a_node_may_join_before_its_machine_is_listed():
    late, early = made(cloud({"fault": "list_late"})), made(cloud({"fault": "node_first"}))
    assert (late.joined(), early.joined(), early.non_terminated_nodes({})) == ([], ["machine-1"], [])


def test_a_list_omits_a_machine_once():
    provider = made(cloud({"fault": "list_omits", "after": 1}), 2)
    assert [len(provider.non_terminated_nodes({})) for _ in range(3)] == [2, 1, 2]


def test_fewer_are_made_without_saying_so():
    provider = cloud({"fault": "short", "by": 2})
    assert (provider.create_node({}, {}, 3), len(provider.machines())) == (None, 1)


def test_a_call_fails_two_of_three_times():
    provider = cloud({"fault": "fail", "call": "non_terminated_nodes", "times": 2, "of": 3})
    outcomes = []
    for _ in range(6):
        try:
            outcomes.append(provider.non_terminated_nodes({}))
        except ProviderError:
            outcomes.append("failed")
    assert outcomes == ["failed", "failed", []] * 2


@pytest.mark.parametrize("kind", ["capacity", "quota", "throttled", "permission", "config", "unknown"])
def test_an_error_of_each_kind_is_read_as_that_kind(kind):
    provider = cloud({"fault": "fail", "call": "create_node", "kind": kind})
    with pytest.raises(ProviderError) as raised:
        provider.create_node({}, {}, 1)
    assert kind_of(raised.value).value == kind
    assert provider.machines() == {}


def test_a_reply_is_lost_and_the_machines_are_there():
    provider = cloud({"fault": "reply_lost"})
    with pytest.raises(TimeoutError):
        provider.create_node({}, {}, 2)
    assert len(provider.machines()) == 2


def test_a_used_id_is_used_again():
    provider = made(cloud({"fault": "ids_reused"}))
    provider.terminate_node("machine-1")
    provider.create_node({}, {"which": "second"}, 1)
    assert (provider.non_terminated_nodes({}), provider.node_tags("machine-1")) == (
        ["machine-1"],
        {"which": "second"},
    )


def test_named_tags_or_all_of_them_are_lost():
    some = made(cloud({"fault": "tags_lost", "tags": [t.TAG_RAY_NODE_KIND]}))
    everything = made(cloud({"fault": "tags_lost"}))
    assert (some.node_tags("machine-1"), everything.node_tags("machine-1")) == (
        {t.TAG_RAY_USER_NODE_TYPE: "cpu"},
        {},
    )


def test_a_machine_ends_late_or_never():
    late, never = made(cloud({"fault": "ends_late", "lists": 1})), made(cloud({"fault": "ends_never"}))
    late.terminate_node("machine-1")
    never.terminate_node("machine-1")
    assert [late.non_terminated_nodes({}) for _ in range(2)] == [["machine-1"], []]
    assert list(never.machines()) == ["machine-1"]


def test_all_machines_have_one_address():
    provider = made(cloud({"fault": "one_address"}), 2)
    assert {provider.internal_ip(n) for n in provider.machines()} == {"10.0.0.1"}


def test_a_call_returns_what_it_is_told_to():
    assert (
        cloud({"fault": "returns", "call": "non_terminated_nodes", "value": 7}).non_terminated_nodes({}) == 7
    )


def test_a_call_hangs_until_it_is_released_and_does_not_hold_up_others():
    provider = cloud({"fault": "hang", "call": "create_node", "times": 1})
    thread = threading.Thread(target=made, args=(provider,))
    thread.start()
    made(provider)
    assert thread.is_alive()
    provider.release()
    thread.join(60)
    assert len(provider.machines()) == 2


def test_a_call_is_slow(monkeypatch):
    slept = []
    provider = cloud({"fault": "slow", "call": "create_node", "seconds": 3})
    monkeypatch.setattr(FaultyCloud, "clock", type("Clock", (), {"sleep": staticmethod(slept.append)}))
    made(provider)
    assert slept == [3.0]


def test_machines_in_a_file_outlive_the_object_and_clusters_are_kept_apart(tmp_path):
    section = {"module": "muster.testing.faulty_cloud.FaultyCloud", "state": str(tmp_path / "cloud.json")}
    one, other = make_external(section, "one"), make_external(section, "other")
    made(one)
    assert make_external(section, "one").non_terminated_nodes({}) == ["machine-1"]
    assert other.non_terminated_nodes({}) == []


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("short", "must be a list"),
        ([{"fault": "shrot"}], r"faults\[0\].*did you mean 'short'"),
        ([{"fault": "short"}, {"fault": "fail"}], r"faults\[1\]: 'fail' needs a call"),
        ([{"fault": "short", "buy": 1}], "buy"),
        ([{"fault": "short", "by": -1}], "by"),
        ([7], "object"),
    ],
)
def test_a_wrong_entry_is_named(entries, says):
    with pytest.raises(ConfigError, match=says):
        faults_of(entries)


def test_faults_made_by_code_are_taken_as_they_are():
    with pytest.raises(CapacityExhausted):
        cloud(Fault(fault="fail", call="create_node", kind="capacity")).create_node({}, {}, 1)


WANTED = 4
HEALED = [
    Fault(fault="list_late", lists=3),
    Fault(fault="node_first", lists=6),
    Fault(fault="list_omits", after=4, times=1),
    Fault(fault="short", times=2),
    Fault(fault="fail", call="non_terminated_nodes", times=2, of=3),
    Fault(fault="fail", call="create_node", kind="capacity", times=2),
    Fault(fault="fail", call="create_node", kind="throttled", times=1, of=2),
    Fault(fault="reply_lost", times=2),
    Fault(fault="ids_reused"),
    Fault(fault="fail", call="node_tags", kind="connection", times=1, of=4),
]


@pytest.mark.parametrize("fault", HEALED, ids=lambda one: f"{one.fault} {one.call or ''}{one.kind}")
def test_the_autoscaler_ends_with_as_many_machines_as_it_wants_and_terminates_none(fault):
    provider = cloud(fault)
    stage = Stage(installer=False, wishes=spec(node_type("cpu", {"CPU": 1}, max_nodes=20)))
    launches = {"cpu": NodeLaunch(node_type="cpu")}
    port = V1Adapter(provider, lambda: launches, cluster_name=provider.cluster_name, pools=inline_pools())
    ended = []
    provider.terminate_node = ended.append

    def read():
        joined = provider.joined()
        nodes = [node_report(f"n-{n}", cloud_id=n, available=BUSY) for n in joined]
        stage.runtime.nodes = [HEAD_NODE, *nodes]
        stage.runtime.demands = [demand({"CPU": 1}, WANTED - len(nodes))] if len(nodes) < WANTED else []
        return stage.runtime._report()

    stage.runtime.answers["read"] = read
    controller = ClusterController(
        type(stage.ports)(**{**vars(stage.ports), "provider": port}), stage.ambient
    )
    for _ in range(400):
        controller.tick()
        stage.clock.advance(5.0)
    assert (len(provider.machines()), ended) == (WANTED, [])
