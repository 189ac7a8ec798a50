"""Check trainables, what they report, and how runs of them end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conformance.trainables import Wants, column, fit, nested_steps, report_steps

from muster import tune
from muster.errors import TuneError
from muster.tune import Callback
from muster.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler


def ends(config):
    """End in the way that `config["how"]` names."""
    how = config["how"]
    if how == "number":
        return 4.5
    if how == "dict":
        return {"score": 3, "nested": {"a": 1}}
    if how == "reported":
        for step in range(3):
            tune.report({"score": step})
    elif how == "early":
        tune.report({"score": 7})
        if config.get("early", True):
            return None
        tune.report({"score": 8})
    return None


def yields(config):
    for score in (1, 2, 5):
        yield {"score": score} if config["how"] == "dicts" else score


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return results by the way in which their trial ended."""
    place = tmp_path_factory.mktemp("ended")
    ways = ["number", "dict", "reported", "early", "nothing"]
    grid = fit(ends, place, {"how": tune.grid_search(ways)})
    streams = fit(yields, place, {"how": tune.grid_search(["numbers", "dicts"])}, run={"name": "yields"})
    return {result.config["how"]: result for result in (*grid, *streams)}


def rows(result):
    return [json.loads(line) for line in Path(result.path, "result.json").read_text().splitlines()]


@pytest.mark.conformance("C-071")
@pytest.mark.slow
def test_numbers_and_dicts_are_reported_and_the_last_yield_stands(ended):
    assert ended["number"].metrics["_metric"] == 4.5
    assert (ended["dict"].metrics["score"], ended["dict"].metrics["nested"]) == (3, {"a": 1})
    assert ended["numbers"].metrics["_metric"] == 5
    assert [row["score"] for row in rows(ended["dicts"])] == [1, 2, 5]
    assert ended["dicts"].metrics["score"] == 5


@pytest.mark.conformance("C-076")
def test_a_trial_without_a_report_is_done(ended):
    nothing = ended["nothing"]
    assert (nothing.metrics["done"], nothing.error, rows(nothing)) == (True, None, [])
    assert set(nothing.metrics) == {
        *("config", "date", "done", "hostname", "node_ip", "pid", "timestamp", "trial_id")
    }


@pytest.mark.conformance("C-077")
def test_an_early_return_leaves_the_last_values(ended):
    early = ended["early"].metrics
    assert (early["score"], early["done"], early["training_iteration"]) == (7, True, 1)


@pytest.mark.conformance("C-078")
def test_every_report_is_logged_once_and_one_row_at_most_is_done(ended):
    for how, scores in (("reported", [0, 1, 2]), ("dicts", [1, 2, 5]), ("early", [7])):
        logged = rows(ended[how])
        assert [row["score"] for row in logged] == scores
        assert [row["training_iteration"] for row in logged] == list(range(1, len(scores) + 1))
        assert sum(row["done"] for row in logged) <= 1
        table = Path(ended[how].path, "progress.csv").read_text().splitlines()
        assert len(table) == 1 + len(scores)


@pytest.mark.conformance("C-086")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "who"),
    [
        ({"metric": "missing", "mode": "max"}, "TuneConfig.metric"),
        ({"scheduler": AsyncHyperBandScheduler(metric="missing", mode="max")}, "AsyncHyperBandScheduler"),
        ({"search_alg": Wants()}, "searcher Wants"),
    ],
)
def test_a_metric_that_is_missing_is_named_with_who_needs_it(tmp_path, monkeypatch, settings, who):
    def train(config):
        tune.report({"there": 1, "too": 2})

    with pytest.raises(TuneError, match=f"{who}"):
        fit(train, tmp_path, **settings)
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    assert column(fit(train, tmp_path, **settings), "there") == [1]


@pytest.mark.conformance("C-087", "C-088")
def test_names_of_the_users_own(tmp_path):
    grid = fit(
        report_steps,
        tmp_path,
        {"steps": 1},
        num_samples=3,
        trial_dirname_creator=lambda trial: "same",
        trial_name_creator=lambda trial: f"mine-{trial.trial_id[-1]}",
    )
    names = [Path(result.path).name for result in grid]
    assert len(set(names)) == 3
    assert all(name == "same" or (name.startswith("same_") and len(name) == 9) for name in names)
    assert sorted(str(trial) for trial in grid._experiment_analysis.trials) == ["mine-0", "mine-1", "mine-2"]


def speaks(config):
    import sys

    sys.stdout.write("to out\n")
    sys.stderr.write("to err\n")
    tune.report({"x": 1})


@pytest.mark.conformance("C-089")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "written"),
    [
        (False, {}),
        (True, {"stdout": "to out\n", "stderr": "to err\n"}),
        ("both", {"both": "to out\nto err\n"}),
        (("out", "err"), {"out": "to out\n", "err": "to err\n"}),
    ],
)
def test_output_goes_to_files_in_four_ways(tmp_path, told, written):
    (result,) = fit(speaks, tmp_path, run={"log_to_file": told})
    kept = {"stdout", "stderr", "both", "out", "err"} & {path.name for path in Path(result.path).iterdir()}
    assert {name: Path(result.path, name).read_text() for name in kept} == written


@pytest.mark.conformance("C-091")
def test_what_a_trial_does_to_its_config_stays_there(tmp_path):
    def spoils(config):
        config["a"]["b"] = 99
        config["new"] = 1
        tune.report({"x": 1})

    space = {"a": {"b": 1, "c": [1, 2]}}
    (result,) = fit(spoils, tmp_path, space)
    assert (space, result.config) == ({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 1, "c": [1, 2]}})


class Keys(FIFOScheduler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_trial_result(self, tune_controller, trial, result):
        self.seen.append(("scheduler", "a/b/c" in result, "a" in result))
        return super().on_trial_result(tune_controller, trial, result)


class Hears(Wants):
    def __init__(self, seen):
        super().__init__()
        self._metric, self.seen = "a/b/c", seen

    def on_trial_result(self, trial_id, result):
        self.seen.append(("searcher", "a/b/c" in result, "a" in result))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.seen.append(("end", "a/b/c" in result, "a" in result))


@pytest.mark.conformance("C-096")
def test_plug_ins_get_flat_results_and_the_last_one_stays_nested(tmp_path):
    scheduler = Keys()
    search = Hears(scheduler.seen)
    (result,) = fit(nested_steps, tmp_path, run={"stop": {"step": 1}}, scheduler=scheduler, search_alg=search)
    assert scheduler.seen == [("scheduler", True, False), ("searcher", True, False), ("end", True, False)]
    assert result.metrics["a"] == {"b": {"c": 1}}


class Failures(Callback):
    def __init__(self):
        self.told = []

    def on_trial_failure(self, failure, **info):
        self.told.append(failure)


@pytest.mark.conformance("C-104")
def test_the_report_of_a_failure_is_short_and_its_file_has_all(tmp_path):
    def fails(config):
        def deeper(level, odd):
            if level == 0:
                raise RuntimeError("deep down")
            if odd:
                deeper(level - 1, not odd)
            else:
                deeper(level - 1, not odd)

        deeper(40, True)

    failures = Failures()
    (result,) = fit(fails, tmp_path, run={"callbacks": [failures]})
    (told,) = failures.told
    assert len(told.message.splitlines()) == 20
    assert told.message.endswith("\nRuntimeError: deep down")
    written = Path(result.path, "error.txt").read_text()
    assert written.count("in deeper") == 41 and written.endswith("\nRuntimeError: deep down\n")
