from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from bench.floors import FLOORS
from bench.tune_job import Fit, Job, Phases
from bench.tune_processes import BenchProcesses, Side

from bench import __main__ as cli
from bench import peer, tune_ray


def side(*fits: Fit) -> Side[Fit]:
    return Side("", lambda: None, len(fits), list(fits))


def fit(cpu_s: float, wall_s: float = 4.0, since_first_s: float = 2.0) -> Fit:
    return Fit(Job(trials=1, reports=500), "", wall_s, since_first_s, cpu_s, {})


def test_what_a_result_costs_the_driver_is_compared_by_medians():
    figures = tune_ray.cost_figures("one", side(fit(1.0), fit(0.1), fit(0.2)), side(fit(1.0)))
    assert figures == {
        "driver_cpu_s_per_1000.one": 0.4,
        "peer_driver_cpu_s_per_1000.one": 2.0,
        "driver_cpu_ratio.one": 5.0,
    }
    assert tune_ray.cost_figures("one", side(fit(0.2)), side()) == {"driver_cpu_s_per_1000.one": 0.4}


def at_once(wall_s: float, *seconds: float) -> Fit:
    return Fit(Job(trials=16, together=True), "", wall_s, 1.0, 1.0, {}, Phases(*seconds))


def test_the_table_shows_what_is_left_beside_rays_start(capsys):
    us, them = side(at_once(6.0, 1.0, 4.0, 1.5, 0.5)), side(at_once(40.0, 2.0, 6.0, 33.0, 1.0))
    figures = tune_ray.phase_figures("sixteen", us, them, Side("", lambda: None, 1, [(0.9, 3.5)]))
    assert figures["seconds.empty_actors.last"] == 3.5
    tune_ray.show_phases("sixteen", figures)
    rows = [line.split("│")[2:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0.9", "3.5", "-", "-", "-", "-"],
        ["2", "6", "33", "1", "40", "36.5"],
        ["1", "4", "1.5", "0.5", "6", "2.5"],
    ]
    assert "peer_seconds.sixteen.fit" not in tune_ray.phase_figures("sixteen", us, side(), side((0.9, 3.5)))


def test_a_row_shows_a_dash_where_ray_did_not_run():
    figures = {"results_per_s.one": 1234.56}
    assert tune_ray.row("one trial", "results", "one", figures) == ("one trial", "-", "1,234.6", "-")


def test_floors_are_on_figures_that_are_measured():
    us, them = side(fit(0.1)), side(fit(1.0))
    made = set()
    for name in ("one", "sixteen"):
        made |= set(tune_ray.rate_figures("results", name, us, them))
        made |= set(tune_ray.cost_figures(name, us, them))
    made |= set(tune_ray.rate_figures("trials", "reuse", us, them))
    assert {floor.pattern for floor in FLOORS["tune-ray"]} <= made


def test_without_ray_nothing_is_measured_and_that_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(peer, "installed", lambda: False)
    assert cli.main(["tune-ray", "--quick"]) == 0
    assert "tune-ray needs Ray on both sides" in capsys.readouterr().out


@pytest.mark.ray
def test_ours_alone_runs_on_a_cluster(plain_head, monkeypatch, capsys):
    monkeypatch.setattr(tune_ray, "open_cluster", lambda cpus: nullcontext(plain_head.environment()))
    monkeypatch.setattr(BenchProcesses, "size", lambda self, full, quick: min(quick, 6))
    assert cli.main(["tune-ray", "--quick", "--ours-only", "--only", "trials"]) == 0
    told = json.loads(capsys.readouterr().out.rstrip("\n").splitlines()[-1])
    assert (told["bench"], sorted(told["figures"])) == ("tune-ray", ["trials_per_s.reuse"])
