"""What the entries of a history say, and that a history folded again is the cluster it was made from."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.sim.backtest.recorded import RecordedCluster, read_past, spec, with_offers

from muster.base.forecast import ComingWork, Forecast
from muster.base.resources import Resources
from muster.cluster.cost import cost_of
from muster.cluster.model import NodeStatus, Offer
from muster.cluster.ports import TickResult
from muster.cluster.states import TERMINAL, InstanceState
from muster.stores.history.entries import changed_spec, spec_change
from muster.stores.history.files import read_history
from muster.stores.history.past import cost_until
from muster.stores.history.recorder import HEARTBEAT_S, HistoryRecorder


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedCluster:
    return RecordedCluster(tmp_path / "history")


def test_the_past_has_every_machine_with_its_states_prices_and_cost(recorded):
    recorded.busy(1800.0, 90.0)
    past = read_past(read_history(recorded.folder))
    now = recorded.cluster.store.newest.at
    records = recorded.cluster.store.records.values()
    assert {name: (one.node_type, one.state, len(one.history)) for name, one in past.machines.items()} == {
        one.instance_id: (one.node_type, one.state, len(one.history)) for one in records
    }
    assert sum(cost_until(one, now) for one in past.machines.values()) == pytest.approx(
        sum(cost_of(one, now) for one in records), abs=0.01
    )
    assert past.spent[-1][1] == pytest.approx(recorded.cluster.spent(), rel=0.05)


def test_demand_is_counted_by_verdict_and_what_waits_no_longer_is_gone(recorded):
    recorded.submit(4, 50.0, CPU=2)
    recorded.submit(2, 50.0, CPU=64)
    recorded.run(5.0)
    past = read_past(read_history(recorded.folder))
    assert past.demand[-1][1] == {"waiting-for-launch": 4, "infeasible": 2}
    recorded.run(200.0)
    past = read_past(read_history(recorded.folder))
    assert past.demand[-1][1] == {"infeasible": 2}
    assert list(past.moment.waiting.values()) == [2]


def test_gangs_wait_are_placed_and_end(recorded):
    recorded.gang("g1", 3, 100.0, CPU=2)
    recorded.run(150.0)
    entries = list(read_history(recorded.folder))
    asked = next(entry.gangs["g1"] for entry in entries if entry.gangs.get("g1"))
    assert (asked.strategy, [count for _, count in asked.bundles]) == ("PACK", [3])
    placed = [entry.placed["g1"] for entry in entries if "g1" in entry.placed]
    recorded.run(150.0)
    ended = [entry.placed["g1"] for entry in read_history(recorded.folder) if "g1" in entry.placed]
    assert placed and placed[-1]
    assert ended[-1] == ()


def test_use_is_by_machine_and_without_what_the_runtime_makes_up(recorded):
    recorded.submit(1, 500.0, CPU=3)
    recorded.run(120.0)
    past = read_past(read_history(recorded.folder))
    used = {name: amounts.to_floats() for name, amounts in past.moment.used.items() if amounts}
    running = [one.instance_id for one in past.machines.values() if one.state is InstanceState.RAY_RUNNING]
    assert list(used.values()) == [{"CPU": 3.0}]
    assert set(used) <= set(running)


def test_nothing_is_written_while_nothing_changes_but_for_a_sign_of_life(recorded):
    recorded.run(100.0)
    before = len(list(read_history(recorded.folder)))
    recorded.run(HEARTBEAT_S / 2)
    assert len(list(read_history(recorded.folder))) == before
    recorded.run(HEARTBEAT_S)
    after = list(read_history(recorded.folder))
    assert len(after) == before + 1
    assert (after[-1].demand, after[-1].states) == ({}, ())


def test_decisions_are_in_words_and_not_repeated(recorded):
    recorded.submit(2, 50.0, CPU=64)
    recorded.submit(3, 50.0, CPU=2)
    recorded.run(300.0)
    past = read_past(read_history(recorded.folder))
    said = [(each.subject, each.reason) for one in past.decisions for each in one.verdicts]
    whole = [entry for entry in read_history(recorded.folder) if entry.is_whole]
    said += [(each.subject, each.reason) for entry in whole for each in entry.verdicts]
    assert said.count(("demand", "infeasible")) == 1
    assert ("node", "removed-idle") in said
    launched = [
        each for entry in read_history(recorded.folder) for each in entry.actions if each.type == "launch"
    ]
    assert sum(sum(each.shape.values()) for each in launched) == len(past.machines) - 1


def test_what_happened_between_two_entries_is_in_the_next_one(recorded):
    """A history that has no room waits, and loses no state of any machine."""
    recorder, made = HistoryRecorder(), []
    recorded.submit(3, 40.0, CPU=2)
    for _ in range(60):
        recorded.cluster.tick()
        recorded.cluster.store.commits.clear()
        result = recorded.cluster.result
        entry = recorder.entry(result, len(made) + 1, 60.0)
        made += [] if entry is None else [entry]
        recorded.cluster.world.advance(5.0)
    past = read_past(made)
    ended = [one for one in past.machines.values() if one.state in TERMINAL]
    assert len(made) <= 6
    assert ended and all(len(one.history) > 4 for one in ended)


def test_a_new_price_is_one_number_and_a_new_type_is_written_whole():
    old = with_offers(spec(), Offer(zone="a", price_per_hour=1.0), Offer(zone="a", market="spot"))
    head, first, second = old.node_types
    cheaper = replace(first, offers=(replace(first.offers[0], price_per_hour=0.5), first.offers[1]))
    new = replace(old, node_types=(head, cheaper, replace(second, max_nodes=3)), idle_timeout_s=1.0)
    change = spec_change(old, new)
    assert change.prices == {first.name: {"0": 0.5}}
    assert [known.name for known in change.types] == [second.name]
    assert changed_spec(old, change) == new
    assert spec_change(new, new) is None
    fewer = replace(new, node_types=(head, second))
    assert changed_spec(new, spec_change(new, fewer)) == fewer
    assert changed_spec(None, spec_change(None, new)) == new


def test_an_edit_of_the_configuration_is_in_the_past(recorded):
    recorded.run(20.0)
    recorded.cluster.spec.spec = replace(recorded.cluster.spec.spec, idle_timeout_s=7.0)
    recorded.run(20.0)
    past = read_past(read_history(recorded.folder))
    assert [known.idle_timeout_s for _, known in past.specs] == [90.0, 7.0]
    assert past.specs[-1][1] == recorded.cluster.spec.spec


def test_forecasts_are_kept_in_brief(recorded):
    recorded.cluster.tick()
    result = recorded.cluster.result
    coming = ComingWork(shape=Resources.of(GPU=1), count=4, probability=0.9)
    forecast = Forecast(experiment="e", at=1.0, coming=(coming,), budget_left=12.345)
    snapshot = replace(result.snapshot, forecasts=(forecast,))
    entry = HistoryRecorder().entry(replace(result, snapshot=snapshot), 1)
    assert entry.forecasts["e"].coming == (({"GPU": 1.0}, 4, 0.9),)
    assert entry.forecasts["e"].budget_left == 12.0


def test_a_runtime_that_cannot_be_read_changes_nothing(recorded):
    recorded.submit(2, 500.0, CPU=2)
    recorded.run(150.0)
    recorder, result = HistoryRecorder(), recorded.cluster.result
    tick = result
    recorder.entry(tick, 1)
    later = replace(tick.plan, at=tick.plan.at + 5, writes=(), actions=(), verdicts=())
    blind = replace(tick, snapshot=replace(tick.snapshot, runtime=None), plan=later)
    assert recorder.entry(blind, 2) is None


def test_a_machine_that_ended_while_nobody_watched_ends_when_it_was_last_seen(recorded):
    recorded.submit(1, 3000.0, CPU=2)
    recorded.run(200.0)
    last = list(read_history(recorded.folder))[-1].at
    recorder, result = HistoryRecorder(), recorded.cluster.result
    heads = {i: one for i, one in result.ledger.instances.items() if one.node_type == "head"}
    later = replace(result.plan, at=result.plan.at + 90_000, writes=(), actions=())
    entry = recorder.entry(
        replace(result, plan=later, ledger=replace(result.ledger, instances=heads)), 10_000
    )
    past = read_past([*read_history(recorded.folder), entry])
    worker = next(one for one in past.machines.values() if one.node_type != "head")
    assert (worker.state, worker.since) == (InstanceState.TERMINATED, last)
    assert past.gaps == [(last, round(later.at, 2))]


@pytest.mark.slow
def test_a_busy_cluster_takes_less_than_a_megabyte_a_day_and_a_millisecond_a_tick(tmp_path):
    """Twenty minutes of about a hundred machines with hundreds of requests, times 72."""
    wanted = spec("cpu-16", "gpu-1", "cpu-16-spot", most=60, idle_timeout_s=120.0)
    recorded = RecordedCluster(tmp_path / "h", wanted, tick_s=10.0)
    inner = recorded.writer.record
    took_s: list[float] = []

    def timed(tick: TickResult) -> bool:
        began = time.thread_time()
        try:
            return inner(tick)
        finally:
            took_s.append(time.thread_time() - began)

    recorded.writer.record = timed
    for _ in range(4):
        recorded.submit(40, 1500.0, CPU=8)
        recorded.submit(60, 400.0, CPU=4, GPU=1)
        recorded.busy(300.0, 8.0)
    recorded.reopen()  # packs the tail
    alive = [node for node in recorded.cluster.runtime.read().nodes if node.status is not NodeStatus.DEAD]
    size = sum(path.stat().st_size for path in recorded.folder.iterdir())
    assert len(alive) > 80
    assert 72 * size < 1_000_000, size
    assert sum(took_s) / len(took_s) < 0.003  # a quiet computer takes 0.3 ms
