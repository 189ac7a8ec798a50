"""The command of a trial as a line for a shell."""

from __future__ import annotations

import os

import msgspec
import pytest

from muster import tune
from muster.cli.tune.best import best_page
from muster.cli.tune.experiment import ExperimentView, command_line
from muster.errors import ConfigError
from muster.stores.experiment.summary import TrialSummary


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (tune.command("echo {x} 'a b'"), "echo 1 'a b'"),
        (tune.command("echo {x} | cat", shell=True), "echo 1 | cat"),
        (tune.command("echo {x}", env={"A": "b {x}"}), "A='b 1' echo 1"),
        (tune.command("echo {x}", cwd="/a b"), "cd '/a b' && echo 1"),
        (tune.command("echo {trial_id} {port} {resume:--resume}"), "echo t1 '{port}'"),
        (tune.command("echo ${envvar:MUSTER_NOT_SET}"), "echo '$MUSTER_NOT_SET'"),
    ],
)
def test_a_command_is_ready_to_paste(command, line):
    assert command_line(command, {"x": 1}, {"trial_id": "t1"}) == line


def test_the_directory_is_named_where_it_is_another(tmp_path, monkeypatch):
    command, here = tune.command("echo {x}"), os.getcwd()
    monkeypatch.chdir(tmp_path)
    assert command_line(command, {"x": 1}, {}) == f"cd {here} && echo 1"


def test_the_places_of_a_trial_are_filled_in_and_what_only_a_run_knows_is_named(tmp_path):
    words = ["echo", "{checkpoint}", "{config}", "{port}"]
    settings = {"command": msgspec.to_builtins(tune.command(words)), "metric": "loss", "mode": "min"}
    trial = TrialSummary(trial_id="t1", status="TERMINATED", result={"loss": 1.0})
    experiment = ExperimentView(str(tmp_path), (trial,), settings)
    (line,), (remark,) = best_page(experiment, 1, "command", {})
    folder = experiment.trial_path(trial)
    assert line == f"echo {folder}/command_checkpoints {folder}/command_config.json '{{port}}'"
    assert "{port}" in remark
    assert "{checkpoint}" not in remark


@pytest.mark.parametrize("settings", [{}, {"command": None}, {"command": {"template": 3}}, {"command": "x"}])
def test_an_experiment_without_a_readable_command_has_none(settings):
    experiment = ExperimentView("/e", (), settings)
    assert experiment.command is None
    with pytest.raises(ConfigError):
        experiment.command_line(TrialSummary(trial_id="t1", status="TERMINATED"))
