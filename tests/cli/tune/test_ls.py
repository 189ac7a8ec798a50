"""`muster tune ls` on experiments with known facts."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from tests.cli.tune.experiments import FAILURE, four_trials, write
from tests.mistakes.views import assert_view
from tests.support.builders import created, exited, reported, started
from tests.tune.experiments import add_checkpoint

from muster.stores.experiment.store import SqliteTrialStore

TABLE = """\
four: finished
4 trials: 3 TERMINATED, 1 ERROR
best loss (min): 0.25 by a_00001

trial    status      iter    time  loss   lr  net/width
a_00000  TERMINATED     1  1.00 s   0.5    0          1
a_00001  TERMINATED     2  3.00 s  0.25  0.1          2
a_00002  TERMINATED     3  5.00 s   nan  0.2          4
a_00003  ERROR          -       -     -  0.3          8
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return four_trials(tmp_path_factory.mktemp("store") / "four")


def ids(result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [row["trial_id"] for row in json.loads(result.stdout)["trials"]]


def test_the_trials_with_status_progress_metric_and_searched_values(tune, four):
    assert tune("ls", four).output == TABLE


def test_a_metric_named_like_a_column_is_shown_beside_the_trials_own(tune, tmp_path):
    facts = [created("a"), started("a"), reported("a", 1, error=0.25), exited("a", FAILURE)]
    for settings in ({"metric": "error", "mode": "min"}, {}):  # also of an experiment that names none
        place = str(write(tmp_path / f"{len(settings)}", facts, settings))
        [row] = json.loads(tune("ls", place, "--json").stdout)["trials"]
        assert (row["result/error"], row["error"]) == (0.25, "ValueError: no such luck")
        *_, heading, cells = [line.split() for line in tune("ls", place).output.splitlines()]
        assert dict(zip(heading, cells, strict=False))["error"] == "0.25"


def test_rays_names_of_the_command_work(tune, four):
    for name in ("list-trials", "lsx", "list-experiments"):
        assert tune(name, four).output == TABLE


def test_a_narrow_terminal_leaves_columns_out_and_says_which(tune, four):
    result = tune("ls", four, columns=45)
    assert_view("cli/ls_narrow", result.output)


@pytest.mark.conformance("C-246")
def test_rays_default_columns_can_be_asked_for_by_name(tune, four):
    names = "trainable_name,experiment_tag,trial_id,training_iteration,time_total_s,mean_accuracy,mean_loss"
    result = tune("ls", four, "--columns", f"{names},config/*", "--limit", "1", columns=200)
    assert_view("cli/ls_columns", result.output)


def test_headings_and_parameters_are_names_of_columns_too(tune, four):
    result = tune("ls", four, "--columns", "trial,iter,lr,error", "--filter", "trial == a_00003", "--json")
    assert json.loads(result.stdout)["trials"] == [
        {
            "trial_id": "a_00003",
            "training_iteration": None,
            "config/lr": pytest.approx(0.3),
            "error": FAILURE.traceback.splitlines()[-1],
        }
    ]


@pytest.mark.conformance("C-246")
def test_an_unknown_column_is_an_error_that_names_the_nearest(tune, four):
    for option, text in (("--columns", "trial_id,losss"), ("--sort", "losss"), ("--filter", "losss > 1")):
        result = tune("ls", four, option, text)
        assert result.exit_code == 2
        assert result.output.startswith(f"error: {option}: ")
        assert (" 'losss'" in result.output, " loss" in result.output, ": trial_id, " in result.output) == (
            True,
            True,
            True,
        )


@pytest.mark.conformance("C-246")
@pytest.mark.parametrize(
    ("condition", "passing"),
    [
        ("loss < 0.5", [1]),
        ("loss <= 0.5", [0, 1]),
        ("loss == 0.25", [1]),
        ("loss != 0.25", [0, 2]),
        ("loss>=0.25", [0, 1]),
        ("loss > 0.25", [0]),
        ("status == ERROR", [3]),
        ("status != 'ERROR'", [0, 1, 2]),
        ("config/net/width >= 4", [2, 3]),
        ("done == false", [0, 1, 2]),
    ],
)
def test_filters_compare_numbers_as_numbers_and_drop_trials_without_a_value(tune, four, condition, passing):
    assert ids(tune("ls", four, "--json", "--filter", condition)) == [f"a_0000{n}" for n in passing]


def test_all_filters_must_pass_and_the_rest_is_counted(tune, four):
    result = tune("ls", four, "--filter", "iter >= 1", "--filter", "iter < 3", "--limit", "1")
    assert_view("cli/ls_filtered", result.output)


def test_a_filter_that_is_none_is_explained(tune, four):
    result = tune("ls", four, "--filter", "loss")
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert result.output.startswith("error: --filter 'loss': ")
    assert " <, <=, ==, !=, >=, >; " in result.output


def test_the_order_puts_trials_without_a_number_last_either_way(tune, four):
    assert ids(tune("ls", four, "--json", "--sort", "loss")) == ["a_00001", "a_00000", "a_00002", "a_00003"]
    down = ["a_00000", "a_00001", "a_00002", "a_00003"]
    assert ids(tune("ls", four, "--json", "--sort", "loss", "--desc")) == down
    assert ids(tune("ls", "--desc", "True", four, "--json", "--sort", "loss")) == down
    assert ids(tune("ls", four, "--json", "--sort", "loss", "--desc", "False"))[0] == "a_00001"
    assert ids(tune("ls", four, "--json", "--sort", "status,loss", "--desc")) == [
        "a_00000",
        "a_00001",
        "a_00002",
        "a_00003",
    ]


def test_json_has_the_experiment_and_every_column_of_its_trials(tune, four):
    found = json.loads(tune("ls", four, "--json").stdout)
    assert found["experiment"] == {
        "name": "four",
        "path": str(four),
        "state": "finished",
        "pid": None,
        "since": None,
        "total_trials": 4,
        "trials": {"TERMINATED": 3, "ERROR": 1},
        "metric": "loss",
        "mode": "min",
        "best": 0.25,
        "last_updated": 1_700_000_090.0,
    }
    assert found["trials"][2] == {
        "loss": None,  # NaN is none in JSON
        "time_total_s": 5.0,
        "acc/top": 1,
        "training_iteration": 3,
        "trial_id": "a_00002",
        "done": False,
        "config/lr": 0.2,
        "config/net/width": 4,
        "trial_name": "train_a_00002",
        "trainable_name": "train",
        "experiment_tag": "tag-a_00002",
        "status": "TERMINATED",
        "reports": 1,
        "starts": 1,
        "failures": 0,
        "error": None,
        "checkpoint": None,
        "path": f"{four}/train_a_00002_dir",
        "created_at": 1_700_000_000.0,
        "started_at": 1_700_000_001.0,
        "reported_at": 1_700_000_004.0,
        "ended_at": 1_700_000_090.0,
    }


@pytest.mark.conformance("C-246")
def test_the_output_file_has_the_chosen_rows_and_columns(tune, four, tmp_path):
    file = tmp_path / "chosen.csv"
    result = tune("ls", four, "--columns", "trial,loss", "--sort", "loss", "--limit", "2", "-o", file)
    assert (result.stdout, result.stderr) == ("", f"{file}: 2 rows, 2 columns\n")
    rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    assert rows == [["trial_id", "loss"], ["a_00001", "0.25"], ["a_00000", "0.5"]]


def test_rays_pickle_of_a_table_can_be_written(tune, four, tmp_path):
    assert tune("ls", four, "--columns", "trial,loss", "-o", tmp_path / "t.pkl").exit_code == 0
    assert list(pd.read_pickle(tmp_path / "t.pkl")["trial_id"]) == [f"a_0000{n}" for n in range(4)]


def test_long_values_are_shortened_and_that_is_said(tune, tmp_path):
    facts = [created("a", {"text": "x" * 100}), created("b", {"text": "short"})]
    result = tune("ls", write(tmp_path / "e", facts), "--columns", "trial,text")
    assert_view("cli/ls_shortened", result.output)


def test_without_a_known_metric_the_reported_numbers_are_shown(tune, tmp_path):
    facts = [created("a"), started("a"), reported("a", acc=0.5, note="text"), exited("a")]
    result = tune("ls", write(tmp_path / "e", facts, {}))
    assert result.output.splitlines()[1:] == [
        "1 trial: 1 TERMINATED",
        "",
        "trial  status      iter  time  acc   lr",
        "a      TERMINATED     1  -     0.5  0.5",
    ]


def test_an_experiment_without_trials_is_told_as_such(tune, tmp_path):
    result = tune("ls", write(tmp_path / "e", []))
    assert_view("cli/ls_without_trials", result.output)


def test_a_directory_of_experiments_is_listed_also_when_one_cannot_be_read(tune, four, tmp_path):
    four_trials(tmp_path / "one")
    write(tmp_path / "two", [created("b"), started("b")])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "experiment.sqlite").write_bytes(
        b"no database at all, but long enough to be one" * 99
    )
    (tmp_path / "other").mkdir()
    result = tune("ls", tmp_path, "--columns", "name,state,total_trials,trials,best")
    lines = result.output.splitlines()
    assert lines[:4] == [
        "name  state        total_trials  trials            best",
        "bad   unreadable              -  -                    -",
        "one   finished                4  3 done, 1 failed  0.25",
        "two   interrupted             1  1 interrupted        -",
    ]
    assert lines[4].startswith(f"bad: {tmp_path}/bad/experiment.sqlite: ")
    rows = json.loads(tune("ls", tmp_path, "--json", "--filter", "state == finished").stdout)["experiments"]
    assert [(row["name"], row["trials"], row["best"]) for row in rows] == [
        ("one", {"TERMINATED": 3, "ERROR": 1}, 0.25)
    ]


