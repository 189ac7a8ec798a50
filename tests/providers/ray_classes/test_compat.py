"""The compatibility tier over classes in the style of Ray's: zones are offers, 404 is gone, nothing hangs."""

from __future__ import annotations

import sys
import threading
import time
import types

import pytest
from tests.providers.ray_classes.cloud_styles import AzureLike, GcpLike, HttpError, ResourceNotFoundError

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cluster.model import FailureKind, Offer
from muster.config.document import Document
from muster.config.to_spec import node_launches
from muster.errors import ConfigError, ProviderMisconfigured
from muster.providers.kind import ProviderContext, build_provider, check_provider, kind_of, parse_config
from muster.providers.ray_classes.clouds import CLOUDS, class_of_ray
from muster.providers.ray_classes.provider import CallTimedOut, GuardedObject, is_not_found

STYLES = "tests.providers.ray_classes.cloud_styles"
GCP = f"{{type: gcp, region: r, availability_zone: r-a, project_id: p, module: {STYLES}.GcpLike}}"
AZURE = f"{{type: azure, location: l, resource_group: g, module: {STYLES}.AzureLike}}"
WAYS = "[{zone: r-a}, {zone: r-b}, {zone: r-b, market: spot}]"
YAML = """
cluster_name: mine
provider: {provider}
available_node_types:
  head: {{resources: {{CPU: 2}}, node_config: {{}}}}
  cpu: {{resources: {{CPU: 2}}, node_config: {config}, max_workers: 3, offers: {offers}}}
head_node_type: head
worker_start_ray_commands: []
"""
SPOT_B = Offer(zone="r-b", market="spot")


@pytest.fixture(autouse=True)
def _fresh():
    GcpLike.reset()


def config_of(provider=GCP, *, offers="[]", node_config="{machineType: n1}"):
    text = YAML.format(provider=provider, offers=offers, config=node_config)
    return parse_config(Document(text, "cluster.yaml"))


@pytest.fixture
def build(tmp_path):
    made = []

    def make(provider=GCP, **changes):
        config = config_of(provider, **changes)
        context = ProviderContext(
            cluster_name="mine", home=tmp_path, address="", clock=ManualClock(), ids=CountingIds()
        )
        made.append(build_provider(config, lambda: node_launches(config), context))
        return made[-1]

    yield make
    for port in made:
        port.close()


def until(look, is_wanted=bool):
    give_up = time.monotonic() + 60
    while not is_wanted(found := look()):
        assert time.monotonic() < give_up, found
        time.sleep(0.005)
    return found


def launched(port, request_id, offer=None, count=1):
    if offer is None:
        port.launch(request_id, {"cpu": count})
    else:
        port.launch(request_id, {"cpu": count}, (offer,))
    until(lambda: port.list_instances() is not None and not port.under_way(request_id))
    return [m for m in port.list_instances().values() if m.request_id == request_id]


def test_each_zone_has_an_object_and_a_purchase_goes_to_the_zone_of_its_offer(build):
    port = build(offers=WAYS)
    assert port.traits().buys_offers
    (machine,) = launched(port, "r-1", SPOT_B)
    assert (machine.zone, machine.market, machine.node_type) == ("r-b", "spot", "cpu")
    (known,) = GcpLike.world["r-b"].values()
    assert known["config"] == {"machineType": "n1", "scheduling": [{"preemptible": True}]}
    launched(port, "r-2")
    assert [len(GcpLike.world[zone]) for zone in ("r-a", "r-b")] == [1, 1]
    assert set(GcpLike.made) == {"r-a", "r-b"}


def test_a_zone_that_is_sold_out_is_a_failure_of_capacity_and_the_next_one_sells(build):
    GcpLike.sold_out.add("r-a")
    port = build(offers=WAYS)
    port.launch("r-1", {"cpu": 1}, (Offer(zone="r-a"),))
    (failure,) = until(port.poll_launch_failures)
    assert (failure.kind, failure.request_id) == (FailureKind.CAPACITY, "r-1")
    assert len(launched(port, "r-2", Offer(zone="r-b"))) == 1


