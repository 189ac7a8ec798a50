"""What the options of `muster tune run` become, without running anything."""

from __future__ import annotations

import json

import pytest
from tests.mistakes.views import assert_view

from muster import tune as api
from muster.cli.tune.experiment import ExperimentView
from muster.cli.tune.run import experiment
from muster.cli.tune.run.experiment import dry_run, first_trials, plan_run, run_command
from muster.cli.tune.run.options import GROUPS, run
from muster.errors import ConfigError
from muster.stores.experiment.summary import TrialSummary
from muster.tune.schedulers import AsyncHyperBandScheduler
from muster.tune.search import BasicVariantGenerator
from muster.tune.search.tpe import TPESearch

ECHO, LR, LOSS = "echo {lr}", ("--space", "lr=uniform:0:1"), ("--metric", "loss")
SWEEP = (
    "program: train.py\nmethod: {method}\nmetric: {{name: acc, goal: maximize}}\nrun_cap: 7\n"
    "early_terminate: {{type: hyperband, min_iter: 2}}\nparameters: {{lr: {{values: [0.1, 0.2]}}}}\n"
)


def asked(*words):
    parameters = run.make_context("run", list(words), help_option_names=["-h", "--help"]).params
    return parameters.pop("command"), parameters


def planned(*words, remarks=None):
    return plan_run(*asked(*words), (remarks if remarks is not None else []).append)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    def write(method="bayes"):
        (tmp_path / "sweep.yaml").write_text(SWEEP.format(method=method))
        (tmp_path / "train.py").touch()
        monkeypatch.chdir(tmp_path)
        return "--sweep", "sweep.yaml"

    return write


def test_every_option_reaches_its_place(tmp_path):
    plan = planned(
        *(ECHO, *LR, "--metric", "acc", "--mode", "max", "--also", "loss,step", "--report", "text"),
        *(
            "--report",
            "csv:log.csv",
            "-n",
            "7",
            "--search",
            "optuna",
            "--scheduler",
            "asha:max_t=9,grace_period=2",
        ),
        *("--seed", "3", "--concurrent", "2", "--args", "hydra", "--env", "A={lr}", "--env-args", "X_"),
        *(
            "--cwd",
            "/tmp",
            "--ok-exit",
            "0,3",
            "--grace",
            "2.5",
            "--stop-signal",
            "SIGINT",
            "--stop-command",
            "true",
        ),
        *("--checkpoint", "out/*", "--log-limit", "1MB", "--cpus", "2", "--gpus", "0.5", "--engine", "local"),
        *(
            "--stop",
            "acc=0.9",
            "--stop",
            "step=5",
            "--time-budget",
            "60",
            "--deadline",
            "90",
            "--cost-budget",
            "2",
        ),
        *("--price-per-hour", "1.5", "--trial-time-limit", "9", "--retries", "4", "--name", "mine"),
        *("--storage", str(tmp_path), "--keep", "2"),
    )
    command, tune, settings = plan.command, plan.tune, plan.run
    assert (command.args, command.env, command.env_args, command.cwd) == (
        "hydra",
        (("A", "{lr}"),),
        "X_",
        "/tmp",
    )
    assert (command.also, list(map(str, command.report))) == (("loss", "step"), ["text", "csv:log.csv"])
    assert (command.ok_exit_codes, command.grace_s, command.stop_signal) == ((0, 3), 2.5, "SIGINT")
    assert (command.stop_command, command.checkpoint, command.log_limit) == (("true",), "out/*", 1_000_000)
    assert (tune.metric, tune.mode, tune.num_samples, tune.max_concurrent_trials) == ("acc", "max", 7, 2)
    assert (tune.time_budget_s, tune.cost_budget, tune.deadline is not None) == (60, 2, True)
    assert type(tune.search_alg).__name__ == "OptunaSearch"
    assert isinstance(tune.scheduler, AsyncHyperBandScheduler)
    assert plan.resources == {"cpu": 2, "gpu": 0.5}
    assert (settings.name, settings.storage_path, settings.engine) == ("mine", str(tmp_path), "local")
    assert (settings.stop, settings.price_per_hour) == ({"acc": 0.9, "step": 5}, 1.5)
    assert (settings.trial_time_limit_s, settings.failure_config.max_failures) == (9, 4)
    assert settings.checkpoint_config.num_to_keep == 2


