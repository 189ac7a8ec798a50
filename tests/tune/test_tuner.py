"""Tuner on this machine, as a user calls it."""

from __future__ import annotations

import json
import os
import re
import signal
import threading

import pytest
from click.testing import CliRunner
from tests.support.builders import created

from muster.base.clock import SystemClock
from muster.cli.main import cli
from muster.cli.tune.best import best_of
from muster.cli.tune.experiment import FINISHED, read_experiment
from muster.errors import EngineUnreachable, LedgerLocked, TuneError
from muster.host.file_lock import FileLock
from muster.host.machine import program
from muster.host.running_experiments import RunningExperiment, recorded
from muster.session.report import report
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.placement_group import PlacementGroupFactory
from muster.tune.callback import Callback
from muster.tune.config import FailureConfig, RunConfig
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler
from muster.tune.search.space import grid_search, uniform
from muster.tune.trainable.util import with_resources
from muster.tune.tune_config import TuneConfig
from muster.tune.tuner import Tuner


def make_train():
    def train(config):
        from muster.session.report import report

        for step in range(4):
            report({"score": config["x"] * (step + 1)})

    return train


def test_several_objectives_stop_trials_early_and_have_a_front_instead_of_a_best_trial(tmp_path, capsys):
    def train(config):
        for step in range(1, 10):
            report({"error": config["x"] + 1 / step, "latency_ms": 10 * config["y"]})

    tuner = Tuner(
        train,
        param_space={"x": grid_search([0.1, 0.5, 0.9]), "y": grid_search([1, 3, 9])},
        tune_config=TuneConfig(
            metric=["error", "latency_ms"],
            mode=["min", "min"],
            scheduler=ASHAScheduler(max_t=9, reduction_factor=3),
            constraints={"latency_ms": 50},
            max_concurrent_trials=1,
        ),
        run_config=RunConfig(name="e", storage_path=str(tmp_path)),
    )
    results = tuner.fit()
    front = {(result.config["x"], result.config["y"]) for result in results.get_pareto_front()}
    assert (0.1, 1) in front
    assert all(y < 9 for _, y in front)
    assert any(result.metrics["training_iteration"] == 1 for result in results)
    with pytest.raises(ValueError, match="get_pareto_front"):
        results.get_best_result()
    assert "Pareto front (min error, min latency_ms)" in capsys.readouterr().out
    shown = CliRunner().invoke(cli, ["tune", "best", str(tmp_path / "e")])
    assert (shown.exit_code, "error, latency_ms" in shown.output) == (2, True)
    assert read_experiment(str(tmp_path / "e")).settings["constraints"] == {"latency_ms": 50}


class Impatient(Callback):
    """Presses Ctrl-C when three trials are done."""

    seen = 0

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.seen += 1
        if self.seen == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_fit_finds_the_best_configuration_and_writes_rays_files(tmp_path):
    tuner = Tuner(
        make_train(),
        param_space={"x": grid_search([1.0, 3.0, 2.0])},
        tune_config=TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(name="e", storage_path=str(tmp_path)),
    )
    best = tuner.fit().get_best_result()
    assert (best.config["x"], best.metrics["score"], best.metrics["training_iteration"]) == (3.0, 12.0, 4)
    (directory,) = [p for p in (tmp_path / "e").iterdir() if p.is_dir() and "x=3.0000" in p.name]
    rows = [json.loads(line) for line in (directory / "result.json").read_text().splitlines()]
    assert [row["score"] for row in rows] == [3.0, 6.0, 9.0, 12.0]
    assert json.loads((directory / "params.json").read_text()) == {"x": 3.0}
    assert (directory / "progress.csv").read_text().count("\n") == 5


def test_trials_that_fail_are_logged_where_nothing_else_is_shown(tmp_path, caplog):
    def train(config):
        raise ValueError("bad")

    grid = Tuner(
        train,
        param_space={"x": grid_search([1, 2])},
        run_config=RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
    ).fit()
    errors = [record.args[0] for record in caplog.records if record.levelname == "ERROR"]
    assert (grid.num_errors, [len(error.args[1]) for error in errors]) == (2, [2])


@pytest.mark.slow
def test_a_restored_tuner_has_the_results_of_fit(tmp_path):
    run = RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    grid = Tuner(make_train(), param_space={"x": 2.0}, run_config=run).fit()
    again = Tuner.restore(tmp_path / "e", make_train()).get_results()
    assert again[0].metrics == grid[0].metrics
    assert again[0].metrics["done"]


