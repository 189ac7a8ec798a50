"""The loop: commit before effects, failures kept until decided, and nothing outside can stop it."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace
from tests.cluster.fakes import START, Stage
from tests.cluster.worlds import HEAD, HEAD_MACHINE, HEAD_NODE, S, machine, node, record, spec
from tests.mistakes.views import assert_line
from tests.support.builders import amounts, demand, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import FailureKind, LaunchFailure, LaunchLimits, NodeStatus, TerminateFailure
from muster.cluster.plan import Launch
from muster.cluster.ports import PortErrors
from muster.errors import CapacityExhausted, StoreError, Throttled
from muster.stores.ledger.memory import MemoryInstanceStore


class Moody:
    """Store faults: the named moments fail, each as often as told."""

    def __init__(self):
        self.failing = []

    def before_write(self, operation):
        self._pass(f"before {operation}")

    def after_write(self, operation):
        self._pass(f"after {operation}")

    def _pass(self, moment):
        if moment in self.failing:
            self.failing.remove(moment)
            raise StoreError(f"{moment}: disk full")


@pytest.fixture
def moody():
    return Moody()


@pytest.fixture
def stage(moody):
    return Stage(store=MemoryInstanceStore(faults=moody))


@pytest.fixture
def loop(stage):
    controller = ClusterController(stage.ports, stage.ambient)
    controller.tick()  # the head is adopted
    return controller


def tick(stage, loop, seconds=5.0):
    stage.clock.advance(seconds)
    return loop.tick().plan


def after_an_hour(stage, loop):
    """The time in which a node must come is over at a report that follows another."""
    tick(stage, loop, seconds=3590.0)
    tick(stage, loop, seconds=11.0)


def test_the_result_holds_the_ledger_as_the_store_has_it(stage, loop):
    stage.runtime.demands = [demand()]
    stage.provider.machines["c-odd"] = machine("odd")  # without a node: terminated after an hour
    stage.clock.advance(5.0)
    stage.provider.answers["terminate"] = RuntimeError("boom")  # its effect stays in the outbox
    for seconds in (5.0, 5.0, 3601.0, 5.0):
        stage.clock.advance(seconds)
        result = loop.tick()
        left = stage.store.load()
        assert (result.ledger.version, result.ledger.memory) == (left.version, left.memory)
        assert list(result.ledger.instances.items()) == list(left.instances.items())
        assert (result.ledger.outbox, result.ledger.newest_at) == (left.outbox, left.newest_at)
    assert left.outbox
    assert result.port_errors == PortErrors(terminate=1)


def test_the_result_counts_what_the_ports_refused(stage, loop):
    stage.provider.answers["launch"] = CapacityExhausted("sold out")
    stage.runtime.demands = [demand()]
    stage.provider.answers["poll_terminate_failures"] = (TerminateFailure(cloud_id="c", message="no"),)
    stage.spec.answers["current"] = (spec(), "line 3")
    assert loop.tick().port_errors == PortErrors(launch=1, terminate=1, config="line 3")
    stage.runtime.answers["read"] = away = OSError("away")
    result = loop.tick()
    assert (result.port_errors.runtime, result.snapshot.runtime) == (away, None)


def test_the_result_of_a_tick_without_a_ledger(stage, loop, monkeypatch):
    monkeypatch.setattr(stage.store, "load", lambda: (_ for _ in ()).throw(StoreError("gone")))
    result = loop.tick()
    assert (result.is_observed, result.is_decided, result.ledger.instances) == (False, False, {})
    assert [q.source for q in result.plan.quarantined] == ["ledger"]


def workers(stage):
    live = stage.store.load().instances.values()
    return [r.state.name for r in live if r.node_type != "head"]


def test_the_whole_life_of_one_machine(stage, loop):
    stage.runtime.demands = [demand()]
    tick(stage, loop)
    ((request, shape),) = stage.provider.called("launch")
    assert (shape, workers(stage)) == ({"cpu": 1}, ["REQUESTED"])
    stage.provider.machines["c-w"] = machine("w", request_id=request)
    tick(stage, loop)
    assert workers(stage) == ["ALLOCATED"]
    stage.runtime.nodes = [HEAD_NODE, node("w")]
    stage.runtime.demands = []
    tick(stage, loop)
    assert workers(stage) == ["RAY_RUNNING"]
    stage.runtime.nodes = [HEAD_NODE, node("w", NodeStatus.IDLE, available=amounts({"CPU": 1}), idle_s=301.0)]
    tick(stage, loop)
    ((drain,),) = stage.drainer.called("drain")
    assert (workers(stage), drain.node_id) == (["RAY_STOP_REQUESTED"], "n-w")
    stage.runtime.nodes = [HEAD_NODE, node("w", NodeStatus.DRAINING)]
    tick(stage, loop)
    assert workers(stage) == ["RAY_STOPPING"]
    stage.runtime.nodes = [HEAD_NODE, node("w", NodeStatus.DEAD)]
    tick(stage, loop)
    ((_, cloud_ids),) = stage.provider.called("terminate")
    assert (workers(stage), cloud_ids) == (["TERMINATING"], ("c-w",))
    del stage.provider.machines["c-w"]
    tick(stage, loop)
    assert workers(stage) == []
    (ended,) = stage.store.find(states=[S.TERMINATED])
    assert [change.state.name for change in ended.history] == [
        "QUEUED",
        "REQUESTED",
        "ALLOCATED",
        "RAY_RUNNING",
        "RAY_STOP_REQUESTED",
        "RAY_STOPPING",
        "RAY_STOPPED",
        "TERMINATING",
        "TERMINATED",
    ]
    assert (len(stage.provider.called("launch")), len(stage.provider.called("terminate"))) == (1, 1)


def test_a_quiet_tick_writes_nothing_and_still_reports(stage, loop):
    version = stage.store.load().version
    published = len(stage.runtime.called("publish"))
    for _ in range(3):
        assert tick(stage, loop).writes == ()
    assert stage.store.load().version == version
    assert [call[0] for call in stage.runtime.called("publish")[published:]] == [version] * 3


def test_published_versions_never_go_back_also_after_a_restart(stage, loop):
    stage.runtime.demands = [demand()]
    tick(stage, loop)
    tick(stage, ClusterController(stage.ports, stage.ambient))
    versions = [call[0] for call in stage.runtime.called("publish")]
    assert versions == sorted(versions)


def test_without_a_commit_nothing_is_done_and_nothing_is_lost(stage, moody, loop, caplog):
    stage.runtime.demands = [demand()]
    tick(stage, loop)
    ((request, _),) = stage.provider.called("launch")
    failure = LaunchFailure(
        request_id=request, node_type="cpu", kind=FailureKind.CAPACITY, message="sold out"
    )
    stage.provider.answers["poll_launch_failures"] = (failure,)
    moody.failing = ["before commit"]
    published = len(stage.runtime.called("publish"))
    plan = tick(stage, loop)
    (note,) = plan.quarantined
    assert (note.source, note.message.partition(":")[0]) == ("ledger", "StoreError")
    assert (plan.writes, plan.actions, workers(stage)) == ((), (), ["REQUESTED"])
    assert len(stage.runtime.called("publish")) == published
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert_line("cluster", "ledger unusable", warning)
    tick(stage, loop)  # the failure was told once, and is still known
    assert workers(stage) == []
    (failed,) = stage.store.find(states=[S.ALLOCATION_FAILED])
    assert failed.details.split(": ") == [failure.kind.value, failure.message]
    assert len(stage.provider.called("launch")) == 1


def test_a_failure_decided_in_a_commit_nobody_confirmed_is_not_decided_again(stage, moody, loop):
    """Stored, but the answer was lost: the one refusal must not fail the second machine, which may come."""
    stage.spec.answers["current"] = (spec(limits=LaunchLimits(upscaling_speed=5.0)), "")
    stage.runtime.demands = [demand(count=2)]
    tick(stage, loop)
    ((request, shape),) = stage.provider.called("launch")
    assert shape == {"cpu": 2}
    stage.provider.answers["poll_launch_failures"] = (LaunchFailure(request_id=request, node_type="cpu"),)
    moody.failing = ["after commit"]
    tick(stage, loop, seconds=1.0)
    tick(stage, loop, seconds=1.0)
    assert workers(stage) == ["REQUESTED"]
    assert len(stage.store.find(states=[S.ALLOCATION_FAILED])) == 1


def test_a_ledger_that_moved_on_is_read_again_and_no_failure_is_lost(stage, loop):
    stage.runtime.demands = [demand()]
    tick(stage, loop)
    ((request, _),) = stage.provider.called("launch")
    stage.provider.answers["poll_launch_failures"] = (LaunchFailure(request_id=request, node_type="cpu"),)
    commit = stage.store.commit

    def conflict(version, plan):
        stage.store.raise_version(version + 5)
        return commit(version, plan)

    stage.store.commit = conflict
    assert "VersionConflict" in tick(stage, loop).quarantined[-1].message
    stage.store.commit = commit
    tick(stage, loop)
    assert workers(stage) == []


@pytest.mark.parametrize("error", [StoreError("locked"), OSError("locked")])
def test_a_ledger_that_cannot_be_read_is_said_and_tried_again(stage, loop, error):
    load, stage.store.load = stage.store.load, None

    def broken():
        raise error

    stage.store.load = broken
    plan = tick(stage, loop)
    assert [q.message for q in plan.quarantined] == [f"{type(error).__name__}: locked"]
    stage.store.load = load
    stage.runtime.demands = [demand()]
    tick(stage, loop)
    assert workers(stage) == ["REQUESTED"]


@pytest.mark.parametrize("moment", ["before handed_over", "after handed_over", "after commit"])
def test_an_effect_that_may_have_happened_is_repeated_under_the_same_id(stage, moody, loop, moment):
    stage.runtime.demands = [demand()]
    moody.failing = [moment]
    assert [q.source for q in tick(stage, loop).quarantined] == ["ledger"]
    for _ in range(3):
        tick(stage, loop)
    calls = stage.provider.called("launch")
    assert len({request for request, _ in calls}) == 1
    assert len(calls) == (2 if moment == "before handed_over" else 1)
    assert workers(stage) == ["REQUESTED"]


def test_a_controller_killed_between_commit_and_effect_is_continued_by_the_next(stage, loop):
    class Killed(KeyboardInterrupt):
        pass

    stage.runtime.demands = [demand()]
    stage.provider.answers["launch"] = Killed()
    with pytest.raises(Killed):
        tick(stage, loop)
    assert [type(action) for action in stage.store.load().outbox] == [Launch]
    del stage.provider.answers["launch"]
    tick(stage, ClusterController(stage.ports, stage.ambient))
    first, second = stage.provider.called("launch")
    assert first == second
    assert (workers(stage), stage.store.load().outbox) == (["REQUESTED"], ())


def test_a_lost_answer_is_asked_again_with_the_same_id_until_it_is_heard(stage, loop):
    stage.runtime.demands = [demand()]
    stage.provider.answers["launch"] = ConnectionError("reset")
    for _ in range(3):
        tick(stage, loop)
    del stage.provider.answers["launch"]
    for _ in range(2):
        tick(stage, loop)
    calls = stage.provider.called("launch")
    assert len(calls) == 4
    assert {request for request, _ in calls} == {calls[0][0]}
    assert workers(stage) == ["REQUESTED"]


def test_a_refused_launch_fails_its_record_and_backs_the_type_off(stage, loop):
    stage.runtime.demands = [demand()]
    stage.provider.answers["launch"] = CapacityExhausted("sold out")
    tick(stage, loop)
    plan = tick(stage, loop, seconds=1.0)
    assert workers(stage) == []
    assert plan.memory.health["cpu"].kind is FailureKind.CAPACITY
    assert (stage.store.load().outbox, len(stage.provider.called("launch"))) == ((), 1)
    tick(stage, loop, seconds=4.9)
    assert len(stage.provider.called("launch")) == 1
    tick(stage, loop, seconds=0.2)
    assert len(stage.provider.called("launch")) == 2


def test_a_refused_termination_is_repeated_once_at_once_and_then_with_pauses(stage, loop):
    stage.provider.machines["c-w"] = machine("w")
    stage.runtime.nodes = [HEAD_NODE, node("w", NodeStatus.DEAD)]
    stage.provider.answers["terminate"] = Throttled("slow down")
    tick(stage, loop)  # adopted; the dead node is of an older life
    stage.runtime.nodes = [HEAD_NODE]
    after_an_hour(stage, loop)  # its node never came
    assert len(stage.provider.called("terminate")) == 1
    tick(stage, loop, seconds=1.0)
    assert len(stage.provider.called("terminate")) == 2
    calls = []
    for _ in range(40):
        before = len(stage.provider.called("terminate"))
        tick(stage, loop, seconds=1.0)
        calls.append(len(stage.provider.called("terminate")) - before)
    assert (max(calls), sum(calls)) == (1, 3)  # after 5, 10 and 20 s
    assert len(stage.store.load().outbox) <= 1


@pytest.mark.parametrize(
    ("port", "method"),
    [("runtime", "publish"), ("provider", "list_instances"), ("runtime", "read"), ("provider", "traits")],
)
def test_a_port_that_always_raises_does_not_stop_the_loop(stage, loop, port, method):
    getattr(stage, port).answers[method] = RuntimeError("down")
    for _ in range(3):
        plan = tick(stage, loop)
        assert plan.writes == ()
    assert "head" in {r.node_type for r in stage.store.load().instances.values()}


def test_what_is_set_aside_is_logged_when_it_changes_and_not_every_tick(stage, loop, caplog):
    stage.runtime.nodes = [HEAD_NODE, node("odd", NodeStatus.UNSPECIFIED)]
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            tick(stage, loop)
    assert caplog.messages.count("set aside: node n-odd: status UNSPECIFIED: ignored") == 1


def test_a_tick_that_changes_something_is_one_line(stage, loop, caplog):
    stage.runtime.demands = [demand()]
    with caplog.at_level(logging.INFO):
        tick(stage, loop)
        tick(stage, loop)
    (line,) = [line for line in caplog.messages if line.startswith("tick ")]
    assert line.split() == ["tick", "tick=t-0.000002", "requested=1", "launch_calls=1"]


def transitions(caplog):
    return [line for line in caplog.messages if line.startswith("instance=")]


def test_each_transition_is_one_line_with_instance_machine_type_and_reason(stage, loop, caplog):
    stage.runtime.demands = [demand()]
    with caplog.at_level(logging.INFO):
        tick(stage, loop)
        tick(stage, loop)
        (request,) = [launched[0] for launched in stage.provider.called("launch")]
        stage.provider.machines["c-1"] = machine("1", request_id=request)
        tick(stage, loop)
        tick(stage, ClusterController(stage.ports, stage.ambient))
    shown = [(line.split()[:3], line.split(": ")[0].split()[3:]) for line in transitions(caplog)]
    assert shown == [
        (["instance=t-0.000002-i1", "machine=-", "type=cpu"], ["-", "->", "QUEUED"]),
        (["instance=t-0.000002-i1", "machine=-", "type=cpu"], ["QUEUED", "->", "REQUESTED"]),
        (["instance=t-0.000002-i1", "machine=c-1", "type=cpu"], ["REQUESTED", "->", "ALLOCATED"]),
    ]


@pytest.mark.parametrize("moment", ["before commit", "after commit"])
def test_a_transition_is_logged_once_it_is_known_to_be_stored(stage, loop, moody, caplog, moment):
    stage.runtime.demands = [demand()]
    moody.failing = [moment]
    with caplog.at_level(logging.INFO):
        tick(stage, loop)
        assert transitions(caplog) == []
        tick(stage, loop)
        tick(stage, loop)
    assert len(transitions(caplog)) == 2


def test_a_stuck_instance_is_logged_once(stage, loop, caplog):
    stage.runtime.demands = [demand()]
    stage.spec.answers["current"] = (spec(limits=LaunchLimits(max_concurrent=0)), "")
    for _ in range(30):
        tick(stage, loop)
    stuck = [line for line in caplog.messages if line.startswith("stuck: ")]
    assert [line.split(": ")[1].split() for line in stuck] == [
        ["instance=t-0.000002-i1", "machine=-", "type=cpu"]
    ]


def test_an_instance_that_is_stuck_and_ends_in_the_same_tick_does_not_stop_the_loop(stage, loop):
    stage.runtime.demands = [demand()]
    stage.spec.answers["current"] = (spec(limits=LaunchLimits(max_concurrent=0)), "")
    tick(stage, loop)
    stage.spec.answers["current"] = (spec(node_type("cpu", max_nodes=0)), "")
    ended = tick(stage, loop, seconds=1_000.0)
    assert [record.state for record in ended.writes] == [S.TERMINATED]


def test_time_does_not_go_back_for_a_new_controller_on_a_machine_with_a_wrong_clock(stage, loop):
    stage.runtime.demands = [demand()]
    assert tick(stage, loop).at == START + 5
    stage.clock.jump(-9_000)
    assert ClusterController(stage.ports, stage.ambient).tick().plan.at >= START + 5


def test_a_record_whose_history_had_to_be_mended_can_be_stored(stage):
    """A decision the store refuses would be refused again every tick: the loop would be alive and frozen."""
    odd = record("odd", S.RAY_RUNNING, history=(), version=1)
    store = stage.store
    store._state = replace(store._state, version=1, instances={"odd": odd, "head": replace(HEAD, version=1)})
    stage.provider.machines = {"c-head": HEAD_MACHINE, "c-odd": machine("odd")}
    stage.runtime.nodes = [HEAD_NODE, node("odd")]
    plan = ClusterController(stage.ports, stage.ambient).tick().plan
    assert [q.source.split() for q in plan.quarantined] == [["record", "odd"]]
    repaired = store.load().instances["odd"]
    assert (repaired.version, repaired.since) == (2, START)


def test_a_lowered_maximum_while_running_drains_with_a_deadline(stage, loop):
    for name in "ab":
        stage.provider.machines[f"c-{name}"] = machine(name)
    stage.runtime.nodes = [HEAD_NODE, node("a"), node("b")]
    tick(stage, loop)
    assert workers(stage) == ["RAY_RUNNING", "RAY_RUNNING"]
    one = replace(spec().node_types[1], max_nodes=1)
    stage.spec.answers["current"] = (spec(one), "")
    tick(stage, loop)
    ((drain,),) = stage.drainer.called("drain")
    assert (drain.deadline_s, drain.may_be_refused) == (60.0, False)
    assert sorted(workers(stage)) == ["RAY_RUNNING", "RAY_STOP_REQUESTED"]


def test_a_termination_told_to_have_failed_is_seen_by_its_record(stage, loop):
    stage.provider.machines["c-w"] = machine("w")
    tick(stage, loop)
    after_an_hour(stage, loop)
    assert workers(stage) == ["TERMINATING"]
    stage.provider.answers["poll_terminate_failures"] = (TerminateFailure(cloud_id="c-w", message="locked"),)
    tick(stage, loop)
    (record_,) = (r for r in stage.store.load().instances.values() if r.node_type == "cpu")
    assert [c.state.name for c in record_.history[-3:]] == [
        "TERMINATING",
        "TERMINATION_FAILED",
        "TERMINATING",
    ]
    assert record_.history[-2].details.split(": ") == [FailureKind.UNKNOWN.value, "locked"]


@pytest.mark.parametrize("method", ["launch", "terminate"])
@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("x"), NotImplementedError()])
def test_any_exception_from_launch_or_terminate_leaves_the_rest_going(stage, loop, method, error):
    """10.1.9. The effect is repeated under its id; a machine that comes up meanwhile is followed."""
    stage.provider.machines["c-dud"] = machine("dud")
    tick(stage, loop)
    stage.provider.answers[method] = error
    stage.provider.machines["c-fine"] = machine("fine")
    stage.runtime.nodes = [HEAD_NODE, node("fine")]
    stage.runtime.demands = [demand()]
    after_an_hour(stage, loop)  # "dud" is given up, one more machine is wanted, "fine" comes up
    for _ in range(2):
        tick(stage, loop)
    assert sorted(workers(stage)) == ["RAY_RUNNING", "REQUESTED", "TERMINATING"]
    asked = {name: {call[0] for call in stage.provider.called(name)} for name in ("launch", "terminate")}
    assert {name: len(ids) for name, ids in asked.items()} == {"launch": 1, "terminate": 1}
    assert len(stage.provider.called(method)) > 1
