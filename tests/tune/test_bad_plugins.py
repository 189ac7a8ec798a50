"""Schedulers and searchers that misbehave: the error names who and what to do; the data stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from muster import tune
from muster.errors import TuneError
from muster.tune import Callback, FailureConfig, RunConfig, Stopper, TuneConfig, Tuner
from muster.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from muster.tune.search import Searcher


def train(config):
    for step in range(1, 4):
        tune.report({"score": config["x"] + step})


BROKEN = Path()  # set by the test: while this file exists, the plug-ins have their bug


def is_broken():
    return BROKEN.exists()


class Odd(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        is_odd = is_broken() and result["score"] >= 3
        return "MAYBE" if is_odd else super().on_trial_result(tune_controller, trial, result)


class Raising(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        if is_broken() and result["score"] >= 3:
            raise KeyError("rung")
        return super().on_trial_result(tune_controller, trial, result)


class Choosing(FIFOScheduler):
    """Chooses something that is not a trial."""

    def choose_trial_to_run(self, tune_controller):
        chosen = super().choose_trial_to_run(tune_controller)
        is_odd = is_broken() and chosen is not None and chosen.config["x"] >= 1
        return "the best one" if is_odd else chosen


class Stumbling(FIFOScheduler):
    def choose_trial_to_run(self, tune_controller):
        chosen = super().choose_trial_to_run(tune_controller)
        if is_broken() and chosen is not None and chosen.config["x"] >= 1:
            raise IndexError("empty rung")
        return chosen


class Counting(Searcher):
    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.given = 0

    def suggest(self, trial_id):
        if self.given == 3:
            return Searcher.FINISHED
        self.given += 1
        return {"x": self.given - 1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def save(self, checkpoint_path):
        Path(checkpoint_path).write_text(str(self.given))

    def restore(self, checkpoint_path):
        self.given = int(Path(checkpoint_path).read_text())


class Dividing(Counting):
    def suggest(self, trial_id):
        if self.given == 1 and is_broken():
            raise ZeroDivisionError("no density")
        return super().suggest(trial_id)


class Garbled(Counting):
    def suggest(self, trial_id):
        return [1, 2] if self.given == 1 and is_broken() else super().suggest(trial_id)


PLUGINS = {
    "answers nonsense": (
        {"scheduler": Odd()},
        r"Odd\.on_trial_result returned 'MAYBE' for trial .*must be one of CONTINUE, NOOP, PAUSE, STOP",
    ),
    "raises": ({"scheduler": Raising()}, r"Raising\.on_trial_result raised KeyError .*fix it and resume"),
    "chooses nonsense": ({"scheduler": Choosing()}, r"Choosing\.choose_trial_to_run returned 'the best one'"),
    "raises when choosing": (
        {"scheduler": Stumbling()},
        r"Stumbling\.choose_trial_to_run raised IndexError: empty .*fix it and resume",
    ),
    "searcher raises": (
        {"search_alg": Dividing()},
        r"searcher Dividing raised ZeroDivisionError in suggest.*no density\. Fix the searcher",
    ),
    "searcher suggests nonsense": (
        {"search_alg": Garbled()},
        r"searcher Garbled suggested \[1, 2\]: suggest\(\) must return",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PLUGINS)
def test_the_error_names_the_plug_in_and_the_experiment_can_be_read_and_resumed(what, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BROKEN", tmp_path / "broken")
    (tmp_path / "broken").touch()
    plugins, message = PLUGINS[what]
    is_searched = "search_alg" in plugins
    tuner = Tuner(
        train,
        param_space={} if is_searched else {"x": tune.grid_search([0, 1, 2])},
        tune_config=TuneConfig(
            num_samples=3 if is_searched else 1,
            max_concurrent_trials=1,
            **({} if is_searched else {"metric": "score", "mode": "max"}),
            **plugins,
        ),
        run_config=RunConfig(name="bad", storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(TuneError, match=message):
        tuner.fit()
    before = Tuner.restore(str(tmp_path / "bad"), train).get_results()
    assert len(before) >= 1
    assert 1 in [row["score"] for row in before[0].metrics_history]  # x=0, first step
    (tmp_path / "broken").unlink()  # as if the class had been repaired
    after = Tuner.restore(str(tmp_path / "bad"), train).fit()
    assert sorted(result.config["x"] for result in after) == [0, 1, 2]
    assert [result.error for result in after] == [None] * 3
    assert {result.metrics["score"] - result.config["x"] for result in after} == {3}


class Closing(FIFOScheduler):
    def on_trial_complete(self, tune_controller, trial, result):
        if is_broken() and trial.config["x"] == 1:
            raise KeyError("bracket")


class Recording(Callback):
    def __init__(self):
        self.seen = []

    def on_trial_complete(self, iteration, trials, trial, **info):
        if is_broken() and trial.config["x"] == 1:
            raise KeyError("file")
        self.seen.append(("complete", trial.config["x"]))

    def on_trial_error(self, iteration, trials, trial, **info):
        self.seen.append(("error", trial.config["x"]))


class Deaf(Counting):
    def on_trial_complete(self, trial_id, result=None, error=False):
        if is_broken() and not error and result["config/x"] == 1:
            raise ValueError("cannot hear")


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [Closing(), Deaf(), Recording()], ids=lambda one: type(one).__name__)
def test_a_plug_in_that_raises_at_the_end_of_a_trial_fails_this_trial(plugin, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BROKEN", tmp_path / "broken")
    (tmp_path / "broken").touch()
    plugins = {"scheduler": plugin} if isinstance(plugin, FIFOScheduler) else {}
    plugins |= {"search_alg": plugin, "num_samples": 3} if isinstance(plugin, Searcher) else {}
    recording = plugin if isinstance(plugin, Recording) else Recording()
    tuner = Tuner(
        train,
        param_space={} if "search_alg" in plugins else {"x": tune.grid_search([0, 1, 2])},
        tune_config=TuneConfig(max_concurrent_trials=1, **plugins),
        run_config=RunConfig(
            name="bad", storage_path=str(tmp_path), verbose=0, stop={"score": 3}, callbacks=[recording]
        ),
    )
    grid = tuner.fit()
    assert sorted(recording.seen, key=lambda one: one[1]) == [("complete", 0), ("error", 1), ("complete", 2)]
    assert [(one.config["x"], one.error is not None) for one in grid] == [(0, False), (1, True), (2, False)]
    assert f"{type(plugin).__name__}" in Path(grid[1].path, "error.txt").read_text()
    (tmp_path / "broken").unlink()
    after = Tuner.restore(str(tmp_path / "bad"), train, resume_errored=True).fit()
    assert [one.error for one in after] == [None] * 3


@pytest.mark.slow
def test_fail_fast_raise_raises_what_a_plug_in_raised_at_the_end_of_a_trial(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BROKEN", tmp_path)
    tuner = Tuner(
        train,
        param_space={"x": 1},
        run_config=RunConfig(
            storage_path=str(tmp_path),
            verbose=0,
            callbacks=[Recording()],
            failure_config=FailureConfig(fail_fast="raise"),
        ),
    )
    with pytest.raises(KeyError, match=r"Recording\.on_trial_complete"):
        tuner.fit()


class Ends(Callback):
    def __init__(self):
        self.seen = []

    def on_experiment_end(self, trials, **info):
        self.seen.append([trial.status for trial in trials])


@pytest.mark.slow
def test_callbacks_are_notified_of_the_end_of_an_experiment_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BROKEN", tmp_path)
    ends = Ends()
    tuner = Tuner(
        train,
        param_space={"x": 3},
        tune_config=TuneConfig(metric="score", mode="max", scheduler=Raising()),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=[ends]),
    )
    with pytest.raises(KeyError, match=r"Raising\.on_trial_result"):
        tuner.fit()
    assert ends.seen == [["RUNNING"]]


class Adding(FIFOScheduler):
    def on_trial_add(self, tune_controller, trial):
        raise KeyError("bracket")


class Watching(Stopper):
    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        raise KeyError("clock")


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [Adding(), Watching()], ids=lambda one: type(one).__name__)
def test_a_hook_without_a_result_is_named_as_well(plugin, tmp_path):
    is_stopper = isinstance(plugin, Watching)
    tuner = Tuner(
        train,
        param_space={"x": 3},
        tune_config=TuneConfig(scheduler=None if is_stopper else plugin),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, stop=plugin if is_stopper else None),
    )
    with pytest.raises(TuneError, match=type(plugin).__name__) as caught:
        tuner.fit()
    assert isinstance(caught.value, KeyError)


def comparing():
    return [
        ASHAScheduler(),
        HyperBandScheduler(),
        HyperBandForBOHB(),
        MedianStoppingRule(),
        PopulationBasedTraining(hyperparam_mutations={"x": [1, 2]}),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", comparing(), ids=lambda one: type(one).__name__)
def test_a_scheduler_that_compares_says_that_metric_and_mode_are_missing(scheduler, tmp_path):
    tuner = Tuner(
        train,
        param_space={"x": 1},
        tune_config=TuneConfig(scheduler=scheduler),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(ValueError, match=rf"{type(scheduler).__name__}.*metric") as caught:
        tuner.fit()
    assert "mode" in str(caught.value)


@pytest.mark.parametrize("kind", [type(one) for one in comparing()], ids=lambda kind: kind.__name__)
def test_an_unknown_parameter_is_refused_by_name(kind):
    known = "HyperBand" if issubclass(kind, HyperBandScheduler) else kind.__name__
    with pytest.raises(TypeError, match=rf"{known}.*max_time"):
        kind(max_time=3)


class Dawdles(Callback):
    """Dawdles takes a while for each result."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        time.sleep(0.2)


