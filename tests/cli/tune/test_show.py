"""`muster tune show`, `best` and `export` on a real experiment and on ones with known facts."""

from __future__ import annotations

import csv
import errno
import json
import os
import pickle
import shutil

import pandas as pd
import pytest
import yaml
from tests.cli.tune.experiments import FAILURE, SETTINGS, four_trials, write
from tests.mistakes.views import assert_view
from tests.support.builders import created, exited, reported, started
from tests.tune.experiments import add_checkpoint, logged_row, write_json

from muster.base.text import moment
from muster.stores.experiment.store import SqliteTrialStore
from muster.stores.experiment.values import Pickled
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.trials.model import CheckpointRef
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.config import RunConfig
from muster.tune.search.space import grid_search
from muster.tune.tune_config import TuneConfig
from muster.tune.tuner import Tuner


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Three trials of which the last one fails after its first result."""

    def train(config):
        import tempfile

        from muster.session.checkpoint import Checkpoint
        from muster.session.report import report

        for step in (1, 2):
            if step == 2 and config["x"] == 3:
                raise ValueError("three is bad")
            with tempfile.TemporaryDirectory() as directory:
                saved = Checkpoint.from_directory(directory)
                report({"loss": abs(config["x"] - 2 * step), "acc": {"top": step}}, checkpoint=saved)

    root = tmp_path_factory.mktemp("real")
    Tuner(
        train,
        param_space={"x": grid_search([1, 2, 3]), "fixed": "yes"},
        tune_config=TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="e", storage_path=str(root), verbose=0),
    ).fit()
    return root / "e"


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return four_trials(tmp_path_factory.mktemp("store") / "four")


def test_an_experiment_is_told_with_settings_best_time_and_failures(tune, real):
    result = tune("show", real)
    assert result.exit_code == 0, result.output
    text = result.stdout
    (failed,) = (path for path in real.iterdir() if path.is_dir() and "x=3" in path.name)
    assert text.startswith("e: finished\n3 trials: 2 TERMINATED, 1 ERROR\n")
    for part in (
        f"\nin {real}\n",
        "\nSettings\n  trainable_name  train\n  metric          loss\n  mode            min\n",
        "\n  search_alg      BasicVariantGenerator\n  scheduler       FIFOScheduler\n",
        "\n  {'x': 3, 'fixed': 'yes'}\n",
        "\nTime\n",
        ": user-error\n    File ",
        f"    ValueError: three is bad\n    see {failed.name}/error.txt\n",
    ):
        assert part in text
    assert "resume" not in text


@pytest.mark.parametrize(("limit", "option"), [("budget", "--cost-budget"), ("deadline", "--deadline")])
def test_an_experiment_that_a_limit_has_ended_says_what_to_give_it_and_until_when_it_ran(
    tune, tmp_path, limit, option
):
    settings = {"cost_budget": 25.0, "deadline": 1_794_950_000.0, "ended_by": limit}
    text = tune("show", write(tmp_path / "e e", [created("a"), started("a")], settings)).stdout
    assert f" '{tmp_path}/e e' {option} ...\n" in text
    assert f"  deadline     {moment(1_794_950_000.0)}\n" in text


def test_an_experiment_as_json(tune, real):
    found = json.loads(tune("show", real, "--json").stdout)
    assert (found["state"], found["trials"], found["best"]) == ("finished", {"TERMINATED": 2, "ERROR": 1}, 1)
    assert found["settings"]["search_alg"] == "BasicVariantGenerator"
    assert found["time"]["wall_s"] > found["time"]["longest_s"] > 0
    (failure,) = found["failures"]
    assert (failure["kind"], failure["error"]) == ("user-error", "ValueError: three is bad")


def test_a_trial_is_told_with_config_result_checkpoints_failures_and_files(tune, real):
    trials = json.loads(tune("ls", real, "--json").stdout)["trials"]
    trial_id = trials[2]["trial_id"]
    for name in (trial_id, trial_id[-5:], trials[2]["trial_name"], trials[2]["path"]):
        result = tune("show", real, name)
        assert result.exit_code == 0, result.output
        for part in (
            f"train_{trial_id}: ERROR, 1 result\nin {trials[2]['path']}\n",
            "\nConfig\n  {'x': 3, 'fixed': 'yes'}\n",
            "\nLast result\n  loss                1\n  acc/top             1\n",
            "\nCheckpoints\n  name               iter  loss  acc/top\n"
            "  checkpoint_000000     1     1        1\n",
            "\nFailures\n  1 failure, 1 start\n  the last one (user-error):\n    Traceback",
            "/error.txt\n",
            "\nFiles\n  error.pkl\n  error.txt\n",
        ):
            assert part in result.stdout


def test_a_trial_as_json_lists_its_checkpoints_with_their_metrics(tune, real):
    trials = json.loads(tune("ls", real, "--json").stdout)["trials"]
    found = json.loads(tune("show", real, trials[0]["trial_id"], "--json").stdout)
    assert [(each["name"], each["metrics"], each["is_newest"]) for each in found["checkpoints"]] == [
        ("checkpoint_000000", {"loss": 1, "acc": {"top": 1}}, False),
        ("checkpoint_000001", {"loss": 3, "acc": {"top": 2}}, True),
    ]
    assert (found["config"], found["result"]["loss"], found["failure"]) == ({"x": 1, "fixed": "yes"}, 3, None)
    assert {"result.json", "params.json", "progress.csv"} <= set(found["files"])


@pytest.mark.slow
def test_an_unknown_trial_names_near_ones(tune, four):
    result = tune("show", four, "a_0000")
    assert (result.exit_code, result.output.count("'a_0000'"), "a_00003" in result.output) == (2, 1, True)


def test_failures_beyond_a_few_are_counted(tune, tmp_path):
    facts = []
    for number in range(7):
        facts += [created(f"t{number}"), started(f"t{number}"), exited(f"t{number}", FAILURE)]
    text = tune("show", write(tmp_path / "e", facts)).stdout
    assert text.count("ValueError: no such luck") == 5
    assert "\n  ... and 2 more: " in text


def test_the_best_trial_has_a_config_to_paste(tune, four):
    assert_view("cli/best", tune("best", four).stdout)


@pytest.fixture(params=["facts", "snapshot"])
def perturbed(request, tmp_path):
    """A trial that began with lr 0.03 and whose last result was made with the 1.15 that PBT gave it."""
    facts = [created("a_1", {"lr": 0.03}), started("a_1"), reported("a_1", 1, loss=9.0, config={"lr": 0.03})]
    place = write(
        tmp_path / "pbt", [*facts, reported("a_1", 2, loss=0.5, config={"lr": 1.15}), exited("a_1")]
    )
    if request.param == "snapshot":
        with SqliteTrialStore(place) as store:
            store.snapshot(b"", {})
    return place


def test_a_config_that_a_scheduler_changed_is_the_one_that_every_command_gives(tune, perturbed, tmp_path):
    assert "\n{'lr': 1.15}\n" in tune("best", perturbed).stdout
    assert json.loads(tune("best", perturbed, "--format", "json").stdout)[0]["config"] == {"lr": 1.15}
    assert "  {'lr': 1.15}\n" in tune("show", perturbed).stdout
    assert json.loads(tune("show", perturbed, "a_1", "--json").stdout)["config"] == {"lr": 1.15}
    assert json.loads(tune("ls", perturbed, "--json").stdout)["trials"][0]["config/lr"] == 1.15
    tune("export", perturbed, "-o", tmp_path / "all.csv")
    assert pd.read_csv(tmp_path / "all.csv")["config/lr"].tolist() == [1.15]
    assert "with {'lr': 1.15}\n" in tune("resume", perturbed).stdout
    assert ExperimentAnalysis(perturbed).get_all_configs() == {"a_1": {"lr": 1.15}}


def test_other_metrics_modes_and_more_trials(tune, four):
    result = tune("best", four, "--metric", "loss", "--mode", "max", "-n", "5", "--format", "json")
    assert [(each["trial_id"], each["value"]) for each in json.loads(result.stdout)] == [
        ("a_00000", 0.5),
        ("a_00001", 0.25),
    ]
    found = yaml.safe_load(
        tune("best", four, "--metric", "acc/top", "--mode", "max", "--format", "yaml").stdout
    )
    assert found == [
        {
            "trial_id": "a_00000",
            "status": "TERMINATED",
            "metric": "acc/top",
            "value": 1.0,
            "config": {"lr": 0.0, "net": {"width": 1}},
            "training_iteration": 1,
            "checkpoint": None,
            "checkpoint_value": None,
            "path": f"{four}/train_a_00000_dir",
        }
    ]


@pytest.mark.parametrize(
    ("scope", "best"),
    [("last", "b"), ("all", "a"), ("avg", "b"), ("last-5-avg", "b"), ("last-10-avg", "b")],
)
def test_the_scope_says_which_values_of_a_trial_count(tune, tmp_path, scope, best):
    facts = []
    for name, losses in {"a": [1.0, 9.0, 9.0], "b": [3.0, 3.0, 3.0]}.items():
        rows = [logged_row(name, step, {"lr": 1}, loss=loss) for step, loss in enumerate(losses, start=1)]
        write_json(tmp_path / "e" / f"train_{name}_dir", rows)
        facts += [created(name), started(name)]
        facts += [reported(name, step, loss=loss) for step, loss in enumerate(losses, start=1)]
        facts.append(exited(name))
    result = tune("best", write(tmp_path / "e", facts), "--scope", scope, "--json")
    assert json.loads(result.stdout)[0]["trial_id"] == best


@pytest.mark.parametrize(("bound", "best"), [(3.0, "a"), (0.5, "b")])
def test_a_trial_that_violates_a_constraint_is_best_only_when_all_do(tune, tmp_path, bound, best):
    facts = []
    for name, loss, size in (("a", 2.0, 3.0), ("b", 1.0, 4.0)):
        facts += [created(name), started(name), reported(name, 1, loss=loss, size=size), exited(name)]
    place = write(tmp_path / "e", facts, settings={**SETTINGS, "constraints": {"size": bound}})
    assert json.loads(tune("best", place, "--json").stdout)[0]["trial_id"] == best
    assert json.loads(tune("compare", place, place, "--json").stdout)[0]["best_trial"] == best


def test_the_checkpoint_belongs_to_the_value_or_says_which_one_it_has(tune, tmp_path):
    place = tmp_path / "e" / "train_a_dir"
    rows = []
    for step, loss in enumerate([3.0, 1.0, 2.0], start=1):
        add_checkpoint(place, step, loss=loss)
        rows.append({**logged_row("a", step, {}, loss=loss), "checkpoint_dir_name": f"checkpoint_{step:06d}"})
    rows.append(logged_row("a", 4, {}, loss=2.5))
    write_json(place, rows)
    newest = CheckpointRef(path=str(place / "checkpoint_000003"), index=3, metrics={"loss": 2.0})
    facts = [created("a"), started("a"), reported("a", 3, newest, loss=2.0), reported("a", 4, loss=2.5)]
    write(tmp_path / "e", [*facts, exited("a")])
    best = json.loads(tune("best", tmp_path / "e", "--scope", "all", "--json").stdout)[0]
    found = best["value"], best["checkpoint"], best["checkpoint_value"]
    assert found == (1.0, str(place / "checkpoint_000002"), 1.0)
    assert tune("best", tmp_path / "e", "--scope", "all").stdout.endswith("/checkpoint_000002\n")
    assert tune("best", tmp_path / "e").stdout.endswith("/checkpoint_000003 (loss = 2)\n")


def test_a_failure_shows_the_users_line_and_not_a_librarys(tune, tmp_path):
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/nest/me/train.py", line 7, in train\n    step(model)\n'
        '  File "/nest/me/train.py", line 3, in step\n    model.fit(x)\n    ^^^^^^^^^^^^\n'
        '  File "/venv/lib/python3.11/site-packages/lib/a.py", line 90, in fit\n    check(x)\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 5, in check\n    raise ValueError(x)\n'
        "ValueError: no such luck\n"
    )
    failure = TrialFailure(kind=TrialFailureKind.USER_ERROR, message="boom", traceback=trace)
    write(tmp_path / "e", [created("a"), started("a"), exited("a", failure)])
    text = tune("show", tmp_path / "e").stdout
    place = 'File "/nest/me/train.py", line 3, in step'
    assert f"    {place}\n    model.fit(x)\n    ValueError: " in text
    assert ("site-packages" in text, "decoder.py" in text) == (False, False)


def test_a_scope_over_results_that_were_not_logged_is_refused(tune, four):
    result = tune("best", four, "--scope", "all")
    assert (result.exit_code, "--scope last" in result.output) == (2, True)


def test_no_metric_no_mode_and_nothing_reported_are_told_apart(tune, four, tmp_path):
    silent = write(tmp_path / "silent", [created("a")], {})
    goalless = write(tmp_path / "goalless", [created("a"), started("a"), reported("a", acc=1)], {})
    empty = write(tmp_path / "empty", [created("a")])
    told = {
        (silent,): "no metric is set in it; give --metric (and no trial reported anything yet)",
        (goalless,): "no metric is set in it; give --metric (it reported acc)",
        (goalless, "--metric", "acc"): "--metric acc: give --mode min or --mode max with it",
        (empty,): "no trial has a finite 'loss'; no trial reported a number",
        (four, "--metric", "los", "--mode", "min"): "no trial has a finite 'los'; reported are loss, acc/top",
    }
    for words, message in told.items():
        result = tune("best", *words)
        assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.parametrize("command", ["best", "plot"])
def test_several_objectives_name_the_pareto_front(tune, tmp_path, command):
    facts = [created("a"), started("a"), reported("a", 1, acc=0.5, lat=2.0), exited("a")]
    write(tmp_path / "e", facts, {"metric": ["acc", "lat"], "mode": ["max", "min"]})
    refused = tune(command, tmp_path / "e")
    assert (refused.exit_code, "no metric" in refused.output) == (2, False)
    assert "get_pareto_front()" in refused.output
    assert tune(command, tmp_path / "e", "--metric", "acc", "--mode", "max").exit_code == 0


def test_values_that_cannot_be_pasted_are_named(tune, tmp_path):
    facts = [created("a", {"f": len, "x": float("inf")}), started("a"), reported("a", loss=1.0)]
    place = write(tmp_path / "e", facts)
    result = tune("best", place, "--format", "json")
    assert json.loads(result.stdout)[0]["config"] == {"f": f"<pickled {len!r}>", "x": None}
    other = tune("best", place, "--format", "yaml").stderr
    assert [said.splitlines()[0].rpartition(": ")[2] for said in (result.stderr, other)] == ["f, x", "f"]
    assert (result.stderr.count("\n"), other.count("\n")) == (1, 1)


def test_export_writes_one_row_per_trial(tune, four, tmp_path):
    for name in ("t.csv", "t.json", "t.jsonl", "t.pkl"):
        result = tune("export", four, "-o", tmp_path / name)
        assert (result.exit_code, result.stdout) == (0, ""), result.output
    lines = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    rows = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert rows == [
        json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["trial_id"] for row in lines] == [row["trial_id"] for row in rows]
    assert list(lines[0])[:3] == ["trial_id", "status", "training_iteration"]
    assert [(row["config/net/width"], row["loss"]) for row in rows] == [
        (1, 0.5),
        (2, 0.25),
        (4, None),
        (8, None),
    ]
    assert [row["loss"] for row in lines] == ["0.5", "0.25", "nan", ""]
    assert list(pd.read_pickle(tmp_path / "t.pkl")["config/net/width"]) == [1, 2, 4, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.json", "t.jsonl", "t.pkl"]


def test_export_of_results_writes_one_row_per_result(tune, real, tmp_path):
    assert tune("export", real, "--results", "-o", tmp_path / "r.jsonl").exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["config/x"], row["training_iteration"], row["loss"], row["acc/top"]) for row in rows] == [
        (1, 1, 1, 1),
        (1, 2, 3, 2),
        (2, 1, 0, 1),
        (2, 2, 2, 2),
        (3, 1, 1, 1),
    ]


def test_results_that_were_not_logged_are_told_as_left_out(tune, four, tmp_path):
    result = tune("export", four, "--results", "-o", tmp_path / "r.csv")
    assert result.exit_code == 0
    assert " (3): a_00000: " in result.stderr


def test_files_that_cannot_be_written_are_refused(tune, four, tmp_path):
    result = tune("export", four, "-o", tmp_path / "t.xls")
    assert (result.exit_code, " .csv, .json" in result.output) == (2, True)
    result = tune("export", four, "-o", tmp_path / "gone" / "t.csv")
    assert (result.exit_code, os.strerror(errno.ENOENT) in result.output) == (2, True)


def test_parquet_without_pyarrow_says_what_to_install(tune, four, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    result = tune("export", four, "-o", tmp_path / "t.parquet")
    assert (result.exit_code, '"muster-ml[parquet]"' in result.output) == (2, True)


def test_parquet_holds_every_trial(tune, four, tmp_path):
    pytest.importorskip("pyarrow")
    assert tune("export", four, "-o", tmp_path / "t.parquet").exit_code == 0
    assert list(pd.read_parquet(tmp_path / "t.parquet")["trial_id"]) == [f"a_0000{n}" for n in range(4)]


class Mine:
    """A pickle that leaves a file behind when somebody loads it."""

    def __init__(self, trap) -> None:
        self.trap = str(trap)

    def __reduce__(self):
        return (open, (self.trap, "w"))


def test_nothing_but_resume_ever_unpickles(tune, tmp_path):
    trap = tmp_path / "sprung"
    place, bomb = tmp_path / "e", Mine(trap)
    folder = place / "train_a_dir"
    rows = [logged_row("a", 1, {"lr": 1}, loss=1.0)]
    write_json(folder, rows)
    add_checkpoint(folder, 0)
    for name in ("error.pkl", "params.pkl"):
        (folder / name).write_bytes(pickle.dumps(bomb))
    failure = type(FAILURE)(kind=FAILURE.kind, message="m", traceback="t", exception=pickle.dumps(bomb))
    facts = [created("a", {"lr": 1, "odd": bomb}), started("a"), reported("a", loss=1.0, odd=bomb)]
    write(place, [*facts, exited("a", failure)], {"metric": "loss", "mode": "min", "odd": bomb})
    for name in ("tuner.pkl", "trainable.pkl"):
        (place / name).write_bytes(pickle.dumps(bomb))
    commands = (
        ("ls", place, "--columns", "*"),
        ("ls", place, "--json"),
        ("ls", tmp_path),
        ("show", place),
        ("show", place, "--json"),
        ("show", place, "a"),
        ("show", place, "a", "--json"),
        ("best", place, "--scope", "all"),
        ("best", place, "--format", "yaml"),
        ("export", place, "-o", tmp_path / "t.csv"),
        ("export", place, "-o", tmp_path / "t.pkl"),
        ("export", place, "--results", "-o", tmp_path / "r.json"),
        ("resume", place),  # finished: says so, and loads nothing either
    )
    for words in commands:
        result = tune(*words)
        assert result.exit_code in (0, 1), result.output
        assert not trap.exists(), words
    Pickled(pickle.dumps(bomb), "").load().close()
    assert trap.exists()  # it does go off


def test_experiments_stand_side_by_side_and_the_better_one_is_named(tune, four, tmp_path):
    other = write(
        tmp_path / "other",
        [
            created("b_00000", {"lr": 0.7}),
            started("b_00000"),
            reported("b_00000", loss=0.125),
            exited("b_00000"),
        ],
    )
    result = tune("compare", four, other)
    assert result.exit_code == 0, result.output
    assert_view("cli/compare", result.stdout)
    records = json.loads(tune("compare", four, other, "--json").stdout)
    assert [record["best"] for record in records] == [0.25, 0.125]


def test_experiments_with_other_goals_need_one_to_be_compared_by(tune, four, tmp_path):
    other = write(tmp_path / "other", [], {"metric": "accuracy", "mode": "max"})
    result = tune("compare", four, other)
    assert result.exit_code == 2
    assert ("--metric" in result.stderr, "--mode" in result.stderr) == (True, True)
    assert tune("compare", four, "-o", tmp_path / "x.gif").exit_code == 2


def test_experiments_are_drawn_over_each_other(tune, real, tmp_path):
    drawn, page = tmp_path / "both.svg", tmp_path / "both.html"
    for file in (drawn, page):
        result = tune("compare", real, real, "-o", file)
        assert result.exit_code == 0, result.output
    assert drawn.read_text(encoding="utf-8").count("<path") == 2
    assert page.read_text(encoding="utf-8").count('id="page"') == 1


def test_an_experiment_is_drawn_from_the_shell(tune, real, tmp_path):
    result = tune("plot", real, "-o", tmp_path / "real.html")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'real.html'}\n"), result.output
    assert tune("plot", real, "-o", "real.gif").exit_code == 2


def test_ls_without_a_path_lists_where_fit_writes_by_default(tune, four, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    missing = tune("ls")
    assert (missing.exit_code, f"{tmp_path}/ray_results" in missing.stderr) == (2, True)
    shutil.copytree(four, tmp_path / "ray_results" / "four")
    assert "four" in tune("ls").stdout