@pytest.mark.parametrize(("columns", "whole"), [(80, 40), (200, 100)])
def test_names_are_whole_up_to_half_of_the_terminal(tune, tmp_path, columns, whole):
    default = "train_2026-11-16_02-10-00_4f1c09"
    for name in (default, "n" * whole, "l" * (whole + 1)):
        four_trials(tmp_path / name)
    lines = tune("ls", tmp_path, columns=columns).output.splitlines()
    assert [
        line.split()[0] == name for line, name in zip(lines[1:], ("l", "n" * whole, default), strict=False)
    ] == [
        False,
        True,
        True,
    ]
    assert max(map(len, lines)) <= columns


def test_the_usual_columns_of_experiments_fit_sixty_characters(tune, tmp_path):
    four_trials(tmp_path / "one")
    assert tune("ls", tmp_path, columns=60).output.splitlines()[0].split() == [
        "name",
        "state",
        "trials",
        "best",
        "updated",
    ]


def test_what_is_no_experiment_is_refused_with_what_to_do(tune, four, tmp_path):
    (tmp_path / "empty").mkdir()
    (four / "train_a_00000_dir").mkdir(exist_ok=True)
    told = {
        tmp_path / "gone": "there is no such file or directory",
        tmp_path
        / "empty": "is not an experiment directory (experiment.sqlite not found). Give the directory",
        four / "train_a_00000_dir": f"is the directory of a trial: give that of its experiment, {four}",
    }
    for path, message in told.items():
        for command in (["ls"], ["show"], ["best"], ["export", "-o", tmp_path / "x.csv"], ["resume"]):
            result = tune(*command, path)
            assert (result.exit_code, message in result.output) == (2, True), result.output
    assert f"({four.name}): " in tune("show", four.parent).output


