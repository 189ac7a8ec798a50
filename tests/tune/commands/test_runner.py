"""How a command starts, ends and is stopped, with real processes."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.series import length

from muster import tune
from muster.errors import CommandError, NeverReported
from muster.host.processes import table, was_started_with
from muster.tune.schedulers import HyperBandScheduler

TREES = length(sample=20, whole=1000)
OUTPUT_MB = length(sample=30, whole=1000)


def fit(folder, command, space=None, *, stop=None, samples=1, failures=0, **given):
    return tune.Tuner(
        tune.command(command, **given),
        param_space=space or {},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=samples),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            verbose=0,
            stop=stop,
            failure_config=tune.FailureConfig(max_failures=failures),
        ),
    ).fit()


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def processes_with(entry, *, within_s=1.0):
    """The processes that were started with this variable, once it has had time to end."""
    give_up = time.monotonic() + within_s
    while True:
        left = [each for each in table() if each.is_alive and was_started_with(each.pid, entry)]
        if not left or time.monotonic() > give_up:
            return [each.name for each in left]
        time.sleep(0.05)


TREE = r"""
trap '' TERM
case $1 in
  0) (trap '' TERM; sleep 300) & ;;
  1) setsid sh -c "trap '' TERM; sleep 300" & ;;
  2) (setsid sleep 300 & ) ; trap - TERM ;;
  3) sleep 300 & trap - TERM ;;
