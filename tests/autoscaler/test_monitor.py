"""The loop around the controller: how often it looks, what it survives, and how it ends."""

from __future__ import annotations

import itertools
import logging

import pytest
from msgspec.structs import replace
from tests.autoscaler.scenes import Countdown, Heard, Scene
from tests.cluster.worlds import HEAD_NODE, spec
from tests.mistakes.views import assert_line
from tests.support.builders import amounts, demand, node_report, node_type

from muster.autoscaler.monitor import MonitorHealth, state_of, urgent_state
from muster.cluster.model import NodeStatus, Notice, NoticeKind, RuntimeReport
from muster.cluster.plan import Drain, Launch
from muster.cluster.ports import NoticeReport
from muster.errors import EngineDenied, EngineUnreachable, StoreError


def test_nothing_changes_so_it_looks_less_and_less_often():
    assert Scene().run(20) == [0, 1, 3, 7, 12, 17]


def test_news_brings_the_pace_back_to_the_base():
    scene = Scene()
    scene.run(20)
    scene.stage.runtime.demands = [demand({"CPU": 99})]
    assert scene.run(9) == [0, 1, 3, 7]


def test_while_a_machine_is_on_its_way_it_looks_at_the_base_pace():
    scene = Scene()
    scene.stage.runtime.demands = [demand()]
    assert scene.run(6) == [0, 1, 2, 3, 4, 5]


def test_demand_is_acted_on_between_two_ticks():
    scene = Scene(looks=True)
    scene.run(20)
    began = scene.stage.clock.monotonic()

    def soon():
        if scene.stage.clock.monotonic() - began > 3.1:
            scene.stage.runtime.demands = [demand()]

    times = scene.run(10, soon)
    assert len(scene.stage.provider.called("launch")) == 1
    assert times[:3] == [0, 3.2, 4.2]


def test_a_slow_tick_is_not_repeated_at_every_look(monkeypatch):
    scene = Scene(looks=True)
    read = scene.stage.provider.answers["list_instances"]

    def slowly():
        scene.stage.clock.advance(0.2)
        return read()

    scene.stage.provider.answers["list_instances"] = slowly
    scene.run(20)
    ever_new = iter(range(1, 1000))

    def more():
        scene.stage.runtime.demands = [demand({"CPU": 50 + next(ever_new)})]

    times = scene.run(8, more)
    pauses = [round(later - earlier - 0.2, 2) for earlier, later in itertools.pairwise(times)]
    assert min(pauses) >= 0.99  # the base interval, not a tick per look


def polls_taking(scene, seconds):
    """Let polls take so many seconds, one after another, and the last one forever after."""
    read, times = scene.loop.poll, iter(seconds)
    last = 0.0

    def slowly():
        nonlocal last
        last = next(times, last)
        scene.stage.clock.advance(last)
        return read()

    object.__setattr__(scene.loop, "poll", slowly)


def test_one_slow_poll_on_a_busy_computer_does_not_make_the_next_ones_rare():
    scene = Scene(looks=True)
    polls_taking(scene, [0.001, 0.001, 0.05, 0.001])
    scene.monitor.round()
    stop = Countdown(scene.stage.clock, 4)
    scene.monitor.run(stop)
    assert max(stop.waits) == pytest.approx(0.2)


def test_polls_that_are_always_slow_take_a_fiftieth_of_the_time():
    scene = Scene(looks=True)
    polls_taking(scene, [0.05])
    scene.monitor.round()
    stop = Countdown(scene.stage.clock, 60)
    scene.monitor.run(stop)
    assert max(stop.waits) == pytest.approx(2.5)
    assert scene.looked * 0.05 <= 60 / 50 + 0.5


def test_one_slow_tick_does_not_hold_up_the_demand_that_comes_after_it():
    scene = Scene(looks=True)
    scene.run(20)
    read, slow = scene.stage.provider.answers["list_instances"], iter([0.4])

    def slowly():
        scene.stage.clock.advance(next(slow, 0.0))
        return read()

    scene.stage.provider.answers["list_instances"] = slowly
    began = scene.stage.clock.monotonic()

    def soon():
        if scene.stage.clock.monotonic() - began > 0.5:
            scene.stage.runtime.demands = [demand()]

    scene.run(6, soon)
    (asked,) = [t.plan.at for t in scene.heard.ticks if any(isinstance(a, Launch) for a in t.plan.actions)]
    assert asked - scene.heard.ticks[0].plan.at <= 1.0


