from __future__ import annotations

import json

import pytest

from bench import __main__ as cli
from bench import reconcile

pytestmark = pytest.mark.slow


def run(capsys, *arguments: str) -> tuple[int, dict[str, float], str]:
    code = cli.main(arguments)
    out = capsys.readouterr().out
    told = json.loads(out.rstrip("\n").splitlines()[-1])
    assert told["bench"] == arguments[0]
    return code, told["figures"], out


def test_the_planner_without_ray_gives_our_figures_and_marks_rays_time_as_recorded(capsys):
    case = "zero_0n_100p_1s"
    code, figures, _ = run(capsys, "planner", "--quick", "--ours-only", "--only", case)
    assert code == 0
    assert sorted(figures) == [
        "check.problems",
        f"cost_ratio.{case}",
        f"cost_seconds.{case}",
        "parity.mismatches",
        f"speedup_recorded.{case}",
        f"utilization_seconds.{case}",
    ]
    exact = {name: figures[name] for name in figures if name.split(".")[0] in ("check", "parity")}
    assert exact == {"check.problems": 0, "parity.mismatches": 0}
    assert 1.0 <= figures[f"cost_ratio.{case}"] <= 1.05


def test_where_limits_bind_the_planner_reports_how_many_requests_are_served(capsys):
    case = "tight_60n_3000p_10s"
    _, figures, out = run(capsys, "planner", "--quick", "--ours-only", "--only", case)
    assert figures[f"served.{case}.utilization"] == 728
    assert figures[f"served.{case}.cost"] > 728
    assert f"cost_ratio.{case}" not in figures
    assert "3007 asked, limits bind" in out


def test_reconcile_without_ray_gives_our_figures(capsys, monkeypatch):
    monkeypatch.setattr(reconcile, "INSTANCES", 20)
    monkeypatch.setattr(reconcile, "ENDED", 30)
    code, figures, _ = run(capsys, "reconcile", "--quick", "--ours-only", "--no-floors")
    assert code == 0
    assert sorted(figures) == [
        "history_factor.100k",
        "history_factor.100k.restart",
        "history_factor.100k.with_a_change",
        "seconds.steady_10000",
        "seconds.steady_10000.reconcile_only",
    ]


def test_a_missed_floor_is_reported_and_makes_the_exit_code_1_unless_floors_are_off(capsys, monkeypatch):
    monkeypatch.setattr(reconcile, "run", lambda options: {"history_factor.100k": 9.0})
    code, _, out = run(capsys, "reconcile", "--ours-only")
    assert (code, out.splitlines()[0]) == (1, "MISSED: history_factor.100k is 9: at most 1.1")
    assert run(capsys, "reconcile", "--ours-only", "--no-floors")[0] == 0


def test_without_ray_installed_that_is_reported_and_ours_runs(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(cli.peer, "installed", lambda: False)
    monkeypatch.setattr(reconcile, "run", lambda options: seen.append(options.with_peer) or {})
    code, figures, out = run(capsys, "reconcile")
    assert (code, figures, seen) == (0, {}, [False])
    assert "Ray is not installed" in out
    assert "muster-ml[bench]" in out


def test_an_unknown_benchmark_is_refused_with_the_names_that_exist(capsys):
    with pytest.raises(SystemExit):
        cli.main(["nosuch"])
    assert "planner" in capsys.readouterr().err