def test_a_failing_trial_is_a_result_with_its_error_and_the_others_go_on(tmp_path):
    def train(config):
        if config["x"] == 1:
            raise ValueError("one is bad")
        return {"score": config["x"]}

    grid = Tuner(
        train,
        param_space={"x": grid_search([1, 2])},
        tune_config=TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(name="e", storage_path=str(tmp_path)),
    ).fit()
    assert (grid.num_errors, grid.num_terminated, grid.get_best_result().config["x"]) == (1, 1, 2)
    assert "one is bad" in str(grid.errors[0])


@pytest.mark.slow
def test_an_interrupted_experiment_goes_on_with_every_trial_once(tmp_path):
    train = make_train()
    first = Tuner(
        train,
        param_space={"x": uniform(0.0, 1.0)},
        tune_config=TuneConfig(metric="score", mode="max", num_samples=24, scheduler=ASHAScheduler(max_t=4)),
        run_config=RunConfig(name="e", storage_path=str(tmp_path), callbacks=[Impatient()]),
    )
    half = first.fit()
    done = {r.metrics["trial_id"]: r.config for r in half if r.metrics.get("done")}
    assert 3 <= len(done) < 24
    assert Tuner.can_restore(tmp_path / "e")
    second = Tuner.restore(tmp_path / "e", train)
    second._spec.run.callbacks = []
    grid = second.fit()
    assert (len(grid), grid.num_errors) == (24, 0)
    after = {r.metrics["trial_id"]: r.config for r in grid}
    assert {trial: after[trial] for trial in done} == done


