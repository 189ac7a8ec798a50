from __future__ import annotations

import json
import math

import pytest
from bench.schedulers_race import Entry, Race, race

from bench import __main__ as cli
from bench import schedulers, schedulers_plot


def made(values, ends=(9.0, 90.0)):
    hours = tuple(float(k + 1) for k in range(len(values)))
    return Race(hours, tuple(10.0 * one for one in hours), tuple(values), *ends, results=len(values))


def test_a_race_is_the_same_whenever_it_is_run():
    assert race("branin", Entry("asha"), 3, 8) == race("branin", Entry("asha"), 3, 8)
    assert race("branin", Entry("asha"), 4, 8) != race("branin", Entry("asha"), 3, 8)


def test_the_value_that_counts_is_the_true_one():
    noisy = race("ackley", Entry("fifo"), 1, 4)
    assert min(noisy.values) >= 0.0  # a reading with noise may be below the optimum


def test_values_at_a_moment_and_when_a_value_was_reached():
    one = made([3.0, 2.0, 1.0])
    assert [one.at("hours", moment) for moment in (1.0, 2.5, math.inf)] == [3.0, 2.0, 1.0]
    assert math.isnan(one.at("hours", 0.5))
    assert [one.reach("node_hours", target) for target in (2.0, 0.5)] == [20.0, math.inf]
    races = [made([value]) for value in (5.0, 1.0, 4.0, 2.0, 3.0)]
    assert schedulers_plot.quantiles(races, "hours", 1.0) == (2.0, 3.0, 4.0)


def test_one_problem_gives_tables_a_plot_and_figures_for_every_contestant(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(schedulers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(
        schedulers, "contestants", lambda with_peer: [Entry("fifo"), Entry("asha"), Entry("asha_promotion")]
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