def test_a_machine_that_was_taken_is_gone_in_every_call(build):
    port = build()
    (machine,) = launched(port, "r-1")
    name, v1 = machine.cloud_id, port.v1
    del GcpLike.world["r-a"][name]
    assert (v1.is_running(name), v1.is_terminated(name), v1.node_tags(name)) == (False, True, {})
    assert (v1.internal_ip(name), v1.external_ip(name), v1.set_node_tags(name, {"a": "b"})) == (
        None,
        None,
        None,
    )
    port.terminate("t-1", [name])
    until(lambda: not port.under_way("t-1"))
    assert port.poll_terminate_failures() == ()


def test_one_machine_that_goes_while_a_list_is_made_does_not_hide_the_others(build):
    port = build()
    one, two = launched(port, "r-1", count=2)
    GcpLike.taken_while_listed.append(one.cloud_id)
    assert list(port.list_instances()) == [two.cloud_id]


def test_a_machine_that_a_list_still_shows_and_no_call_knows_is_not_listed(build, monkeypatch):
    port = build()
    monkeypatch.setattr(GcpLike, "non_terminated_nodes", lambda self, filters: ["ray-mine-worker-gone"])
    assert port.list_instances() == {}


def test_a_zone_that_cannot_be_listed_is_as_it_was_for_a_while(build):
    port = build(offers=WAYS)
    (a,), (b,) = launched(port, "r-1", Offer(zone="r-a")), launched(port, "r-2", Offer(zone="r-b"))
    GcpLike.failing.add("r-b")
    assert set(port.list_instances()) == {a.cloud_id, b.cloud_id}
    port.v1._clock.advance(601.0)
    with pytest.raises(HttpError):
        port.list_instances()


def test_the_only_zone_that_cannot_be_listed_is_an_error(build):
    port = build()
    launched(port, "r-1")
    GcpLike.failing.add("r-a")
    with pytest.raises(HttpError):
        port.list_instances()


def test_machines_in_a_zone_that_the_file_no_longer_has_are_listed_and_ended(build):
    (machine,) = launched(build(offers=WAYS), "r-1", SPOT_B)
    later = build()
    assert list(later.list_instances()) == [machine.cloud_id]
    later.terminate("t-1", [machine.cloud_id])
    until(lambda: not later.under_way("t-1"))
    assert GcpLike.world["r-b"] == {}


def test_batches_are_ended_one_by_one(build):
    port = build()
    names = [one.cloud_id for one in launched(port, "r-1", count=3)]
    del GcpLike.world["r-a"][names[1]]
    port.terminate("t-1", names)
    until(lambda: not port.under_way("t-1"))
    assert (GcpLike.world["r-a"], port.poll_terminate_failures()) == ({}, ())


def test_a_call_that_hangs_is_left_behind_with_its_object(build):
    GcpLike.hangs = hangs = threading.Event()
    one = GuardedObject(lambda: GcpLike({"availability_zone": "r-a"}, "mine"), look_s=0.05)
    with pytest.raises(CallTimedOut, match="non_terminated_nodes"):
        one.call("non_terminated_nodes", {})
    GcpLike.hangs = None
    assert one.call("non_terminated_nodes", {}) == []
    assert GcpLike.made == ["r-a", "r-a"]
    hangs.set()
    one.close()


def test_the_limit_of_a_call_can_be_set_and_is_checked(build):
    slow = GCP.replace("module:", "call_timeout_s: 5, module:")
    assert "call_timeout_s" not in build(slow).v1.provider_config
    with pytest.raises(ConfigError) as refused:
        build(GCP.replace("module:", "call_timeout_s: soon, module:"))
    assert refused.value.path == "provider.call_timeout_s"


