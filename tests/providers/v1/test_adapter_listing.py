"""V1Adapter's list: what the tags say, and no bad row that hides the others."""

from __future__ import annotations

import pytest
from tests.mistakes.views import assert_line
from tests.providers.v1.scripted import Scripted, adapted

from muster.cluster.model import CloudInstance, NodeKind


@pytest.fixture
def v1():
    return Scripted()


def node(v1, **tags):
    names = {"kind": "ray-node-type", "type": "ray-user-node-type", "hash": "ray-launch-config"}
    return next(iter(v1.create_node({}, {names.get(k, k): v for k, v in tags.items()}, 1)))


def test_a_machine_is_shown_with_everything_its_tags_say(v1):
    head = node(v1, kind="head", type="head-type", hash="h-head")
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1})
    worker = next(n for n in v1.non_terminated_nodes({}) if n != head)
    assert port.list_instances() == {
        head: CloudInstance(
            cloud_id=head,
            node_type="head-type",
            kind=NodeKind.HEAD,
            launch_hash="h-head",
            internal_ip=v1.internal_ip(head),
        ),
        worker: CloudInstance(
            cloud_id=worker,
            node_type="cpu",
            request_id="r-1",
            launch_hash="h-cpu",
            internal_ip=v1.internal_ip(worker),
        ),
    }


def test_machines_without_a_kind_and_unmanaged_ones_are_left_out(v1):
    node(v1)
    node(v1, kind="unmanaged", type="cpu")
    assert adapted(v1).list_instances() == {}


def test_a_kind_nobody_knows_is_shown_as_nobodys_and_told_once(v1, caplog):
    strange = node(v1, kind="workr", type="cpu")
    good = node(v1, kind="worker", type="cpu")
    port = adapted(v1)
    for _ in range(2):
        listed = port.list_instances()
    assert {key: m.kind for key, m in listed.items()} == {strange: NodeKind.UNMANAGED, good: NodeKind.WORKER}
    (warning,) = caplog.messages
    assert_line("providers", "machine of an unknown kind", warning.replace(strange, "MACHINE"))


def test_a_machine_whose_tags_cannot_be_read_still_exists_and_the_others_are_shown(v1, caplog):
    bad = node(v1, kind="worker", type="cpu")
    good = node(v1, kind="worker", type="cpu")
    read = v1.node_tags
    v1.node_tags = lambda node_id: read(node_id) if node_id != bad else 1 / 0
    listed = adapted(v1).list_instances()
    assert (listed[bad].kind, listed[bad].node_type, listed[good].node_type) == (
        NodeKind.UNMANAGED,
        "",
        "cpu",
    )
    (warning,) = caplog.messages
    assert_line("providers", "machine with unreadable tags", warning.replace(bad, "MACHINE"))


def test_details_that_cannot_be_had_do_not_hide_the_machine(v1):
    node_id = node(v1, kind="worker", type="cpu")

    def broken(node_id):
        raise ConnectionError("no")

    v1.is_running = v1.internal_ip = v1.external_ip = broken
    assert adapted(v1).list_instances() == {
        node_id: CloudInstance(cloud_id=node_id, node_type="cpu", is_running=False)
    }


def test_what_the_provider_raises_is_what_the_loop_gets(v1):
    def down(filters):
        raise ConnectionError("the cloud does not answer")

    v1.before_list = down
    port = adapted(v1)
    with pytest.raises(ConnectionError, match="does not answer"):
        port.list_instances()
    v1.before_list = lambda filters: None
    assert port.list_instances() == {}
