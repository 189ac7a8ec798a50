"""Wrong inputs of `muster tune run`: one sentence each, exit code 2, and no experiment is started."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.mistakes.views import assert_line

from muster.cli.main import cli

SWEEP = "program: train.py\nmethod: {method}\nmetric: {{name: loss}}\nparameters:\n  lr: {{{lr}}}\n"
FILES = {
    "train.py": "print(1)\n",
    "notes.txt": "not a program\n",
    "list.yaml": "- lr\n",
    "broken.yaml": "lr: [\n",
    "bounds.yaml": "lr: {domain: uniform, lower: 0}\n",
    "domain.yaml": "lr: {domain: uniforn, lower: 0, upper: 1}\n",
    "weighted.yaml": SWEEP.format(method="random", lr="values: [1, 2], probabilities: [0.9, 0.1]"),
    "beta.yaml": SWEEP.format(method="random", lr="distribution: beta, a: 1, b: 2"),
    "custom.yaml": SWEEP.format(method="custom", lr="value: 1"),
    "floats.yaml": SWEEP.format(method="grid", lr="min: 0.0, max: 1.0"),
    "bare.yaml": "program: train.py\nmethod: random\nparameters: {lr: 0.1}\n",
    "launch.yaml": "job: us/it/job:v1\nmethod: random\nparameters: {lr: {value: 0.1}}\n",
    "points.yaml": "[{lr: 0.1, momentum: 0.9}]\n",
    "point.yaml": "{lr: 0.1}\n",
}
ECHO, LR, LOSS = "echo {lr}", ("--space", "lr=uniform:0:1"), ("--metric", "loss")
OPTIMIZER = ("--space", "optimizer=choice:sgd,adam")
WRONG = {
    "no_command": [*LR, *LOSS],
    "no_space": [ECHO, *LOSS],
    "no_metric": [ECHO, *LR],
    "metric_without_direction": [ECHO, *LR, "--metric", "val_acc"],
    "mode_misspelt": [ECHO, *LR, *LOSS, "--mode", "minimize"],
    "modes_too_few": [ECHO, *LR, "--metric", "loss,latency", "--mode", "min"],
    "metric_twice": [ECHO, *LR, "--metric", "loss,loss"],
    "option_misspelt": [ECHO, *LR, *LOSS, "--sheduler", "asha"],
    "options_of_the_command": ["echo", "--rate", "{lr}", *LR, *LOSS],
    "space_without_spec": [ECHO, "--space", "lr", *LOSS],
    "domain_misspelt": [ECHO, "--space", "lr=loguniforn:1e-5:1e-1", *LOSS],
    "unknown_domain": [ECHO, "--space", "lr=normal:0:1", *LOSS],
    "bound_missing": [ECHO, "--space", "lr=uniform:0", *LOSS],
    "bound_not_a_number": [ECHO, "--space", "lr=uniform:0:one", *LOSS],
    "bounds_swapped": [ECHO, "--space", "lr=uniform:1:0", *LOSS],
    "exponents_as_bounds": [ECHO, "--space", "lr=loguniform:-4:-1", *LOSS],
    "step_does_not_divide": [ECHO, "--space", "lr=quniform:0:1:0.3", *LOSS],
    "no_whole_number": [ECHO, "--space", "lr=randint:3:3", *LOSS],
    "choice_of_nothing": [ECHO, "--space", "lr=choice:", *LOSS],
    "choice_not_yaml": [ECHO, "--space", "lr=choice:a,*b", *LOSS],
    "key_given_twice": [ECHO, *LR, *LR, *LOSS],
    "key_below_a_value": ["echo {args}", *LR, "--space", "lr.base=1", *LOSS],
    "condition_on_an_unknown_key": [
        "echo {args}",
        *LR,
        *OPTIMIZER,
        "--space",
        "m=1 if optimiser==sgd",
        *LOSS,
    ],
    "condition_on_a_number": ["echo {args}", *LR, "--space", "m=1 if lr==0.5", *LOSS],
    "condition_never_true": ["echo {args}", *LR, *OPTIMIZER, "--space", "m=1 if optimizer==sgdd", *LOSS],
    "conditional_key_as_a_word": [
        "echo {lr} {m} {optimizer}",
        *LR,
        *OPTIMIZER,
        "--space",
        "m=1 if optimizer==sgd",
        *LOSS,
    ],
    "condition_and_searcher": [
        *("echo {args}", *LR, *OPTIMIZER, "--space", "m=1 if optimizer==sgd", *LOSS),
        *("--search", "nevergrad"),
    ],
    "grid_and_searcher": [ECHO, "--space", "lr=grid:1,2", *LOSS, "--search", "optuna"],
    "placeholder_misspelt": ["echo {batch}", "--space", "batch_size=randint:1:9", *LOSS],
    "key_not_handed_over": [ECHO, *LR, "--space", "dropout=uniform:0:1", *LOSS],
    "program_not_found": ["trian {lr}", *LR, *LOSS],
    "script_not_found": ["python tarin.py {lr}", *LR, *LOSS],
    "directory_not_found": [ECHO, *LR, *LOSS, "--cwd", "tarin"],
    "not_executable": ["./notes.txt {lr}", *LR, *LOSS],
    "quote_not_closed": ["echo 'a {lr}", *LR, *LOSS],
    "report_misspelt": [ECHO, *LR, *LOSS, "--report", "cvs:log.csv"],
    "report_pattern": [ECHO, *LR, *LOSS, "--report", "regex:loss (.*"],
    "report_without_groups": [ECHO, *LR, *LOSS, "--report", "regex:loss .*"],
    "args_style": [ECHO, *LR, *LOSS, "--args", "hydar"],
    "signal_misspelt": [ECHO, *LR, *LOSS, "--stop-signal", "SIGTRM"],
    "grace_below_zero": [ECHO, *LR, *LOSS, "--grace", "-1"],
    "log_limit": [ECHO, *LR, *LOSS, "--log-limit", "large"],
    "exit_codes": [ECHO, *LR, *LOSS, "--ok-exit", "none"],
    "env_without_value": [ECHO, *LR, *LOSS, "--env", "SEED"],
    "stop_not_a_number": [ECHO, *LR, *LOSS, "--stop", "loss=low"],
    "searcher_misspelt": [ECHO, *LR, *LOSS, "--search", "optna"],
    "searcher_argument": [ECHO, *LR, *LOSS, "--search", "optuna:sede=1"],
    "scheduler_misspelt": [ECHO, *LR, *LOSS, "--scheduler", "ahsa"],
    "scheduler_argument": [ECHO, *LR, *LOSS, "--scheduler", "asha:max=9"],
    "scheduler_argument_without_value": [ECHO, *LR, *LOSS, "--scheduler", "asha:9"],
    "samples": [ECHO, *LR, *LOSS, "-n", "0"],
    "name_too_long": [ECHO, *LR, *LOSS, "--name", "n" * 300],
    "retries_and_fail_fast": [ECHO, *LR, *LOSS, "--retries", "1", "--fail-fast"],
    "budget_of_nothing": [ECHO, *LR, *LOSS, "--cost-budget", "0"],
    "deadline_over": [ECHO, *LR, *LOSS, "--deadline", "0"],
    "space_file_missing": ["echo {args}", "--space-file", "none.yaml", *LOSS],
    "space_file_a_list": ["echo {args}", "--space-file", "list.yaml", *LOSS],
    "space_file_broken": ["echo {args}", "--space-file", "broken.yaml", *LOSS],
    "space_file_bounds": ["echo {args}", "--space-file", "bounds.yaml", *LOSS],
    "space_file_domain": ["echo {args}", "--space-file", "domain.yaml", *LOSS],
    "points_with_other_keys": [ECHO, *LR, *LOSS, "--points", "points.yaml"],
    "points_not_a_list": [ECHO, *LR, *LOSS, "--points", "point.yaml"],
    "sweep_with_probabilities": ["--sweep", "weighted.yaml"],
    "sweep_with_beta": ["--sweep", "beta.yaml"],
    "sweep_custom": ["--sweep", "custom.yaml"],
    "sweep_grid_of_floats": ["--sweep", "floats.yaml"],
    "sweep_bare_value": ["--sweep", "bare.yaml", *LOSS],
    "sweep_launch": ["--sweep", "launch.yaml", *LOSS],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_one_sentence(name, tmp_path, monkeypatch):
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    words = ["tune", "run", "--storage", str(tmp_path / "runs"), *WRONG[name]]
    seen = CliRunner().invoke(cli, words, prog_name="muster")
    line = seen.stderr.strip().replace(str(tmp_path), "HERE")
    assert (seen.exit_code, seen.stdout, len(line.splitlines())) == (2, "", 1), seen.output
    assert not (tmp_path / "runs").exists()
    assert_line("tune_run", f"{name}", line)