def test_azure_is_told_the_zone_and_the_market_in_its_own_words(build):
    size = "{azure_arm_parameters: {vmSize: s, priority: Spot, billingProfile: {maxPrice: 1}}}"
    port = build(AZURE, offers="[{zone: '2'}, {zone: '1', market: spot}]", node_config=size)
    launched(port, "r-1", Offer(zone="2"))
    launched(port, "r-2", Offer(zone="1", market="spot"))
    configs = [one["config"]["azure_arm_parameters"] for one in AzureLike.world["everywhere"].values()]
    assert configs == [
        {"vmSize": "s", "priority": "Regular", "availability_zone": "2"},
        {"vmSize": "s", "priority": "Spot", "billingProfile": {"maxPrice": 1}, "availability_zone": "1"},
    ]
    assert port.v1.is_terminated("never-seen")
    assert (port.traits().ids_ignore_case, build().traits().ids_ignore_case) == (True, False)


@pytest.mark.parametrize("kind", ["aliyun", "vsphere"])
def test_clouds_that_cannot_be_told_do_not_offer_a_choice(build, kind):
    port = build(f"{{type: {kind}, module: {STYLES}.AzureLike}}")
    assert not port.traits().buys_offers
    with pytest.raises(ProviderMisconfigured, match="r-b/spot"):
        port.v1.create_node({"offer": {"zone": "r-b", "market": "spot"}}, {}, 1)


def test_a_zone_of_another_region_is_refused():
    with pytest.raises(ConfigError, match="x-a"):
        build_provider(
            config_of(offers="[{zone: x-a}]"),
            dict,
            ProviderContext(cluster_name="m", home=None, address="", clock=ManualClock(), ids=CountingIds()),
        )


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (HttpError(404), True),
        (HttpError(410), True),
        (HttpError(403), False),
        (ResourceNotFoundError("x"), True),
        (type("ServerException", (Exception,), {"error_code": "InvalidInstanceId.NotFound"})(), True),
        (type("ApiException", (Exception,), {"status": 404})(), True),
        (KeyError("node"), False),
        (TimeoutError("404 s"), False),
    ],
)
def test_what_clouds_raise_for_something_that_is_not_there(error, is_gone):
    assert is_not_found(error) is is_gone


def test_an_error_that_was_caused_by_a_404_is_one():
    try:
        try:
            raise HttpError(404)
        except HttpError as cause:
            raise RuntimeError("cannot read the machine") from cause
    except RuntimeError as error:
        assert is_not_found(error)


def fake_ray(monkeypatch, lookup):
    module = types.ModuleType("ray.autoscaler._private.providers")
    module._get_node_provider_cls = lookup
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_the_class_is_asked_from_the_installed_ray_by_its_type(monkeypatch):
    fake_ray(monkeypatch, lambda config: {"gcp": GcpLike}[config["type"]])
    assert class_of_ray("gcp") is GcpLike


def test_a_library_that_is_missing_is_named_with_what_to_install(monkeypatch):
    def lookup(config):
        raise ImportError("No module named 'googleapiclient'")

    fake_ray(monkeypatch, lookup)
    config = config_of(GCP.replace(f", module: {STYLES}.GcpLike", ""))
    with pytest.raises(ConfigError, match="google-api-python-client") as refused:
        check_provider(config, "cluster.yaml")
    assert refused.value.path == "provider.type"


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLOUDS)
def test_the_installed_ray_has_the_class_or_names_the_library_it_lacks(kind):
    pytest.importorskip("ray", reason="Ray is not installed")
    try:
        found = class_of_ray(kind)
    except ConfigError as error:
        assert f"'{kind}'" in str(error) and CLOUDS[kind].packages in str(error)
    else:
        assert callable(found.non_terminated_nodes)


def test_the_class_completes_the_file_as_under_ray(monkeypatch):
    def bootstrap(data):
        data["available_node_types"]["cpu"]["node_config"]["disks"] = [1]
        return data

    monkeypatch.setattr(GcpLike, "bootstrap_config", staticmethod(bootstrap), raising=False)
    config = config_of()
    answer = kind_of(config).fill_in(config, None)
    assert answer.available_node_types["cpu"].node_config == {"machineType": "n1", "disks": [1]}