def test_an_idle_node_is_drained_when_its_time_is_up_although_nothing_else_moves():
    scene = Scene(wishes=spec(idle_timeout_s=60.0))
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request)
    scene.stage.runtime.demands = []
    scene.tick()
    scene.tick()
    begun = scene.stage.clock.monotonic()

    def idle_longer():
        idle = node_idle(scene.stage.runtime.nodes[-1], scene.stage.clock.monotonic() - begun)
        scene.stage.runtime.nodes[-1] = idle

    scene.run(70, idle_longer)
    asked = [t.plan.at for t in scene.heard.ticks if any(isinstance(a, Drain) for a in t.plan.actions)]
    late_s = asked[0] - (scene.heard.ticks[0].plan.at + 60)
    assert 0 <= late_s <= 1.5


def node_idle(node, seconds):
    return replace(node, status=NodeStatus.IDLE, idle_s=seconds, available=amounts({"CPU": 1}))


def test_a_runtime_that_goes_away_is_reported_once_and_so_is_its_return(caplog):
    caplog.set_level(logging.INFO)
    scene = Scene()
    scene.run(5)
    read = scene.stage.runtime.answers["read"]
    scene.stage.runtime.answers["read"] = EngineUnreachable("127.0.0.1:1: nobody answers")
    assert scene.run(20) == [0, 1, 3, 7, 12, 17]  # it backs off
    scene.stage.runtime.answers["read"] = read
    scene.tick()
    scene.stage.runtime.answers["read"] = EngineUnreachable("127.0.0.1:1: nobody answers")
    scene.tick()
    said = [r.getMessage() for r in caplog.records if "nobody answers" in r.getMessage()]
    assert len(said) == 2  # once per outage
    assert [" runtime " in r.getMessage() for r in caplog.records if "again" in r.getMessage()] == [True]


@pytest.mark.conformance("AS-2")
def test_a_refused_token_ends_the_loop_and_closes_everything():
    scene = Scene()
    scene.stage.runtime.answers["read"] = EngineDenied("127.0.0.1:1: the token is not right")
    with pytest.raises(EngineDenied, match="the token is not right"):
        scene.run(5)
    assert scene.closed == 1


def test_a_refused_token_is_noticed_by_a_look_as_well():
    scene = Scene(looks=True)
    scene.run(5)
    with pytest.raises(EngineDenied):
        scene.run(5, lambda: scene.stage.runtime.answers.update(read=EngineDenied("no")))


def test_a_ledger_that_fails_does_not_end_the_loop(caplog):
    scene = Scene()
    scene.run(3)
    load = scene.stage.store.load
    scene.stage.store.load = lambda: (_ for _ in ()).throw(StoreError("the disk is gone"))
    assert scene.monitor.round() == 5.0
    assert scene.monitor.round() == 5.0
    scene.stage.store.load = load
    assert scene.run(2) == [0]
    (said,) = caplog.messages
    assert_line("autoscaler", "ledger fails", said)


def test_an_outlet_that_fails_does_not_keep_the_others_from_hearing(caplog):
    class StatusFile(Heard):
        pass

    scene = Scene(outlets=[StatusFile(failing=OSError("no space left"))])
    assert scene.run(4) == [0, 1, 3]
    assert [r.getMessage() for r in caplog.records] == ["StatusFile: OSError: no space left"]


def test_an_invalid_edit_is_reported_once_and_the_last_good_one_stays(caplog):
    caplog.set_level(logging.INFO)
    scene = Scene(wishes=spec(node_type("cpu", {"CPU": 1}, max_nodes=3)))
    scene.run(3)
    wishes, _ = scene.stage.spec.answers["current"]
    scene.stage.spec.answers["current"] = (wishes, "c.yaml:3: max_workers: is not a number")
    scene.run(5)
    assert scene.heard.ticks[-1].port_errors.config == "c.yaml:3: max_workers: is not a number"
    assert scene.heard.ticks[-1].spec == wishes
    scene.stage.spec.answers["current"] = (wishes, "")
    scene.tick()
    said = [r.getMessage() for r in caplog.records if "max_workers" in r.getMessage()]
    assert len(said) == 1
    assert " again " in caplog.records[-1].getMessage()


def test_an_edit_of_the_config_is_looked_at_at_once_and_again_a_second_later():
    scene = Scene(looks=True)
    scene.run(20)
    began = scene.stage.clock.monotonic()

    def edit():
        scene.config_version = 1 + (scene.stage.clock.monotonic() - began > 2.1)

    assert scene.run(8, edit)[:4] == [0, 2.2, 3.2, 5.2]