class DawdlingSearch(Searcher):
    def suggest(self, trial_id):
        time.sleep(0.2)
        return {"x": 1}

    on_trial_complete = save = restore = lambda self, *given, **more: None


class DawdlingScheduler(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        time.sleep(0.2)
        return super().on_trial_result(tune_controller, trial, result)


def report_once(config):
    tune.report({"loss": 1.0})


@pytest.mark.slow
def test_plugins_whose_calls_take_long_are_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TUNE_WARN_THRESHOLD_S", "0.05")
    run = RunConfig(name="slow", storage_path=str(tmp_path), verbose=0, callbacks=[Dawdles()])
    search = TuneConfig(metric="loss", mode="min", search_alg=DawdlingSearch(), scheduler=DawdlingScheduler())
    Tuner(report_once, tune_config=search, run_config=run).fit()
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" ")[0] for text in texts] == [
        "DawdlingSearch.suggest",
        "DawdlingScheduler.on_trial_result",
        "Dawdles.on_trial_result",
    ]


@pytest.mark.slow
def test_quick_plugins_are_not_named_although_there_are_many_calls(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TUNE_WARN_THRESHOLD_S", "0.05")

    def train(config):
        for step in range(2000):
            tune.report({"loss": step})

    run = RunConfig(name="quick", storage_path=str(tmp_path), verbose=0, callbacks=[Notes()])
    Tuner(train, run_config=run).fit()
    assert [record.getMessage() for record in caplog.records] == []


class Notes(Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.last = result["loss"]
