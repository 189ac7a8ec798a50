"""The cluster band of a cluster with a history: what the ledger has forgotten is still there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.page.samples import BEGAN, BUDGET, keep_up, write_cluster
from tests.sim.backtest.recorded import RecordedCluster, spec

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.known_clusters import known_cluster
from muster.base.clock import ManualClock
from muster.page.cluster_source import LedgerSource
from muster.stores.history.entries import ForecastEntry
from muster.stores.history.past import HistoryFollower


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedCluster:
    """A cluster whose ledger is gone; of its files only the history is left."""
    home = tmp_path_factory.mktemp("clusters") / "gone"
    cluster = RecordedCluster(home / "history", spec("cpu-4"))
    cluster.submit(4, 100.0, CPU=2)
    cluster.submit(1, 100.0, CPU=99)
    cluster.run(500.0)
    cluster.end()
    return cluster


def source(recorded: RecordedCluster, **more: object) -> LedgerSource:
    home = ClusterHome(recorded.folder.parent)
    clock = ManualClock(recorded.cluster.world.now() + 86_400.0)
    return LedgerSource(known_cluster(home), clock=clock, why=lambda *_: {}, **more)


def test_machines_demand_spend_and_decisions_are_there_without_a_ledger(recorded):
    view = source(recorded).view()
    records = recorded.cluster.store.records
    assert {line.machine: line.node_type for line in view.machines} == {
        name: one.node_type for name, one in records.items()
    }
    assert {state for line in view.machines for _, state, _ in line.changes} >= {"ALLOCATED", "RAY_RUNNING"}
    assert (view.known_since, view.is_up) == (recorded.cluster.world.wall_shift, False)
    assert [counts for _, counts in view.demand][-1] == {"infeasible": 1}
    assert view.spent == pytest.approx(recorded.cluster.spent(), abs=0.005)
    drained = [action for one in view.decisions for action in one.actions if action["type"] == "drain"]
    assert drained and drained[0]["instance_ids"]
    assert any(verdict["reason"] == "removed-idle" for one in view.decisions for verdict in one.verdicts)


def test_a_machine_that_no_ledger_has_costs_nothing_after_it_was_last_seen(recorded):
    """The head still ran when the monitor ended, a day ago."""
    head = next(line for line in source(recorded).view().machines if line.node_type == "head")
    assert head.paid_until == pytest.approx(recorded.cluster.world.now(), abs=0.01)


def test_a_source_that_shares_a_follower_shows_the_same_and_notices_changes(recorded):
    follower = HistoryFollower(recorded.folder)
    first, second = source(recorded, follower=follower), source(recorded)
    assert first.view() == second.view() == first.view()
    mark = first.mark()
    recorded.reopen()
    recorded.run(10.0)
    assert first.mark() != mark
    assert first.view().known_since == second.view().known_since


def test_a_damaged_history_is_named_and_what_can_be_read_is_shown(recorded, tmp_path: Path):
    home = tmp_path / "c"
    (home / "history").mkdir(parents=True)
    (home / "history" / "00000001.history").write_bytes(b"muster history 1\n" + b"\x05\0\0\0\1\2\3\4hello")
    clock = ManualClock(5.0)
    view = LedgerSource(known_cluster(ClusterHome(home)), clock=clock, why=lambda *_: {}).view()
    assert "00000001.history" in view.problem and " 17 " in view.problem
    assert (view.machines, view.known_since) == ((), None)


def test_the_budget_and_what_tuners_expect_are_shown_while_the_cluster_is_up(tmp_path: Path):
    home, coming = write_cluster(tmp_path), (({"CPU": 2.0}, 30, 1.0), ({"CPU": 2.0}, 9, 0.5))
    known = ForecastEntry(running=4, movable=3, coming=coming, deadline=BEGAN + 900, budget_left=7.5)
    gone = LedgerSource(known_cluster(home), clock=ManualClock(BEGAN), why=lambda *_: {}).view()
    assert (gone.budget, gone.forecasts) == ("", ())
    keep_up(home, BEGAN, {"/results/wide": known, "/results/over": ForecastEntry(is_complete=True)})
    view = LedgerSource(known_cluster(home), clock=ManualClock(BEGAN), why=lambda *_: {}).view()
    (shown,) = view.forecasts
    assert (view.budget, view.problem) == (BUDGET, "")
    assert (shown.experiment, shown.running, shown.movable, shown.coming) == ("/results/wide", 4, 3, coming)
    assert (shown.is_complete, shown.deadline, shown.budget_left) == (False, BEGAN + 900, 7.5)
