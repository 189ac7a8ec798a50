"""Run fixed seeds, 60 more every time, and the same seed twice with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.series import length
from tests.simulation.__main__ import simulation
from tests.simulation.fault_rates import KINDS, draw_faults
from tests.simulation.run import SeedRun, simulate, sweep

HERE = Path(__file__).parent
SEEDS = length(60, 300)


def found_seeds() -> list[int]:
    lines = (HERE / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_property_and_all_faults_were_there():
    seeds = sorted({*range(SEEDS), *found_seeds()})
    reports = list(sweep(seeds, jobs=os.cpu_count() or 1))
    assert [report.seed for report in reports] == seeds
    assert {report.replay: report.violations for report in reports if report.violations} == {}
    injected = {kind for report in reports for kind in report.faults}
    assert injected == set(KINDS)


def test_two_runs_of_one_seed_are_equal():
    assert simulate(17) == simulate(17)


def test_different_seeds_are_different_runs():
    assert len({simulate(seed).trace_hash for seed in range(5)}) == 5


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_the_trace_does_not_depend_on_the_hash_seed(hash_seed):
    code = "from tests.simulation.run import simulate; print(*(simulate(s).trace_hash for s in (4, 17, 23)))"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [simulate(seed).trace_hash for seed in (4, 17, 23)]


def test_the_seed_turns_about_half_of_the_fault_kinds_on():
    drawn = [draw_faults(SeedRun(seed).seed).rates for seed in range(60)]
    on = sum(len(rates) for rates in drawn) / (60 * len(KINDS))
    assert 0.35 < on < 0.55
    assert any(not rates for rates in drawn)


def test_run_prints_header_ticks_and_summary():
    result = CliRunner().invoke(simulation, ["run", "--seed", "17"])
    lines = result.output.splitlines()
    assert (result.exit_code, lines[0]) == (0, "seed 17")
    assert any(line.startswith("  faults ") for line in lines)
    assert f"trace {simulate(17).trace_hash}" in result.output
    assert "all properties held" in lines


def test_replay_stops_at_the_tick_and_shows_the_world():
    result = CliRunner().invoke(simulation, ["replay", "--seed", "17", "--until-tick", "20"])
    assert result.exit_code == 0
    assert "20 ticks (20 with faults)" in result.output
    for title in ("instances", "machines (truth)", "pending demand"):
        assert title in result.output


def test_sweep_prints_how_many_runs_and_exits_with_zero_when_all_is_well():
    result = CliRunner().invoke(simulation, ["sweep", "--seeds", "3", "--start", "5", "--jobs", "1"])
    assert (result.exit_code, result.output.splitlines()[-1].endswith("0 seeds with violations")) == (0, True)


def test_a_failing_seed_exits_with_one_and_prints_its_replay_command(monkeypatch):
    monkeypatch.setattr("tests.simulation.checkers.the_loop_lives", lambda cluster: iter(["it broke"]))
    result = CliRunner().invoke(simulation, ["sweep", "--seeds", "1", "--start", "5", "--jobs", "1"])
    assert result.exit_code == 1
    assert "it broke" in result.output
    assert "replay: python -m tests.simulation replay --seed 5 --until-tick 1" in result.output


def test_the_printed_replay_of_a_run_that_never_rests_shows_that(monkeypatch):
    monkeypatch.setattr("tests.simulation.run.unsettled", lambda cluster: iter(["it moves on"]))
    report = simulate(5)
    assert report.violations == ["not at rest: it moves on"]
    result = CliRunner().invoke(simulation, report.replay.split()[3:])
    assert "not at rest: it moves on" in result.output