esac
echo '{"loss": 1}'
sleep 300
"""


@pytest.mark.slow
@pytest.mark.timeout(120 + TREES)
def test_no_process_of_a_stopped_tree_is_left(tmp_path):
    """A shell that ignores TERM, another session that does, a daemon, a plain child."""
    script = tmp_path / "tree.sh"
    script.write_text(TREE)
    results = fit(
        tmp_path,
        f"sh {script} {{kind}}",
        {"kind": tune.grid_search([0, 1, 2, 3])},
        samples=TREES // 4,
        stop={"training_iteration": 1},
        env={"MUSTER_TEST_TREE": str(tmp_path)},
        grace_s=0.1,
    )
    assert (len(results), results.num_errors) == (TREES, 0)
    assert processes_with(f"MUSTER_TEST_TREE={tmp_path}") == []


@pytest.mark.slow
def test_what_a_command_leaves_running_ends_with_it(tmp_path):
    line = "(sleep 300 &) ; setsid sleep 300 & echo '{\"loss\": 1}'"
    results = fit(tmp_path, line, shell=True, env={"MUSTER_TEST_TREE": str(tmp_path)})
    assert (results[0].metrics["loss"], results.num_errors) == (1, 0)
    assert processes_with(f"MUSTER_TEST_TREE={tmp_path}") == []


@pytest.mark.slow
@pytest.mark.timeout(120 + OUTPUT_MB)
def test_a_line_without_end_is_read_and_the_result_after_it_arrives(tmp_path):
    code = f"""
        import os, sys
        part = b"x" * 1_000_000
        for _ in range({OUTPUT_MB}):
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        status = open(f"/proc/{{os.getppid()}}/status").read()
        memory = int(status.split("VmHWM:")[1].split()[0])
        print()
        print('{{"loss": 1, "worker_kb": %d}}' % memory)
    """
    results = fit(tmp_path, python(code), log_limit="8MB")
    metrics, log = results[0].metrics, Path(results[0].path, "output.log").read_bytes()
    assert (metrics["loss"], metrics["worker_kb"] < 100_000) == (1, True)
    assert (len(log) <= 9_000_000, log[:10], b'"loss": 1' in log[-100:]) == (True, b"x" * 10, True)


@pytest.mark.slow
def test_no_json_line_is_lost(tmp_path):
    count = 3000
    code = f"""
        import sys
        for step in range({count}):
            print('{{"loss": %d}}' % step)
            print("noise", file=sys.stderr)
    """
    results = fit(tmp_path, python(code))
    assert list(results[0].metrics_dataframe["loss"]) == list(range(count))


FAILURES = {
    "exit code": ("import sys; print('why'); sys.exit(7)", 7, "why"),
    "signal": ("import os; os.kill(os.getpid(), 9)", -9, "SIGKILL"),
    "silent": ("print('{\"acc\": 1}')", 0, "acc"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES)
def test_a_command_that_fails_says_why(tmp_path, case):
    code, exit_code, text = FAILURES[case]
    error = fit(tmp_path, python(code)).errors[0]
    assert isinstance(error, CommandError)
    assert (error.exit_code, text in str(error), "output.log" in str(error)) == (exit_code, True, True)


@pytest.mark.slow
def test_the_experiment_ends_when_its_first_command_never_reports_the_metric(tmp_path):
    results = fit(tmp_path, "echo {x}", {"x": tune.uniform(0, 1)}, samples=50, failures=3)
    assert all(isinstance(error, NeverReported) for error in results.errors)
    assert 1 <= results.num_errors < 10


@pytest.mark.slow
def test_a_command_that_resumes_with_nothing_left_to_do_has_ended_well(tmp_path):
    """It was killed after its last checkpoint, or copies a trial that was done."""
    script = """
        import os, sys
        checkpoint, resumed = sys.argv[1:]
        if resumed:
            sys.exit(0)
        os.mkdir(checkpoint + "/done")
        open(checkpoint + "/done/all", "w").close()
        print('{"loss": 0.5}', flush=True)
        sys.exit(1)
    """
    words = [*python(script), "{checkpoint}", "{resume}"]
    (result,) = fit(tmp_path, words, failures=1)
    assert (result.error, result.metrics["loss"], result.metrics["training_iteration"]) == (None, 0.5, 1)


@pytest.mark.slow
def test_a_pause_without_any_checkpoint_is_refused(tmp_path):
    line = "for i in 1 2 3 4; do echo '{\"loss\": '{x}'}'; sleep 0.2; done"
    results = tune.Tuner(
        tune.command(["sh", "-c", line.replace("{x}", "$0"), "{x}"]),
        param_space={"x": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=HyperBandScheduler(max_t=4, reduction_factor=2)
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert results.errors
    assert all(isinstance(error, CommandError) and error.fix for error in results.errors)


@pytest.mark.slow
def test_other_exit_codes_may_be_success(tmp_path):
    code = "import sys; print('{\"loss\": 1}'); sys.exit(3)"
    assert fit(tmp_path, python(code), ok_exit_codes=(0, 3)).num_errors == 0


@pytest.mark.slow
def test_a_command_runs_where_the_experiment_was_started_with_its_variables_and_no_terminal(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code = """
        import json, os, sys
        names = [name for name in os.environ if name.startswith("MUSTER_")]
        config = json.load(open(os.environ["MUSTER_CONFIG"]))
        print(json.dumps({"loss": 1, "names": names, "read": config, "cwd": os.getcwd(),
                          "stdin": sys.stdin.read(), "words": sys.argv[1:],
                          "unbuffered": os.environ["PYTHONUNBUFFERED"],
                          "leads": os.getpgid(0) == os.getpid()}))
    """
    words = [*python(code), "{x}", "{trial_id}", "{port}", "{cpus}", "{config}", "{experiment}"]
    result = fit(tmp_path, words, {"x": "a b"})[0].metrics
    wanted = {"REPORT_TO", "TRIAL_ID", "TRIAL_NAME", "TRIAL_DIR", "EXPERIMENT", "CONFIG"}
    assert {f"MUSTER_{name}" for name in wanted} <= set(result["names"])
    assert (result["read"], result["cwd"], result["stdin"]) == ({"x": "a b"}, str(tmp_path), "")
    assert (result["leads"], result["unbuffered"]) == (True, "1")
    value, trial_id, port, cpus, config, experiment = result["words"]
    assert (value, trial_id, cpus) == ("a b", result["trial_id"], "1")
    assert (port.isdigit(), os.path.basename(config)) == (True, "command_config.json")
    assert experiment in result["words"][-1]


@pytest.mark.slow
def test_mistakes_are_found_before_the_first_trial(tmp_path):
    for command, space in [
        ("python {no_such_key}", {"x": tune.uniform(0, 1)}),
        ("no-such-program {x}", {"x": tune.uniform(0, 1)}),
        ("python -c pass", {"x": tune.uniform(0, 1)}),
    ]:
        with pytest.raises(CommandError) as caught:
            fit(tmp_path, command, space)
        assert caught.value.fix
    assert not list(tmp_path.glob("*/*/output.log"))


@pytest.mark.slow
def test_a_stop_lets_the_command_end_itself_and_then_runs_the_stop_command(tmp_path):
    code = """
        import signal, sys, time
        def leave(*_):
            open(sys.argv[1] + "/stopped", "w").write("by itself")
            sys.exit(5)
        signal.signal(signal.SIGINT, leave)
        print('{"loss": 1}', flush=True)
        time.sleep(300)
    """
    words = [*python(code), str(tmp_path)]
    stop_command = ["sh", "-c", f"echo $0 > {tmp_path}/cleaned", "{trial_id}"]
    results = fit(
        tmp_path, words, stop={"training_iteration": 1}, stop_signal="SIGINT", stop_command=stop_command
    )
    assert results.num_errors == 0
    assert (tmp_path / "stopped").read_text() == "by itself"
    assert (tmp_path / "cleaned").read_text().strip() == results[0].metrics["trial_id"]
