"""A monitor that is killed while a create call is on its way: the next one repeats the launch, once.

It does so only when a machine that was made before the end would be listed.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import spec
from tests.providers.v1.scripted import Scripted, adapted
from tests.providers.v1.test_adapter_threads import LONG_S, soon
from tests.support.builders import demand, node_type

from muster.cluster.controller import ClusterController
from muster.providers.v1.calls import LISTED_WITHIN_S


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("made_before_the_end", [0, 1])
def test_the_launch_is_still_in_the_outbox_and_is_filled_once(gate, made_before_the_end):
    stage = Stage(installer=False, wishes=spec(node_type("cpu")))
    v1 = Scripted()
    stage.clock.advance(5)

    def life(provider):
        port = adapted(provider, threads=True, list_wait_s=LONG_S)
        return port, ClusterController(replace(stage.ports, provider=port), stage.ambient)

    def tick(controller):
        stage.clock.advance(1)
        controller.tick()

    def killed(tags, count):
        """The call reached the cloud or not, and its thread is never heard of again."""
        Scripted.__bases__[0].create_node(v1, {}, tags, made_before_the_end)
        gate.wait(LONG_S)
        raise ConnectionError("this process is dead")

    v1.before_create = killed
    port, controller = life(v1)
    tick(controller)
    stage.runtime.demands = [demand()]
    tick(controller)
    soon(lambda: v1.now_creating == 1)
    outbox = stage.store.load().outbox
    assert [dict(action.shape) for action in outbox] == [{"cpu": 1}]

    v1.before_create = lambda *_: None
    port, controller = life(v1)  # the old adapter is not closed: it was killed
    tick(controller)
    restarted_at = stage.clock.now()
    while (
        made_before_the_end + len(v1.creates) < 2 and stage.clock.now() < restarted_at + 2 * LISTED_WITHIN_S
    ):
        stage.clock.advance(9)
        tick(controller)
    waited_s = stage.clock.now() - restarted_at
    assert waited_s == 0 if made_before_the_end else LISTED_WITHIN_S < waited_s < LISTED_WITHIN_S + 30
    soon(lambda: len(v1.non_terminated_nodes({})) == 1)
    tick(controller)
    tick(controller)
    assert len(v1.creates) == 2 - made_before_the_end
    assert len(v1.non_terminated_nodes({})) == 1
    assert stage.store.load().outbox == ()
    launched = [r for r in stage.store.load().instances.values() if r.node_type == "cpu"]
    assert [(r.state.name, r.cloud_id) for r in launched] == [("ALLOCATED", v1.non_terminated_nodes({})[0])]
    port.close()
