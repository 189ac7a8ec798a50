"""What reaches the provider for which state of a record; names carry the ids of the conformance list."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.autoscaler.scenes import Scene
from tests.cluster.fakes import Stage
from tests.cluster.worlds import S, machine, record, spec
from tests.providers.v1.scripted import Scripted, adapted, counted
from tests.support.builders import node_type

from muster.autoscaler.metrics import Metrics
from muster.cluster.controller import Executor
from muster.cluster.model import StopCause
from muster.cluster.observe import FailureInbox
from muster.cluster.plan import Drain, Launch, Terminate


class Outbox:
    def __init__(self):
        self.gone = []

    def handed_over(self, request_ids):
        self.gone += request_ids


@pytest.fixture
def stage():
    return Stage(store=Outbox())


def carry_out(stage, *actions, records):
    Executor(stage.ports, FailureInbox()).execute(actions, {r.instance_id: r for r in records})


LAUNCHED = Launch(request_id="r-1", shape={"cpu": 1}, instance_ids=("a",))
ENDED = Terminate(request_id="t-1", cloud_ids=("c-x", "c-y"), instance_ids=("x", "y"))


DRAINED = Drain(request_id="d-1", instance_id="d", node_id="n-d", cause=StopCause.IDLE, deadline_s=0.0)


@pytest.mark.parametrize("state", [s for s in S if s is not S.RAY_STOP_REQUESTED])
@pytest.mark.conformance("SB-1")
def test_sb_1_no_drain_for_other_states(stage, state):
    carry_out(stage, DRAINED, records=[record("d", state)])
    assert stage.drainer.calls == []


@pytest.mark.parametrize("state", [s for s in S if s is not S.REQUESTED])
@pytest.mark.conformance("SB-4")
def test_sb_4_no_launch_for_other_states(stage, state):
    carry_out(stage, LAUNCHED, records=[record("a", state)])
    assert stage.provider.calls == []


@pytest.mark.conformance("SB-5")
def test_sb_5_two_requests_are_two_launches_with_their_shapes(stage):
    one = Launch(request_id="r-1", shape={"cpu": 2}, instance_ids=("a", "b"))
    other = Launch(request_id="r-2", shape={"gpu": 1}, instance_ids=("g",))
    waiting = [
        record("a", S.REQUESTED),
        record("b", S.REQUESTED),
        record("g", S.REQUESTED, launch_request_id="r-2"),
    ]
    carry_out(stage, one, other, records=waiting)
    assert stage.provider.calls == [("launch", "r-1", {"cpu": 2}), ("launch", "r-2", {"gpu": 1})]


@pytest.mark.conformance("SB-6")
def test_sb_6_two_ticks_are_two_calls(stage):
    again = Launch(request_id="r-2", shape={"cpu": 1}, instance_ids=("b",))
    carry_out(stage, LAUNCHED, records=[record("a", S.REQUESTED)])
    carry_out(stage, again, records=[record("b", S.REQUESTED, launch_request_id="r-2")])
    assert stage.provider.called("launch") == [("r-1", {"cpu": 1}), ("r-2", {"cpu": 1})]


@pytest.mark.parametrize("state", [s for s in S if s is not S.TERMINATING])
@pytest.mark.conformance("SB-7")
def test_sb_7_no_terminate_for_other_states(stage, state):
    carry_out(stage, ENDED, records=[record("x", state), record("y", state)])
    assert stage.provider.calls == []


@pytest.mark.conformance("SB-8")
def test_sb_8_one_terminate_for_all(stage):
    carry_out(stage, ENDED, records=[record("x", S.TERMINATING), record("y", S.TERMINATING)])
    assert stage.provider.calls == [("terminate", "t-1", ("c-x", "c-y"))]


@pytest.mark.conformance("SB-9")
def test_sb_9_an_id_named_twice_is_ended_once():
    v1 = Scripted()
    port = adapted(v1)
    port.launch("r-1", {"cpu": 2})
    one, other = port.list_instances()
    port.terminate("t-1", [one, other, one])
    assert v1.terminates == [[one, other]]


@pytest.mark.conformance("SB-10")
def test_sb_10_no_ids_no_call():
    v1 = Scripted()
    port = adapted(v1)
    port.terminate("t-1", [])
    port.terminate("t-2", ["", ""])
    assert v1.terminates == []


def test_an_effect_stays_in_the_outbox_until_the_adapter_is_done_with_it(stage):
    """Whoever is killed before the machine is listed finds the launch in the outbox."""
    v1 = Scripted()
    port = adapted(v1)
    stage.ports = type(stage.ports)(**{**vars(stage.ports), "provider": port})
    done_at = []
    v1.before_create = lambda *_: done_at.append(port.under_way("r-1"))
    records = [record("a", S.REQUESTED)]
    carry_out(stage, LAUNCHED, records=records)
    assert (done_at, stage.store.gone, counted(port)) == ([True], [], {"cpu": 1})
    carry_out(stage, LAUNCHED, records=records)
    assert stage.store.gone == ["r-1"]
    port.under_way = lambda request_id: True
    stage.store.gone.clear()
    carry_out(stage, LAUNCHED, records=records)
    assert (stage.store.gone, v1.creates) == ([], [("cpu", 1)])


@pytest.mark.conformance("SB-8", "SB-11")
def test_sb_8_and_sb_11_machines_count_as_stopped_when_they_are_gone_and_not_before():
    metrics = Metrics("s")
    cpu = node_type("cpu")
    scene = Scene(wishes=spec(cpu, idle_timeout_s=None, max_nodes=3), outlets=[metrics], metrics=metrics)

    def stopped():
        return metrics.registry.get_sample_value(
            "autoscaler_stopped_nodes_total", {"SessionName": "s", "ClusterName": ""}
        )

    scene.tick()
    machines = scene.stage.provider.machines
    machines.update({f"c-{name}": machine(name) for name in ("x", "y")})
    scene.tick()
    scene.stage.spec.answers["current"] = (spec(replace(cpu, max_nodes=0), max_nodes=1), "")
    for _ in range(3):
        scene.tick()
    (ended,) = scene.stage.provider.called("terminate")
    assert (set(ended[1]), stopped()) == ({"c-x", "c-y"}, 0)
    del machines["c-x"], machines["c-y"]
    scene.tick()
    assert stopped() == 2
