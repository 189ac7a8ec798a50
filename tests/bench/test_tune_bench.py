from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from bench.options import Options
from bench.tune_job import Job
from bench.tune_processes import BenchProcesses, Side, in_turns

from bench import __main__ as cli
from bench import tune_baseline, tune_control, tune_job, tune_libraries, tune_processes, tune_start
from muster import tune

TINY = 12


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(BenchProcesses, "size", lambda self, full, quick: min(quick, TINY))


def figures_of(capsys, case: str) -> dict[str, float]:
    cli.main(["tune", "--quick", "--ours-only", "--no-floors", "--only", case])
    told = json.loads(capsys.readouterr().out.rstrip("\n").splitlines()[-1])
    assert told["bench"] == "tune"
    assert all(math.isfinite(value) for value in told["figures"].values())
    return told["figures"]


@pytest.mark.slow
def test_trials_and_results_without_ray_give_our_rates_and_the_pipes(capsys, tiny):
    assert sorted(figures_of(capsys, "trials")) == [
        "files_ms_per_trial",
        "trials_per_s.noreuse",
        "trials_per_s.reuse",
    ]
    assert sorted(figures_of(capsys, "results")) == [
        "pipe_round_trips_per_s",
        "results_over_pipe",
        "results_per_s.one",
        "results_per_s.one.since_first",
        "results_per_s.sixteen",
        "results_per_s.sixteen.since_first",
    ]


@pytest.mark.slow
def test_restore_without_ray_gives_our_seconds_and_bytes(capsys, tiny):
    figures = figures_of(capsys, "restore")
    assert sorted(figures) == ["seconds.restore", "seconds.restore.fit", "state_bytes_per_trial"]
    assert figures["state_bytes_per_trial"] > 100


@pytest.mark.slow
def test_starting_gives_the_time_of_the_import_and_of_the_first_result(capsys, tiny):
    assert sorted(figures_of(capsys, "import")) == ["import_ms", "import_ms.every_name"]
    assert sorted(figures_of(capsys, "first_result")) == ["seconds.first_result"]


@pytest.mark.slow
def test_simulated_trials_give_what_one_costs(capsys, tiny):
    figures = figures_of(capsys, "million")
    names = ("bytes_per_trial", "results_per_trial", "us_per_trial")
    assert sorted(figures) == sorted(f"simulated.{name}{end}" for name in names for end in ("", ".stopping"))
    assert figures["simulated.us_per_trial"] > 10
    assert figures["simulated.results_per_trial"] == 5.0 > figures["simulated.results_per_trial.stopping"]


@pytest.mark.slow
def test_the_control_thread_is_measured_with_processes_and_replayed():
    with tune_control.replayed():
        replayed = tune_control.cost(4, results=400)
    assert replayed > 1.0
    assert tune_control.cost(1, results=100) > 1.0


@pytest.mark.slow
def test_a_script_that_fails_is_reported_with_its_output(tmp_path):
    with pytest.raises(
        RuntimeError,
        match=r"(?s)result\.py muster .* ended with 1:\n.*TuneError: the experiment cannot be written",
    ):
        (tmp_path / "file").write_text("")
        tune_start.first_result_s("muster", str(tmp_path / "file" / "below_a_file"))


def test_a_fit_reports_its_times_its_memory_and_where_it_wrote(tmp_path):
    job = Job(trials=4, reports=3, cpus=0.5)
    fit = tune_job.fit(tune, job, str(tmp_path), look_at=(2,))
    assert (fit.job, fit.directory) == (job, str(tmp_path / "bench"))
    assert sorted(fit.rss_bytes) == [2, 4]
    assert min(fit.rss_bytes.values()) > 1_000_000
    assert 0.0 < fit.since_first_s < fit.wall_s
    assert fit.results_per_s == pytest.approx(12 / fit.wall_s)
    assert fit.results_per_s_since_first == pytest.approx(11 / fit.since_first_s)
    assert fit.trials_per_s == pytest.approx(4 / fit.wall_s)


def test_the_phases_of_trials_at_once_are_all_of_the_fit_and_no_process_is_left(tmp_path):
    fit = tune_job.fit(tune, Job(trials=2, reports=3, cpus=0.5, together=True), str(tmp_path))
    assert fit.phases is not None
    assert 0.0 < fit.phases.first <= fit.phases.last
    whole = fit.phases.last + fit.phases.results + fit.phases.end
    assert whole == pytest.approx(fit.wall_s, abs=0.02)  # two clocks
    assert not any(tune_job._lives(int(entry.name)) for entry in (tmp_path / "meeting").iterdir())


@pytest.mark.slow
def test_missing_results_and_missing_logs_are_errors_not_speed(tmp_path):
    fit = tune_job.fit(tune, Job(trials=1, reports=2), str(tmp_path))
    with pytest.raises(RuntimeError, match="asked for 1 x 3 results, got 1"):
        tune_job.restore(tune, Job(trials=1, reports=3), fit.directory, "fit")
    with pytest.raises(RuntimeError, match="loggers were not on"):
        tune_job.check_logs(fit.directory, Job(trials=1, reports=3))


def test_state_is_what_lies_beside_the_trials_directories(tmp_path):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "result.json").write_text("not counted")
    (tmp_path / "state").write_text("12345")
    (tmp_path / "more").write_text("123")
    assert tune_job.state_bytes(str(tmp_path)) == 8


def test_sides_take_turns_and_the_one_with_more_repeats_continues_alone(capsys):
    log: list[str] = []
    a = Side("a", lambda: log.append("a") or len(log), repeats=3)
    b = Side("b", lambda: log.append("b") or len(log), repeats=1)
    in_turns("case", a, b)
    assert log == ["a", "b", "a", "a"]
    assert (a.runs, a.median(), b.median(lambda n: n * 10)) == ([1, 3, 4], 3, 20)
    assert "tune: case: a, 3 of 3" in capsys.readouterr().err


def test_a_lab_gives_fresh_directories_and_leaves_none_behind(capsys):
    with BenchProcesses(Options(quick=True, with_peer=False)) as processes:
        first, second = Path(processes.storage()), Path(processes.storage())
        assert first != second
        assert first.is_dir() and second.is_dir()
        assert (processes.size(9, 3), processes.with_ray) == (3, False)
    assert not first.parent.exists()


def test_without_rays_loggers_the_comparison_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(tune_processes.peer, "missing", lambda: ["tensorboardX"])
    with (
        BenchProcesses(Options()) as processes,
        pytest.raises(tune_processes.PeerError, match=r"needs tensorboardX: pip install"),
    ):
        processes.ray(tune_processes.peer.stop)


def test_bare_files_are_a_directory_with_five_files_for_each_trial(tmp_path):
    assert 0.0 < tune_baseline.files_s(2, str(tmp_path)) < 10.0
    assert [len(list(place.iterdir())) for place in tmp_path.iterdir()] == [5, 5]


def test_a_pipe_goes_there_and_back_more_than_once_a_millisecond_or_so():
    assert tune_baseline.round_trips_per_s(200) > 100


@pytest.mark.slow
def test_trials_of_a_library_are_forked_and_forcing_that_changes_nothing(tmp_path):
    pytest.importorskip("sklearn")
    forced = {"PYTHONPATH": tune_libraries.forced_forks(str(tmp_path))}
    with BenchProcesses(Options()) as processes:
        ours = tune_libraries.run("muster", "sklearn", processes)
        allowed = tune_libraries.run("muster", "sklearn", processes, forced)
    assert 0 < ours["cpu_s"] < 1.5 * allowed["cpu_s"]