@pytest.mark.parametrize(
    ("words", "search", "samples"),
    [
        (LR, TPESearch, 10),
        (("--space", "lr=grid:1,2"), BasicVariantGenerator, 1),
        (("--space", "lr=1"), TPESearch, 1),
        ((*LR, "--search", "random"), BasicVariantGenerator, 10),
        ((*LR, "-n", "3"), TPESearch, 3),
        ((*LR, "--space", "o=choice:a,b", "--space", "m=grid:1,2 if o==a"), BasicVariantGenerator, 1),
        ((*LR, "--space", "o=grid:a,b", "--space", "m=uniform:0:1 if o==a"), BasicVariantGenerator, 1),
        ((*LR, "--space", "model.depth=grid:1,2"), BasicVariantGenerator, 1),
    ],
)
def test_search_and_number_of_trials_by_default(words, search, samples):
    plan = planned("echo {args}", *words, *LOSS)
    assert (type(plan.tune.search_alg), plan.tune.num_samples, plan.tune.mode) == (search, samples, "min")


def test_several_words_are_a_command_as_they_are():
    assert planned(*LR, *LOSS, "--", "echo", "a b", "--x={lr}").command.template == (
        "echo",
        "a b",
        "--x={lr}",
    )
    assert planned("echo 'a b' {lr}", *LR, *LOSS).command.template == ("echo", "a b", "{lr}")


def test_the_shell_gets_the_line_as_it_is():
    plan = planned("--shell", *LR, *LOSS, "--", "echo {lr} | cat")
    assert plan.command.words({"lr": "a b"}, {}) == ["/bin/sh", "-c", "echo 'a b' | cat"]


@pytest.mark.parametrize(
    ("method", "search", "samples"),
    [("bayes", TPESearch, 7), ("random", BasicVariantGenerator, 7), ("grid", BasicVariantGenerator, 1)],
)
def test_a_sweep_file_fills_in_what_the_options_leave_open(method, search, samples, sweep):
    remarks = []
    plan = planned(*sweep(method), remarks=remarks)
    assert (plan.tune.metric, plan.tune.mode, plan.tune.num_samples) == ("acc", "max", samples)
    assert type(plan.tune.search_alg) is search
    assert isinstance(plan.tune.scheduler, AsyncHyperBandScheduler)
    assert plan.command.template == ("${env}", "${interpreter}", "train.py", "${args}")
    assert len(remarks) == (method == "grid")  # run_cap


def test_options_replace_what_a_sweep_file_says(sweep):
    words = (
        "echo {args}",
        "-n",
        "2",
        "--metric",
        "loss",
        "--search",
        "random",
        "--space",
        "lr=3",
        "--space",
        "x=4",
    )
    plan = planned(*sweep(), *words)
    assert (plan.tune.metric, plan.tune.mode, plan.tune.num_samples) == ("loss", "min", 2)
    assert (plan.command.template, plan.space) == (("echo", "{args}"), {"lr": 3, "x": 4})


