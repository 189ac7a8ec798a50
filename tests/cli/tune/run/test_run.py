"""`muster tune run` with real commands: results, exit codes, resume, and the command of the best trial."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.cli.tune.experiment import read_experiment
from muster.tune import Tuner

pytestmark = pytest.mark.slow
MUSTER = [sys.executable, "-m", "muster.cli.main", "tune"]
# Prints its JSON, unless the file that it is given exists.
PRINT = 'sh -c \'test ! -e "$1" && echo "$0"\''
ECHO = """echo '{{"loss": {x}}}'"""
X, LOSS = ("--space", "x=uniform:1:2"), ("--metric", "loss", "--engine", "local")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_command_is_tuned_shown_and_its_best_command_pasted(tune, tmp_path):
    spaces = (*X, "--space", "o=choice:a,b", "--space", "m=uniform:0:1 if o==a")
    words = ("run", f"{ECHO} {{args}}", *spaces, *LOSS, "--report", r"regex:loss\W+(?P<loss>[\d.]+)")
    done = tune(
        *words, "-n", 5, "--seed", 1, "--cpus", 1, "--env", "KIND={o}", "--storage", "runs", "--name", "e"
    )
    assert done.exit_code == 0, done.output
    experiment = read_experiment("runs/e")
    best = min(experiment.trials, key=lambda trial: trial.result["loss"])
    assert {trial.config["x"] for trial in experiment.trials} == {
        trial.result["loss"] for trial in experiment.trials
    }
    assert all(("m" in trial.config) == (trial.config["o"] == "a") for trial in experiment.trials)
    line = tune("best", "runs/e", "--command").stdout
    assert line.startswith(f"KIND={best.config['o']} echo '{{\"loss\": {best.config['x']}}}'")
    pasted = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
    assert f'"loss": {best.result["loss"]}' in pasted
    assert line.strip() in tune("show", "runs/e", best.trial_id, columns=300).stdout
    assert json.loads(tune("show", "runs/e", best.trial_id, "--json").stdout)["command"] == line.strip()
    assert Tuner.restore("runs/e").get_results().num_errors == 0  # the same experiment for Python


def test_json_is_the_only_output(tune):
    done = tune("run", ECHO, "--space", "x=grid:3,1,2", *LOSS, "--storage", "runs", "--name", "e", "--json")
    record = json.loads(done.stdout)
    assert (record["exit_code"], record["best"], record["config"], record["trials"]) == (
        0,
        1,
        {"x": 1},
        {"TERMINATED": 3},
    )
    assert record["command"] == "echo '{\"loss\": 1}'"


def test_failed_trials_are_exit_code_1_and_resume_needs_none_of_the_options(tune, tmp_path):
    Path("2").touch()
    words = ("run", f"""{PRINT} '{{{{"loss": {{x}}}}}}' {{x}}""", "--space", "x=grid:1,2", *LOSS)
    first = tune(*words, "--storage", "runs", "--name", "e")
    assert first.exit_code == 1, first.output
    Path("2").unlink()
    again = subprocess.run(
        [*MUSTER, "resume", str(tmp_path / "runs/e"), "--errored", "restart"],
        cwd="/",
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert again.returncode == 0, again.stderr
    results = {trial.result["loss"]: trial.status for trial in read_experiment("runs/e").trials}
    assert results == {1: "TERMINATED", 2: "TERMINATED"}


def test_the_first_trial_without_the_metric_ends_the_experiment_with_2(tune):
    words = ("run", """echo '{{"los": {x}}}'""", *X, *LOSS, "-n", 50, "--storage", "runs", "--name", "e")
    done = tune(*words)
    assert (done.exit_code, "--check" in done.stdout) == (2, True), done.output
    trials = read_experiment("runs/e").trials
    assert (len(trials) < 50, {trial.failure.kind.value for trial in trials if trial.failure}) == (
        True,
        {"never-reported"},
    )


def test_an_experiment_whose_trials_never_fit_is_finished(tune):
    words = ("run", "echo {x}", "--space", "x=uniform:0:1", "--metric", "loss", "--cpus", 4000, "-n", 3)
    done = tune(*words, "--storage", "runs", "--name", "large", "--json")
    assert done.exit_code == 2, done.output
    found = json.loads(done.stdout)
    assert (found["state"], found["trials"]) == ("finished", {"ERROR": 3})


def test_a_budget_is_exit_code_3(tune):
    words = ("run", "sh -c 'echo \"$0\"; sleep 1' '{{\"loss\": {x}}}'", *X, *LOSS, "-n", 50)
    assert tune(*words, "--storage", "runs", "--cost-budget", 0.0005, "--price-per-hour", 3).exit_code == 3
    assert tune(*words, "--storage", "runs", "--time-budget", 0.5).exit_code == 3


def test_ctrl_c_is_exit_code_130(tmp_path):
    words = ["run", "sh -c 'echo \"$0\"; touch started; sleep 60' '{{\"loss\": {x}}}'", *X, *LOSS]
    process = subprocess.Popen(
        [*MUSTER, *words, "--storage", "runs", "--name", "e"], stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not Path("started").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert (process.returncode, f"tune resume {tmp_path}/runs/e" in printed) == (130, True), printed


@pytest.mark.parametrize(("printed", "code"), [("loss", 0), ("los", 2)])
def test_check_runs_one_trial_of_a_grid(printed, code, tune):
    words = (
        f"""echo '{{{{"{printed}": {{x}}}}}}'""",
        "--space",
        "x=grid:1,2",
        *LOSS,
        "--storage",
        "runs",
        "--check",
    )
    done = tune("run", *words)
    assert (done.exit_code, Path("runs").exists()) == (code, False), done.output
    found = ["loss=1"] if code == 0 else ["nothing"]
    assert done.stdout.split("found: ")[1].split()[:1] == found


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of wandb
def test_a_sweep_passes_its_values_as_words_and_to_wandb(tune):
    Path("train.py").write_text(
        "import json, os, sys\n"
        "with open(os.environ['WANDB_SWEEP_PARAM_PATH']) as stream:\n"
        "    values = json.load(stream)\n"
        "print(json.dumps({'loss': values['lr']['value'], 'words': sys.argv[1:]}))\n"
    )
    Path("sweep.yaml").write_text(
        f"program: train.py\nproject: p\nmethod: grid\nmetric: {{name: loss}}\ncommand: [{sys.executable}, "
        "'${program}', '${args}']\nparameters: {lr: {values: [0.1, 0.2]}, amp: {value: true}}\n"
    )
    done = tune("run", "--sweep", "sweep.yaml", "--engine", "local", "--storage", "runs", "--name", "e")
    assert done.exit_code == 0, done.output
    seen = [(trial.result["loss"], trial.result["words"]) for trial in read_experiment("runs/e").trials]
    assert seen == [(0.1, ["--amp=True", "--lr=0.1"]), (0.2, ["--amp=True", "--lr=0.2"])]
    config_util = pytest.importorskip("wandb.sdk.lib.config_util")
    files = sorted(Path("runs/e").glob("*/command_config.wandb"))
    read = [config_util.dict_from_config_file(str(file)) for file in files]
    assert [values["lr"] for values in read] == [0.1, 0.2]
