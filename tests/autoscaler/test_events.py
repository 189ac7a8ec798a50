"""Event texts (EV-1), read-only (EV-2), and that nothing is told twice."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

import pytest
from msgspec import structs
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import HEAD_NODE, machine, node, spec
from tests.mistakes.views import assert_view
from tests.support.builders import amounts, demand, gang, node_type, selector

from muster.autoscaler.events import REMOVED_BECAUSE, Event, EventLog, events_of, losses_of
from muster.cluster.model import (
    Constraint,
    LaunchLimits,
    NodeStatus,
    Notice,
    NoticeKind,
    Objective,
    RuntimeReport,
    StatusChange,
    StopCause,
    Strategy,
)
from muster.cluster.ports import NoticeReport
from muster.cluster.snapshot import ProviderTraits
from muster.cluster.states import InstanceState
from muster.errors import EngineUnreachable, QuotaExceeded

NOBODY = frozenset()
GPU = node_type("gpu", {"CPU": 8, "GPU": 2}, max_nodes=4)
FAST = LaunchLimits(upscaling_speed=100.0)
BIG = demand({"CPU": 64})


def texts(tick, told=NOBODY, levels=("info", "warning")):
    return [event.message for event in events_of(told, tick)[0] if event.level in levels]


def running(scene, count):
    """Workers w0.. of type cpu, idle for as long as the test says."""
    scene.stage.runtime.demands = [demand(count=count)]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    for index in range(count):
        scene.machine_for(f"w{index}", request)
    scene.stage.runtime.demands = []
    scene.tick()
    scene.tick()


def idle(scene, seconds):
    names = [each.node_id[2:] for each in scene.stage.runtime.nodes[1:]]
    free = amounts({"CPU": 1})
    scene.stage.runtime.nodes = [
        HEAD_NODE,
        *(node(name, NodeStatus.IDLE, idle_s=seconds, available=free, total=free) for name in names),
    ]


def test_machines_that_nobody_owns_are_found_and_said():
    scene = Scene(wishes=spec(GPU, node_type("cpu", max_nodes=9), objective=Objective.UTILIZATION))
    scene.stage.provider.machines["c-lost"] = machine("lost", node_type="cpu")
    scene.tick()
    assert_view("events/adopted", "\n".join(texts(scene.heard.ticks[-1])))


@pytest.mark.conformance("EV-1")
def test_machines_are_added():
    scene = Scene(wishes=spec(GPU, node_type("cpu", max_nodes=9), objective=Objective.UTILIZATION))
    scene.tick()
    scene.stage.runtime.demands = [demand(count=3), demand({"GPU": 2})]
    tick = scene.tick()
    assert_view("events/added", "\n".join(texts(tick)))
    assert texts(scene.tick()) == []


@pytest.mark.conformance("EV-1")
def test_idle_machines_are_removed():
    scene = Scene(wishes=spec(idle_timeout_s=60.0, max_nodes=None, limits=FAST))
    running(scene, 2)
    idle(scene, 61.0)
    tick = scene.tick()
    assert_view("events/removed_idle", "\n".join([*texts(tick), *texts(tick, levels=("debug",))]))
    assert texts(scene.tick()) == []


def test_what_ray_adds_to_resources_for_itself_is_no_size_of_the_cluster():
    scene = Scene(wishes=spec(max_nodes=None, limits=FAST))
    running(scene, 1)
    scene.stage.runtime.nodes[1] = node(
        "w0", total=amounts({"CPU": 1, "CPU_group_4f": 1, "node:10.0.0.1": 1})
    )
    scene.stage.runtime.demands = [demand()]
    (text,) = texts(scene.tick(), levels=("debug",))
    assert text.endswith(": {CPU: 2}.")


def test_lost_machines_are_told_with_their_reason_and_drained_ones_are_not():
    scene = Scene(wishes=spec(idle_timeout_s=60.0, max_nodes=None, limits=FAST))
    running(scene, 3)
    scene.stage.runtime.nodes = [
        HEAD_NODE,
        node("w0"),
        node("w1", NodeStatus.DEAD),
        node("w2", NodeStatus.DEAD),
    ]
    assert events_of(NOBODY, scene.tick())[0][:2] == (
        Event(
            at=scene.heard.ticks[-1].plan.at,
            level="warning",
            message="Lost 2 node(s) of type cpu (its node is dead).",
        ),
        Event(at=scene.heard.ticks[-1].plan.at, level="info", message="Resized to 1 CPUs."),
    )
    idle_now = node("w0", NodeStatus.IDLE, idle_s=61.0, available=amounts({"CPU": 1}))
    scene.stage.runtime.nodes = [HEAD_NODE, idle_now]
    assert [text for text in texts(scene.tick()) if " 1 " in text and text.endswith(" cpu (idle).")]
    scene.stage.runtime.nodes = [HEAD_NODE, node("w0", NodeStatus.DEAD)]
    assert texts(scene.tick()) == []


def test_a_record_whose_machine_has_another_one_is_not_lost():
    scene = Scene(wishes=spec(max_nodes=None, limits=FAST))
    running(scene, 1)
    tick = scene.tick()
    (record,) = [one for one in tick.ledger.instances.values() if one.node_type == "cpu"]
    gone = StatusChange(InstanceState.TERMINATED, tick.plan.at, "its machine is the answer to another record")
    ended = structs.replace(record, state=gone.state, history=(*record.history, gone))
    plan = structs.replace(tick.plan, writes=(ended,))
    heir = structs.replace(record, instance_id="heir")
    for others, lost in (({}, 1), ({"heir": heir}, 0)):
        ledger = structs.replace(tick.ledger, instances=others)
        assert sum(losses_of(structs.replace(tick, plan=plan, ledger=ledger)).values()) == lost


def test_machines_above_a_limit_are_removed():
    scene = Scene(wishes=spec(max_nodes=None, limits=FAST))
    running(scene, 3)
    scene.stage.spec.answers["current"] = (spec(max_nodes=3), "")
    above_all = texts(scene.tick())
    scene.stage.spec.answers["current"] = (spec(node_type("cpu", max_nodes=1)), "")
    assert_view("events/removed_above_limits", "\n".join([*above_all, *texts(scene.tick())]))


def test_outdated_machines_are_removed():
    old, new = (node_type("cpu", launch_hash=value) for value in ("a", "b"))
    scene = Scene(wishes=spec(old, check_launch_hash=True))
    running(scene, 1)
    scene.stage.spec.answers["current"] = (spec(new, check_launch_hash=True), "")
    assert [text for text in texts(scene.tick()) if " 1 " in text and text.endswith(" cpu (outdated).")]


@pytest.mark.parametrize("cause", [cause for cause in StopCause if cause is not StopCause.UNKNOWN])
def test_every_cause_of_a_removal_has_its_event(cause):
    scene = Scene(wishes=spec(max_nodes=None, limits=FAST))
    running(scene, 1)
    tick = scene.tick()
    (record,) = [one for one in tick.ledger.instances.values() if one.node_type == "cpu"]
    asked = StatusChange(InstanceState.RAY_STOP_REQUESTED, tick.plan.at, "why")
    going = structs.replace(record, state=asked.state, history=(*record.history, asked), stop_cause=cause)
    removed = texts(structs.replace(tick, plan=structs.replace(tick.plan, writes=(going,))))
    assert [text.split(" (")[1] for text in removed if " type cpu (" in text] == [
        f"{REMOVED_BECAUSE[cause]})."
    ]


@pytest.mark.conformance("EV-1")
def test_what_no_type_can_hold_is_told_with_shapes_counts_and_labels():
    scene = Scene()
    scene.tick()
    report = RuntimeReport(
        version=9,
        nodes=(HEAD_NODE,),
        demands=(BIG, demand({"CPU": 1}, 2, selectors=(selector(zone="a"),))),
        gangs=(gang([{"GPU": 1}] * 2, Strategy.STRICT_PACK, "pg7"),),
        constraints=(Constraint(demands=(demand({"TPU": 4}, 3),)),),
    )
    scene.stage.runtime.answers["read"] = lambda: report
    assert_view("events/infeasible", "\n".join(texts(scene.tick())))


def test_what_only_waits_for_a_limit_is_not_called_impossible():
    scene = Scene(wishes=spec(node_type("cpu", max_nodes=1)))
    scene.tick()
    scene.stage.runtime.demands = [demand(count=5)]
    assert_view("events/added_to_the_limit", "\n".join(texts(scene.tick())))


def test_a_warning_is_told_again_only_when_it_changes_or_comes_back(caplog):
    caplog.set_level(logging.INFO, logger="muster.events")
    log = EventLog()
    scene = Scene(outlets=[log])
    scene.tick()

    def told(*demands):
        caplog.clear()
        scene.stage.runtime.demands = list(demands)
        scene.tick()
        return len([r for r in caplog.records if r.name == "muster.events"])

    assert [told(BIG), told(BIG), told(demand({"CPU": 64}, 7))] == [1, 0, 0]  # a count that moves is no news
    assert [told(BIG, demand({"GPU": 1})), told(BIG)] == [1, 1]  # the list changed
    assert [told(), told(BIG)] == [0, 1]  # gone, and back
    assert len(log.newest) == 4


def test_a_runtime_that_cannot_be_read_makes_no_warning_new():
    log = EventLog()
    scene = Scene(outlets=[log])
    scene.stage.runtime.demands = [BIG]
    scene.tick()
    read = scene.stage.runtime.answers["read"]
    scene.stage.runtime.answers["read"] = EngineUnreachable("away")
    scene.tick()
    scene.stage.runtime.answers["read"] = read
    scene.tick()
    assert len(log.newest) == 1


@pytest.mark.conformance("EV-2")
def test_a_read_only_cluster_only_warns():
    scene = Scene()
    scene.stage.provider.answers["traits"] = ProviderTraits(read_only=True)
    scene.stage.runtime.demands = [BIG, demand()]
    scene.tick()
    (text,) = texts(scene.tick())
    assert " {CPU: 64}*1. " in text


def test_a_launch_that_failed_is_told_with_its_reason():
    scene = Scene()
    scene.tick()
    scene.stage.provider.answers["launch"] = QuotaExceeded("quota of 0 machines in eu")
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    (text,) = [text for text in texts(scene.tick()) if "Failed" in text]
    assert " cpu: " in text
    assert "quota of 0 machines in eu" in text


def test_a_notice_is_told_once_with_the_removal_that_follows():
    scene = Scene(wishes=spec(max_nodes=None, limits=FAST))
    running(scene, 1)
    at = scene.stage.clock.now() + 60.0
    soon = Notice(
        cloud_id="c-w0",
        kind=NoticeKind.INTERRUPTION,
        deadline=at,
        source="aws: spot terminate",
        at=scene.stage.clock.now(),
    )
    scene.stage.notices.answers["read"] = NoticeReport(notices=(soon,))
    moment = datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert_view("events/notice", "\n".join(text.replace(moment, "MOMENT") for text in texts(scene.tick())))
    assert texts(scene.tick()) == []
