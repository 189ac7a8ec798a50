"""A create call that returns None and made fewer machines, and calls that end as no call should."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import spec
from tests.mistakes.views import assert_line
from tests.providers.v1.scripted import LAUNCHES, Scripted, adapted, counted
from tests.providers.v1.test_adapter_threads import soon
from tests.support.builders import demand, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import Backoff, FailureKind
from muster.cluster.ports import Ports
from muster.host.call_threads import InlinePool
from muster.providers.background_calls import CallPools, inline_pools
from muster.providers.v1.adapter import V1Adapter
from muster.providers.v1.launches import SECOND_LOOK_S


class Silent(Scripted):
    """Makes what it has room for, says nothing, and shows a machine only after so many lists."""

    def __init__(self, room=99, late=0, keeps_tags=True):
        super().__init__()
        self.room, self.late, self.keeps_tags = room, late, keeps_tags
        self.hidden: dict[str, int] = {}

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        kept = tags if self.keeps_tags else {k: v for k, v in tags.items() if k != "ray-launch-request"}
        made = super().create_node_with_resources_and_labels(
            node_config, kept, min(count, max(0, self.room - len(self.nodes))), resources, labels
        )
        self.hidden.update(dict.fromkeys(made, self.late))
        self.asked = count

    def non_terminated_nodes(self, tag_filters):
        self.hidden = {node: looks - 1 for node, looks in self.hidden.items() if looks}
        return [node for node in super().non_terminated_nodes(tag_filters) if node not in self.hidden]


def told(port):
    return [(f.kind, f.message) for f in port.poll_launch_failures()]


def short(port):
    """Return the kind of each failure, and how many machines the provider made of how many."""
    return [(kind, re.findall(r"\d+", message)) for kind, message in told(port)]


def test_the_rest_fails_at_once_and_only_the_rest():
    port = adapted(Silent(room=3))
    port.launch("r-1", {"cpu": 5})
    assert (counted(port), short(port)) == ({"cpu": 3}, [(FailureKind.CAPACITY, ["3", "5"])] * 2)
    port.launch("r-2", {"cpu": 2})  # nothing is made; the tags of the others show that it would be seen
    assert short(port) == [(FailureKind.CAPACITY, ["0", "2"])] * 2


def test_several_batches_are_counted_together():
    port = adapted(Silent(room=8))
    port.launch("r-1", {"cpu": 12})
    assert (counted(port), short(port)) == ({"cpu": 8}, [(FailureKind.CAPACITY, ["8", "12"])] * 4)


def test_a_list_that_is_late_is_looked_at_again_and_fails_nothing():
    pauses = []
    v1 = Silent(late=2)
    inline = inline_pools()
    pools = CallPools(inline.launch, inline.terminate, InlinePool, pause=pauses.append)
    port = V1Adapter(v1, lambda: LAUNCHES, cluster_name=v1.cluster_name, pools=pools)
    port.launch("r-1", {"cpu": 2})
    assert (pauses, told(port), counted(port)) == ([SECOND_LOOK_S], [], {"cpu": 2})


def test_a_machine_that_comes_after_all_shows_that_the_list_is_late_and_no_more_is_concluded_from_it():
    v1 = Silent()
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1})
    v1.late = 5
    port.launch("r-2", {"cpu": 2})
    assert len(told(port)) == 2
    for _ in range(5):
        port.list_instances()
    assert counted(port) == {"cpu": 3}
    port.launch("r-3", {"cpu": 2})
    assert told(port) == []


def test_nothing_is_concluded_of_a_provider_that_keeps_no_request_tags():
    port = adapted(Silent(room=1, keeps_tags=False))
    port.launch("r-1", {"cpu": 3})
    assert told(port) == []


def test_nothing_is_concluded_when_the_list_fails_after_the_call():
    v1 = Silent(room=1)
    port = adapted(v1)

    def broken(filters):
        if v1.creates:
            raise ConnectionError("no list")

    v1.before_list = broken
    port.launch("r-1", {"cpu": 3})
    assert told(port) == []


def test_the_missing_machine_is_asked_for_again_after_an_ordinary_back_off():
    stage = Stage(installer=False, wishes=spec(node_type("cpu"), backoff=Backoff(base_s=5.0, max_s=60.0)))
    v1 = Silent(room=1)
    port = adapted(v1)
    ports = Ports(**{**vars(stage.ports), "provider": port})
    controller = ClusterController(ports, stage.ambient)
    v1.nodes.clear()
    stage.clock.advance(5)
    controller.tick()
    stage.runtime.demands = [demand(count=2)]
    controller.tick()
    assert len(v1.nodes) == 1
    v1.room = 9
    began = stage.clock.now()
    while len(v1.nodes) < 2 and stage.clock.now() < began + 700:
        stage.clock.advance(1)
        controller.tick()
    assert stage.clock.now() - began < 30
    for _ in range(5):
        stage.clock.advance(1)
        controller.tick()
    assert len(v1.nodes) == 2


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
def test_whatever_a_call_on_a_thread_raises_is_a_failure_and_the_threads_live_on(error):
    v1 = Scripted()

    def leave(*_):
        raise error

    v1.before_create = leave
    port = adapted(v1, threads=True)
    for number in range(4):  # more often than there are threads
        port.launch(f"r-{number}", {"cpu": 1})
    failures = []
    soon(lambda: failures.extend(port.poll_launch_failures()) or len(failures) == 4)
    assert {f.message for f in failures} == {f"{type(error).__name__}: {error}".strip()}
    v1.before_list = leave
    with pytest.raises(Exception, match=type(error).__name__):
        port.list_instances()
    v1.before_list = lambda *_: None
    v1.before_create = lambda *_: None
    port.launch("r-9", {"cpu": 1})
    soon(lambda: port.list_instances() and not port.under_way("r-9"))
    v1.before_terminate = leave
    (node,) = port.list_instances()
    port.terminate("t-1", [node])
    ended = []
    soon(lambda: ended.extend(port.poll_terminate_failures()) or ended)
    assert [f.cloud_id for f in ended] == [node]
    port.close()


def test_an_error_that_cannot_be_shown_closes_its_order():
    class Mute(RuntimeError):
        code = property(lambda self: 1 / 0)

        def __str__(self):
            raise ValueError("no words")

    v1 = Scripted()

    def refuse(*_):
        raise Mute

    v1.before_create = refuse
    port = adapted(v1)
    port.launch("r-1", {"cpu": 2})
    message = "Mute: (its message cannot be shown: str() raised ValueError)"
    assert (told(port), port.under_way("r-1")) == ([(FailureKind.UNKNOWN, message)] * 2, False)


def test_a_list_that_breaks_while_it_is_walked_is_an_error_of_the_list():
    v1 = Scripted()

    def half(filters):
        yield "one"
        raise SystemExit("no more")

    v1.non_terminated_nodes = half
    v1.node_tags = lambda node_id: {}
    with pytest.raises(Exception, match="SystemExit"):
        adapted(v1).list_instances()


def test_a_provider_that_cannot_be_closed_is_closed_all_the_same(caplog):
    v1 = Scripted()

    def stuck():
        raise SystemExit("still busy")

    v1.close = stuck
    adapted(v1).close()
    (warning,) = caplog.messages
    assert_line("providers", "provider that cannot be closed", warning)


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), ValueError("no")], ids=repr)
def test_a_machine_whose_address_cannot_be_read_is_listed_without_it(error):
    v1 = Scripted()
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1})

    def broken(node_id):
        raise error

    v1.internal_ip = broken
    ((_, machine),) = port.list_instances().items()
    assert (machine.kind.name, machine.request_id, machine.internal_ip) == ("WORKER", "r-1", "")
    v1.node_tags = broken
    assert [m.kind.name for m in port.list_instances().values()] == ["UNMANAGED"]


def test_ctrl_c_of_the_user_stays_ctrl_c():
    assert threading.current_thread() is threading.main_thread()
    v1 = Scripted()

    def interrupted(*_):
        raise KeyboardInterrupt

    v1.before_list = interrupted
    with pytest.raises(KeyboardInterrupt):
        adapted(v1).list_instances()