def test_a_damaged_store_is_told_and_left_as_it_is(tune, tmp_path):
    place = four_trials(tmp_path / "four")
    file = place / "experiment.sqlite"
    content = b"SQLite format 3\0" + b"\xff" * 5000
    file.write_bytes(content)
    result = tune("ls", place)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {file}: ")
    assert file.read_bytes() == content


def test_the_state_file_itself_may_be_named(tune, four):
    assert tune("ls", four / "experiment.sqlite").output == TABLE


def test_an_experiment_at_a_url_is_read_and_nobody_says_whether_it_runs(tune, four, tmp_path):
    import fsspec

    unfinished = write(tmp_path / "b", [created("b"), started("b")])
    files = fsspec.filesystem("memory")
    for name, place in (("four", four), ("b", unfinished)):
        files.pipe(f"/exp/{name}/experiment.sqlite", (place / "experiment.sqlite").read_bytes())
    assert tune("ls", "memory://exp/four").output == TABLE
    text = tune("show", "memory://exp/b").output
    assert text.startswith("b: unfinished\n1 trial: 1 RUNNING\n")
    assert "\nin memory://exp/b\n" in text
    assert " resume memory://exp/b\n" in text
    missing = tune("ls", "memory://exp/gone")
    assert (missing.exit_code, "is not an experiment directory" in missing.output) == (2, True)