def test_a_tuner_with_a_name_can_be_restored_before_fit(tmp_path):
    """As in Ray, which writes tuner.pkl in the constructor; what is there already stays."""
    run = RunConfig(name="e", storage_path=str(tmp_path), verbose=0, engine="local")
    Tuner(make_train(), param_space={"x": 0.5}, run_config=run)
    assert (Tuner.can_restore(tmp_path / "e"), Tuner.can_restore(tmp_path)) == (True, False)
    before = (tmp_path / "e" / "tuner.pkl").read_bytes()
    Tuner(make_train(), param_space={"y": 0.5}, run_config=run)
    assert (tmp_path / "e" / "tuner.pkl").read_bytes() == before
    Tuner(make_train(), run_config=RunConfig(storage_path=str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


@pytest.mark.slow
def test_a_restore_before_fit_runs_the_whole_experiment(tmp_path):
    run = RunConfig(name="e", storage_path=str(tmp_path), verbose=0, engine="local")
    settings = TuneConfig(metric="score", mode="max", num_samples=3)
    Tuner(make_train(), param_space={"x": uniform(0.0, 1.0)}, tune_config=settings, run_config=run)
    grid = Tuner.restore(tmp_path / "e", make_train()).fit()
    assert (len(grid), grid.num_errors) == (3, 0)


@pytest.mark.slow
def test_optuna_searches_and_goes_on_after_an_interruption(tmp_path):
    from muster.tune.search.optuna.optuna_search import OptunaSearch

    train = make_train()
    tuner = Tuner(
        train,
        param_space={"x": uniform(0.0, 1.0)},
        tune_config=TuneConfig(
            metric="score",
            mode="max",
            num_samples=16,
            max_concurrent_trials=2,
            search_alg=OptunaSearch(seed=1),
        ),
        run_config=RunConfig(name="o", storage_path=str(tmp_path), callbacks=[Impatient()]),
    )
    half = tuner.fit()
    assert 3 <= len(half) < 16
    again = Tuner.restore(tmp_path / "o", train)
    again._spec.run.callbacks = []
    grid = again.fit()
    assert (len(grid), grid.num_errors) == (16, 0)
    assert {r.config["x"] for r in half} < {r.config["x"] for r in grid}


@pytest.mark.conformance("C-018")
def test_fail_fast_raise_gives_the_trials_own_exception(tmp_path):
    def train(config):
        raise KeyError("mine")

    tuner = Tuner(
        train,
        run_config=RunConfig(
            name="e", storage_path=str(tmp_path), failure_config=FailureConfig(fail_fast="raise")
        ),
    )
    with pytest.raises(KeyError, match="mine"):
        tuner.fit()


def test_a_ray_cluster_that_is_not_there_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    run = RunConfig(name="e", storage_path=str(tmp_path), engine="ray")
    with pytest.raises(EngineUnreachable, match=r"^.* 127\.0\.0\.1:1; .*RAY_ADDRESS.*$"):
        Tuner(make_train(), run_config=run).fit()


def test_what_cannot_be_run_is_said_at_once(tmp_path):
    with pytest.raises(TuneError, match=r"^Tuner\(None\): "):
        Tuner().fit()
    with pytest.raises(FileNotFoundError, match=r"tuner\.pkl"):
        Tuner.restore(tmp_path, make_train())


@pytest.mark.slow
def test_a_new_experiment_under_an_old_name_keeps_the_old_record(tmp_path, caplog):
    def run(values):
        return Tuner(
            make_train(),
            param_space={"x": grid_search(values)},
            tune_config=TuneConfig(metric="score", mode="max"),
            run_config=RunConfig(name="again", storage_path=str(tmp_path), verbose=0),
        ).fit()

    assert len(run([1.0, 2.0])) == 2
    assert len(run([3.0])) == 1
    assert "experiment.sqlite.1.old" in caplog.text
    assert len(Tuner.restore(tmp_path / "again", make_train()).get_results()) == 1
    assert (tmp_path / "again" / "experiment.sqlite.1.old").exists()


@pytest.mark.slow
def test_an_interrupted_experiment_of_the_same_name_is_moved_aside_and_can_be_resumed(tmp_path, caplog):
    place = tmp_path / "results"

    def run(callbacks=()):
        return Tuner(
            make_train(),
            param_space={"x": grid_search([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])},
            tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
            run_config=RunConfig(name="e", storage_path=str(place), verbose=0, callbacks=list(callbacks)),
        ).fit()

    run([Impatient()])
    left = sum(trial.status not in FINISHED for trial in read_experiment(str(place / "e")).trials)
    (place / "e" / "mine.txt").write_text("of the user")
    assert left > 0
    assert run().num_terminated == 6
    (told,) = [record for record in caplog.records if "unfinished" in record.getMessage()]
    aside = place / "e.1.old"
    assert (str(left) in told.args[1], told.args[2]) == (True, aside)
    words = told.getMessage().rpartition(f"{program()} tune ")[2].split()
    assert CliRunner().invoke(cli, ["tune", *words]).exit_code == 0
    again = read_experiment(str(aside))
    assert (again.state, again.counts) == ("finished", {"TERMINATED": 6})
    assert read_experiment(str(place / "e")).counts == {"TERMINATED": 6}


@pytest.mark.slow
def test_experiments_of_one_name_that_overlap_are_not_mixed(tmp_path):
    """Neither with one that ends while the new one waits for it, nor with one that began meanwhile."""

    class Late(FIFOScheduler):
        def set_search_properties(self, metric, mode, **spec):
            assert len(run(FIFOScheduler())) == 1
            return super().set_search_properties(metric, mode, **spec)

    def run(scheduler):
        return Tuner(
            make_train(),
            param_space={"x": 1.0},
            tune_config=TuneConfig(scheduler=scheduler),
            run_config=RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
        ).fit()

    (tmp_path / "e").mkdir()
    with SqliteTrialStore(tmp_path / "e") as store:
        store.append([created("left")])
    ending = FileLock.acquire(store.path, clock=SystemClock(), wait_s=0.0)
    threading.Timer(0.1, ending.release).start()
    with pytest.raises(LedgerLocked, match="another experiment"):
        run(Late())
    assert len(read_experiment(str(tmp_path / "e.1.old")).trials) == 1
    assert read_experiment(str(tmp_path / "e")).counts == {"TERMINATED": 1}


def test_a_tuner_without_a_trainable_is_asked_and_told(tmp_path):
    def make(values):
        return Tuner(
            param_space={"x": grid_search(values)},
            tune_config=TuneConfig(metric="y", mode="min"),
            run_config=RunConfig(name="loop", storage_path=str(tmp_path), verbose=0),
        )

    tuner = make([3, 1, 2])
    with pytest.raises(TuneError, match=r"ask\(\).*tell\(\)"):
        tuner.fit()
    first = tuner.ask()
    assert tuner.tell(first, {"y": first.config["x"]}) == "CONTINUE"
    tuner._by_hand.close()
    tuner = Tuner.restore(tmp_path / "loop")
    while (trial := tuner.ask()) is not None:
        assert tuner.tell(trial, {"y": trial.config["x"]}, done=True) == "STOP"
    assert tuner.get_results().get_best_result().config == {"x": 1}
    assert len(tuner.get_results()) == 3


@pytest.mark.slow
def test_numerical_libraries_of_a_trial_use_its_cpus_and_not_all(tmp_path, monkeypatch):
    def train(config):
        return {"threads": int(os.environ["OMP_NUM_THREADS"])}

    def run(name, trainable, space=None):
        run_config = RunConfig(name=name, storage_path=str(tmp_path), verbose=0)
        return Tuner(trainable, param_space=space, run_config=run_config).fit()[0].metrics["threads"]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run("one", train) == 1
    assert run("two", with_resources(train, {"cpu": 2})) == 2
    assert run("chosen", with_resources(train, lambda config: PlacementGroupFactory([{"CPU": 2}]))) == 2
    by_config = with_resources(train, lambda config: PlacementGroupFactory([{"CPU": config.get("n", 1)}]))
    assert run("by config", by_config, {"n": 2}) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run("mine", train) == 5


@pytest.mark.parametrize("scheduler", [None, "asha"])
def test_a_metric_that_is_a_tuple_ends_the_run_at_the_first_result(tmp_path, scheduler):
    def train(config):
        for _ in range(3):
            with open(config["steps"], "a") as stream:
                stream.write(".")
            report({"loss": (1.0, 2.0)})

    settings = TuneConfig(metric="loss", mode="min", scheduler=scheduler)
    run_config = RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    space = {"steps": str(tmp_path / "steps")}
    with pytest.raises(TuneError, match="'loss'"):
        Tuner(train, param_space=space, tune_config=settings, run_config=run_config).fit()
    assert (tmp_path / "steps").read_text() == "."


@pytest.mark.parametrize("scheduler", [None, "asha"])
def test_an_array_of_one_element_counts_as_its_number_in_results_and_commands(tmp_path, scheduler):
    def train(config):
        import numpy

        report({"loss": numpy.array([config["x"]])})

    settings = TuneConfig(metric="loss", mode="min", scheduler=scheduler)
    run_config = RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    grid = Tuner(
        train, param_space={"x": grid_search([2, 1])}, tune_config=settings, run_config=run_config
    ).fit()
    assert grid.get_best_result().metrics["loss"] == 1
    assert [each.value for each in best_of(read_experiment(str(tmp_path / "e")))] == [1, 2]


def test_another_experiment_on_this_machine_is_noticed_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    space = {"x": grid_search([1.0, 2.0])}

    def fit(name, verbose):
        Tuner(
            make_train(),
            param_space=space,
            tune_config=TuneConfig(max_concurrent_trials=1),
            run_config=RunConfig(name=name, storage_path=str(tmp_path), verbose=verbose),
        ).fit()
        shown = capsys.readouterr()
        return (shown.out + shown.err).count("max_concurrent_trials")

    assert fit("alone", 1) == 0
    other = RunningExperiment(directory="/other", promised={"CPU": 1e6})
    with recorded(tmp_path / "home" / "running", other):
        assert (fit("second", 1), fit("third", 0)) == (1, 1)
    assert fit("alone_again", 1) == 0


def test_a_failed_trial_with_the_best_value_is_the_best_one_everywhere(tmp_path, capsys):
    def train(config):
        report({"loss": config["x"]})
        if config["x"] == 1:
            raise ValueError("one is bad")

    settings = TuneConfig(metric="loss", mode="min")
    run_config = RunConfig(name="e", storage_path=str(tmp_path), verbose=1)
    grid = Tuner(
        train, param_space={"x": grid_search([2, 1, 3])}, tune_config=settings, run_config=run_config
    ).fit()
    best = grid.get_best_result()
    assert (best.metrics["loss"], type(best.error)) == (1, ValueError)
    trial_id = best.metrics["trial_id"]
    assert re.findall(r": \S*?(\w{5}_\d{5}) with loss=1\b", capsys.readouterr().out) == [trial_id]
    assert best_of(read_experiment(str(tmp_path / "e")))[0].trial.trial_id == trial_id