def test_a_space_file_and_options_are_joined(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("lr: uniform:0:1\nmodel: {depth: 2, width: {choice: [8, 16]}}\n")
    plan = planned(
        "echo {args}", "--space-file", str(file), "--space", "lr=0.5", "--space", "model.depth=3", *LOSS
    )
    assert repr(plan.space) == repr({"model": {"width": api.choice([8, 16]), "depth": 3}, "lr": 0.5})


def test_points_may_have_keys_with_conditions(tmp_path):
    file = tmp_path / "points.yaml"
    file.write_text("[{o: a, m: 0.5}, {o: b}]")
    spaces = ("--space", "o=choice:a,b", "--space", "m=uniform:0:1 if o==a")
    for search in ("auto", "random"):
        plan = planned("echo {args}", *spaces, *LOSS, "--points", str(file), "--search", search)
        assert [trial.config for trial in first_trials(plan, 2)] == [{"o": "a", "m": 0.5}, {"o": "b"}]


def test_a_metric_that_grows_needs_a_mode():
    assert planned(ECHO, *LR, "--metric", "val_acc", "--mode", "max").tune.mode == "max"
    with pytest.raises(ConfigError):
        planned(ECHO, *LR, "--metric", "val_acc")


def test_a_dry_run_prints_commands_and_makes_nothing(tune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spaces = (*LR, "--space", "o=choice:a,b", "--space", "m=0.9 if o==a")
    words = (
        "run",
        "echo {lr:.2f} {args}",
        *spaces,
        *LOSS,
        "--seed",
        1,
        "--name",
        "x",
        "--storage",
        "runs",
        "--dry-run",
    )
    seen = tune(*words)
    assert seen.exit_code == 0, seen.output
    assert_view("cli/tune_run_dry", seen.stdout)
    assert list(tmp_path.iterdir()) == []


def test_the_help_lists_every_option_in_its_group(tune):
    seen = tune("run", "--help", columns=88)
    assert_view("cli/tune_run_help", seen.stdout)
    assert all(each.opts[0] in seen.stdout for options in GROUPS.values() for each in options)


@pytest.mark.parametrize(
    ("words", "goals"),
    [
        (("--metric", "loss,latency", "--mode", "min,max"), {"loss": "min", "latency": "max"}),
        (("--metric", "loss,latency"), {"loss": "min", "latency": "min"}),
        (("--metric", "val_acc,latency", "--mode", "max,min"), {"val_acc": "max", "latency": "min"}),
    ],
)
def test_several_metrics_have_a_mode_each(words, goals):
    plan = planned(ECHO, *LR, *words, "--scheduler", "asha")
    assert (plan.tune.metric, plan.tune.mode) == ([*goals], [*goals.values()])
    assert plan.goals == goals
    last = dry_run(plan)[-1]
    assert all(f"{metric} ({mode})" in last for metric, mode in goals.items())


def test_the_mode_of_a_sweep_file_is_that_of_its_metric_among_several(sweep):
    assert planned(*sweep(), "--metric", "loss,acc").goals == {"loss": "min", "acc": "max"}


@pytest.mark.parametrize(
    "words",
    [
        ("--metric", "loss,latency", "--mode", "min"),
        ("--metric", "loss,latency", "--mode", "min,max,min"),
        ("--metric", "loss,latency", "--mode", "min,"),
        ("--metric", "loss,loss"),
        ("--metric", "loss,"),
        ("--metric", "loss,val_acc"),
    ],
)
def test_metrics_and_modes_that_do_not_fit_are_refused(words):
    with pytest.raises(ConfigError):
        planned(ECHO, *LR, *words)


@pytest.mark.parametrize(
    ("results", "code", "front"),
    [
        (
            [{"loss": 1, "at": {"p99": 5}}, {"loss": 2, "at": {"p99": 9}}, {"loss": 3, "at": {"p99": 8}}],
            0,
            "01",
        ),
        ([{"loss": 1}, {"loss": 2}], 2, ""),
    ],
)
def test_the_end_of_several_metrics_is_a_pareto_front(results, code, front, monkeypatch, tmp_path):
    trials = [
        TrialSummary(trial_id=str(number), status="TERMINATED", reports=1, result=result)
        for number, result in enumerate(results)
    ]
    monkeypatch.setattr(experiment, "fit_to_end", lambda tuner, path: ([], 0))
    monkeypatch.setattr(experiment, "read_experiment", lambda path: ExperimentView(path, tuple(trials)))
    words = (ECHO, *LR, "--metric", "loss,at/p99", "--mode", "min,max", "--storage", str(tmp_path))
    (line,), seen = run_command(*asked(*words, "--json"), print)
    record = json.loads(line)
    assert (seen, record["exit_code"], record["pareto_front"]) == (code, code, list(front))
    assert (record["best"], record["config"]) == (None, None)
    lines, seen = run_command(*asked(*words), print)
    assert (seen, "at/p99" in "".join(lines), "loss" in "".join(lines)) == (code, code == 2, False)
