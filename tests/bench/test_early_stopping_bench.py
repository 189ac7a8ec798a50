"""The benchmark of early stopping with several objectives measures what it says."""

from __future__ import annotations

import pytest

from bench import search_early_stopping as bench


def test_the_hypervolume_is_the_area_below_the_reference():
    assert bench.hypervolume([]) == 0.0
    assert bench.hypervolume([(0.5, 0.5), (0.6, 0.6), (2.0, 0.0)]) == 0.25
    assert bench.hypervolume([(0.5, 0.5), (0.0, 0.75), (0.5, 0.5)]) == pytest.approx(0.25 + 0.25 - 0.125)


def test_the_need_is_the_share_of_the_budget():
    outcome = bench.Outcome([0.1, 0.2, 0.3], 3)
    assert bench.need(outcome, 0.2) == 2 * bench.EVERY / bench.BUDGET
    assert bench.need(outcome, 0.9) == 1.0


@pytest.mark.parametrize("rule", ["fifo", "asha grace 3"])
def test_a_run_spends_the_budget_on_more_trials_when_it_stops_some(rule):
    outcome = bench.run_once(bench.PROBLEMS["latency"], rule, 0)
    assert (outcome.trials > 60) == (rule != "fifo")
    assert 0.5 < outcome.final < 1.0