def test_commands_name_what_lies_at_a_url_with_its_scheme(tune, tmp_path):
    import fsspec

    place = tmp_path / "e"
    saved = add_checkpoint(place / "train_b_dir", 0, loss=1.0)
    write(place, [created("b"), started("b"), reported("b", 1, saved, loss=1.0), exited("b")])
    files = fsspec.filesystem("memory")
    files.pipe("/url/e/experiment.sqlite", (place / "experiment.sqlite").read_bytes())
    files.pipe("/url/e/train_b_dir/checkpoint_000000/state", b"0")
    at = "memory://url/e/train_b_dir"
    assert f"checkpoint: {at}/checkpoint_000000\n" in tune("best", "memory://url/e").stdout
    best = json.loads(tune("best", "memory://url/e", "--json").stdout)[0]
    assert (best["path"], best["checkpoint"]) == (at, f"{at}/checkpoint_000000")
    row = json.loads(tune("ls", "memory://url/e", "--json").stdout)["trials"][0]
    assert (row["path"], row["checkpoint"]) == (at, f"{at}/checkpoint_000000")
    shown = json.loads(tune("show", "memory://url/e", "b", "--json").stdout)
    assert [shown["path"], *(each["path"] for each in shown["checkpoints"])] == [
        at,
        f"{at}/checkpoint_000000",
    ]
    refused = tune("plot", "memory://url/e")
    assert (refused.exit_code, "-o FILE" in refused.output, "path=" in refused.output) == (2, True, False)
    assert tune("plot", "memory://url/e", "-o", tmp_path / "p.html").exit_code == 0


def test_more_to_suggest_and_nobody_there_means_interrupted(tune, tmp_path):
    with SqliteTrialStore(tmp_path, trust_pickles=True) as store:
        store.append([created("a"), started("a"), reported("a", loss=1.0), exited("a")])
    assert tune("ls", tmp_path).output.splitlines()[0] == f"{tmp_path.name}: interrupted"


def test_reported_texts_cannot_command_the_terminal(tune, tmp_path):
    facts = [created("a", {"text": "\x1b]0;mine\x07\x1b[2J"}), started("a"), reported("a", loss=1.0)]
    place = write(tmp_path / "e", facts)
    for words in (("ls", place), ("show", place), ("show", place, "a"), ("best", place)):
        assert set(tune(*words).output) & {"\x1b", "\x07"} == set()


def test_keys_that_are_no_texts_and_an_empty_config_are_shown(tune, tmp_path):
    place = write(
        tmp_path / "e", [created("a", {}), started("a"), reported("a", **{"loss": 1.0, "by": {1: 2}})]
    )
    result = tune("ls", place, "--columns", "trial,by/1,config/*")
    assert result.output.splitlines()[-2:] == ["trial  by/1", "a         2"]
    assert tune("show", place, "a").exit_code == 0


def test_watching_and_writing_exclude_each_other(tune, tmp_path):
    result = tune("ls", write(tmp_path / "e", []), "--watch", "--json")
    assert (result.exit_code, "--json" in result.output) == (2, True)


@pytest.mark.slow
def test_many_trials_take_little_time(tmp_path):
    facts = []
    for number in range(5000):
        name = f"a_{number:05d}"
        facts += [created(name, {"lr": number}), started(name), reported(name, loss=number), exited(name)]
    place = write(tmp_path / "many", facts)
    code = (
        "import sys, time; from muster.cli.main import cli\n"
        f"cli(['tune', 'ls', {str(place)!r}], standalone_mode=False)\n"
        "print(time.process_time())"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 5 + 5000 + 1
    assert float(lines[-1]) < 4.0  # half a second on a quiet machine