def test_a_notice_is_acted_on_at_once():
    scene = Scene(looks=True)
    scene.run(20)
    began = scene.stage.clock.monotonic()

    def announce():
        scene.notices_version = 1 + (scene.stage.clock.monotonic() - began > 3.1)

    assert scene.run(8, announce)[:2] == [0, 3.2]


def test_a_notice_that_is_waited_for_is_due_by_time_alone():
    scene = Scene()
    far = Notice(cloud_id="c-1", kind=NoticeKind.MAINTENANCE, deadline=scene.stage.clock.now() + 612.0)
    scene.stage.notices.answers["read"] = NoticeReport(notices=(far,))
    assert scene.run(13) == [0, 1, 3, 7, 12, 13.1][: len(scene.heard.ticks)]


def test_the_ledger_is_read_once_per_tick(monkeypatch):
    scene = Scene()
    reads, load = [], scene.stage.store.load
    monkeypatch.setattr(scene.stage.store, "load", lambda: reads.append(1) or load())
    scene.tick()
    assert len(reads) == 1


def test_once_is_one_tick():
    scene = Scene()
    scene.monitor.run(Countdown(scene.stage.clock, 100), once=True)
    assert (len(scene.heard.ticks), scene.closed) == (1, 1)


def test_rows_that_make_no_sense_are_neither_told_on_nor_news():
    scene = Scene(looks=True)
    scene.stage.runtime.demands = ["nonsense", demand({"CPU": 99})]
    assert scene.run(9) == [0, 1, 3, 7]
    assert scene.heard.ticks[-1].runtime.demands == (demand({"CPU": 99}),)


def test_time_alone_is_no_change():
    scene = Scene()
    scene.tick()
    before, after = scene.tick(), scene.tick(3600)
    assert after.plan.at - before.plan.at == 3600
    assert state_of(before) == state_of(after)


def test_the_order_of_a_report_is_no_change():
    scene = Scene()
    nodes, demands = [HEAD_NODE, node_report("n-a")], [demand({"CPU": 64}), demand({"GPU": 1})]
    scene.stage.runtime.nodes, scene.stage.runtime.demands = nodes, demands
    before = scene.tick()
    scene.stage.runtime.nodes, scene.stage.runtime.demands = nodes[::-1], demands[::-1]
    after = scene.tick()
    assert urgent_state(before.runtime) == urgent_state(after.runtime)
    assert state_of(before) == state_of(after)


def test_free_room_is_a_change_but_can_wait():
    busy, free = node_report(available=amounts({"CPU": 0})), node_report()
    assert urgent_state(RuntimeReport(nodes=(busy,))) == urgent_state(RuntimeReport(nodes=(free,), version=9))
    scene = Scene()
    before = scene.tick()
    scene.stage.runtime.nodes = [replace(HEAD_NODE, available=amounts({"CPU": 0}))]
    assert state_of(before) != state_of(scene.tick())


def test_demand_and_nodes_that_come_or_go_cannot_wait():
    rest = RuntimeReport(nodes=(HEAD_NODE,))
    news = [
        replace(rest, demands=(demand(),)),
        replace(rest, nodes=(HEAD_NODE, node_report())),
        replace(rest, nodes=(replace(HEAD_NODE, status=NodeStatus.DEAD),)),
        replace(rest, nodes=()),
    ]
    assert [urgent_state(each) != urgent_state(rest) for each in news] == [True] * 4


def probed(health: MonitorHealth, path: str) -> str:
    """Return the status of the answer to a probe; other paths are the application's."""
    said: list[str] = []
    app = health.beside(lambda environ, start: start("204 Metrics", []))
    app({"PATH_INFO": path}, lambda status, headers: said.append(status))
    return said[0][:3]


def test_probes_tell_a_monitor_that_ticks_from_one_that_decides():
    scene = Scene()
    clock = scene.stage.clock
    health = MonitorHealth(clock)
    assert (probed(health, "/healthz"), probed(health, "/readyz")) == ("200", "503")  # it starts
    health.on_tick(scene.tick())
    assert (probed(health, "/healthz"), probed(health, "/readyz")) == ("200", "200")
    scene.stage.runtime.answers["read"] = EngineUnreachable("the head is away")
    clock.advance(100.0)
    health.on_tick(scene.tick())
    assert (probed(health, "/healthz"), probed(health, "/readyz")) == ("200", "503")
    clock.advance(400.0)  # no tick comes
    assert (probed(health, "/healthz"), probed(health, "/metrics")) == ("503", "204")
