from __future__ import annotations

import json
import math

import pytest
from bench.schedulers_run import Entry, SchedulerRun, run_candidate

from bench import __main__ as cli
from bench import schedulers, schedulers_plot, schedulers_scale, schedulers_summary


def made(values, ends=(9.0, 90.0)):
    hours = tuple(float(k + 1) for k in range(len(values)))
    return SchedulerRun(hours, tuple(10.0 * one for one in hours), tuple(values), *ends, results=len(values))


def test_a_race_is_the_same_whenever_it_is_run():
    assert run_candidate("branin", Entry("asha"), 3, 8) == run_candidate("branin", Entry("asha"), 3, 8)
    assert run_candidate("branin", Entry("asha"), 4, 8) != run_candidate("branin", Entry("asha"), 3, 8)


def test_the_value_that_counts_is_the_true_one():
    noisy = run_candidate("ackley", Entry("fifo"), 1, 4)
    assert min(noisy.values) >= 0.0  # a reading with noise may be below the optimum


def test_values_at_a_moment_and_when_a_value_was_reached():
    one = made([3.0, 2.0, 1.0])
    assert [one.at("hours", moment) for moment in (1.0, 2.5, math.inf)] == [3.0, 2.0, 1.0]
    assert math.isnan(one.at("hours", 0.5))
    assert [one.reach("node_hours", target) for target in (2.0, 0.5)] == [20.0, math.inf]
    races = [made([value]) for value in (5.0, 1.0, 4.0, 2.0, 3.0)]
    assert schedulers_plot.quantiles(races, "hours", 1.0) == (2.0, 3.0, 4.0)


@pytest.mark.slow
def test_one_problem_gives_tables_a_plot_and_figures_for_every_contestant(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(schedulers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(
        schedulers, "candidates", lambda with_peer: [Entry("fifo"), Entry("asha"), Entry("asha_promotion")]
    )
    monkeypatch.setattr(schedulers, "decisions_per_s", lambda live, **more: 1e6)
    code = cli.main(["schedulers", "--quick", "--ours-only", "--only", "branin"])
    out = capsys.readouterr().out
    told = json.loads(out.rstrip("\n").splitlines()[-1])
    assert (code, told["bench"]) == (0, "schedulers")
    figures = told["figures"]
    assert figures["decisions_per_s.asha"] == 1e6
    assert {name.split(".")[2] for name in figures if name.startswith("regret.branin.")} == {
        "fifo",
        "asha",
        "asha_promotion",
    }
    assert figures["used_node_h_ratio.promotion_over_stopping"] < 1.0
    assert (tmp_path / "muster-bench-schedulers.png").stat().st_size > 10_000
    assert "plot: " in out


@pytest.mark.parametrize("kind", ["stopping", "promotion"])
def test_decisions_are_measured_at_the_scheduler(kind):
    assert schedulers.decisions_per_s(200, type=kind) > 1_000


def test_a_large_experiment_is_measured_by_result(monkeypatch, capsys):
    monkeypatch.setattr(schedulers.schedulers_large, "QUICK_TRIALS", 40)
    monkeypatch.setattr(schedulers.schedulers_large, "FEW_TRIALS", 20)
    figures = schedulers.schedulers_large.large(quick=True)
    assert sorted(figures) == [
        "large_cpu_s.asha",
        "large_cpu_s.asha_promotion",
        "large_growth.asha",
        "large_growth.asha_promotion",
    ]
    assert all(value > 0 for value in figures.values())
    assert "40 trials in one experiment" in capsys.readouterr().out


@pytest.mark.slow
def test_the_cost_of_a_decision_is_measured_with_more_and_more_live_trials(monkeypatch, capsys):
    monkeypatch.setattr(schedulers_scale, "QUICK_SIZES", (20, 40))
    monkeypatch.setattr(schedulers_scale, "QUICK_MODEL_SIZES", (6,))
    figures = schedulers_scale.scale(True, ["fifo", "pb2"])
    assert sorted(figures) == [
        *("decision_growth.fifo", "decision_us.fifo.20", "decision_us.fifo.40", "decision_us.pb2.6"),
        *("result_growth.fifo", "result_us.fifo.20", "result_us.fifo.40", "result_us.pb2.6"),
    ]
    for size in (20, 40):
        assert 0 < figures[f"decision_us.fifo.{size}"] < figures[f"result_us.fifo.{size}"]
    assert "20 / 40" in capsys.readouterr().out


@pytest.mark.slow
def test_all_trials_of_the_scale_case_are_live_at_once(monkeypatch):
    live = []
    make = schedulers_scale.SimulatedExperiment.begin

    def noted(asked):
        simulated = make(asked)
        hook = simulated.state.plugins.scheduler.on_trial_result
        simulated.state.plugins.scheduler.on_trial_result = lambda view, *rest: (
            live.append(view.occupancy().live) or hook(view, *rest)
        )
        return simulated

    monkeypatch.setattr(schedulers_scale.SimulatedExperiment, "begin", noted)
    assert schedulers_scale.cost_of("fifo", 300).results == 300 * schedulers_scale.MAX_T
    assert live[0] == 300


def board(mine, other):
    races = {
        "hyperband": [made([9.0, one]) for one in mine],
        "ray:hyperband": [made([9.0, one]) for one in other],
    }
    return {"branin": races}


def test_worse_is_what_chance_does_not_explain(capsys):
    worse = schedulers_summary.summary(board(range(10, 30), range(20)))
    name = "over_ray.hyperband"
    assert (worse[f"worse_problems.{name}"], worse[f"better_problems.{name}"]) == (1.0, 0.0)
    assert worse[f"p_value.{name}.branin"] < 0.001
    assert "WORSE" in capsys.readouterr().out
    better = schedulers_summary.summary(board(range(20), range(10, 30)))
    assert (better[f"worse_problems.{name}"], better[f"better_problems.{name}"]) == (0.0, 1.0)
    assert better[f"chance_better.{name}.branin"] == 1 - worse[f"chance_better.{name}.branin"] > 0.8


def test_the_old_measure_by_quartiles_is_reported_beside_it():
    # A median beyond the quartiles that twenty seeds do not tell from chance, at one in a hundred.
    figures = schedulers_summary.summary(board([0, 1, 8, 9, 9.5], [0.5, 2, 3, 4, 5]))
    assert figures["outside_quartiles.over_ray.hyperband"] == 1.0
    assert figures["worse_problems.over_ray.hyperband"] == 0.0
