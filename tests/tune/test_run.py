"""tune.run and run_experiments, as older scripts call them, on real processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import optuna
import pytest

from muster import tune
from muster.errors import TuneError
from muster.tune.execution.restore import resume_rules
from muster.tune.schedulers import ResourceChangingScheduler
from muster.tune.search import ConcurrencyLimiter, Searcher
from muster.tune.search.optuna import OptunaSearch
from muster.tune.tune_config import ResumeConfig

pytestmark = pytest.mark.slow

KIND = ResumeConfig.ResumeType


def train(config):
    for step in range(3):
        tune.report({"score": config["x"] * (step + 1)})


def fails(config):
    raise ValueError("not today")


class Counter(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"at": self.at}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "at").write_text(str(self.at))

    def load_checkpoint(self, checkpoint):
        self.at = int(Path(checkpoint, "at").read_text())

    def _export_model(self, export_formats, export_dir):
        path = Path(export_dir, "model.bin")
        path.write_text(str(self.at))
        return dict.fromkeys(export_formats, str(path))


@pytest.fixture
def quiet(tmp_path):
    return {"storage_path": str(tmp_path), "verbose": 0}


def directories(experiment: Path) -> list[Path]:
    return sorted(path for path in experiment.iterdir() if path.is_dir())


def test_run_gives_an_analysis_of_the_best_configuration(quiet, tmp_path):
    space = {"x": tune.grid_search([1, 3, 2])}
    found = tune.run(train, name="e", metric="score", mode="max", config=space, **quiet)
    assert (found.best_config, found.best_result["score"]) == ({"x": 3}, 9)
    assert [trial.status for trial in found.trials] == ["TERMINATED"] * 3
    assert space == {"x": {"grid_search": [1, 3, 2]}}
    assert len(directories(tmp_path / "e")) == 3


def test_without_a_name_the_directory_is_called_after_the_trainable(quiet, tmp_path):
    tune.run(train, config={"x": 1}, **quiet)
    assert [path.name.partition("_20")[0] for path in tmp_path.iterdir()] == ["train"]


@pytest.mark.conformance("C-092")
def test_a_registered_name_can_be_run(quiet):
    tune.register_trainable("doubler", lambda config: {"y": 2 * config["x"]})
    found = tune.run("doubler", config={"x": 4}, **quiet)
    assert found.results_df["y"].tolist() == [8]
    with pytest.raises(TuneError, match=r"\bhalver\..*register_trainable\("):
        tune.run("halver", **quiet)


def test_failed_trials_are_an_error_that_names_them(quiet):
    with pytest.raises(TuneError, match=r"^Trials ") as caught:
        tune.run(fails, name="e", **quiet)
    assert [str(trial).startswith("fails_") for trial in caught.value.args[1]] == [True]


def test_failed_trials_can_be_looked_at_instead(quiet):
    found = tune.run(fails, name="e", raise_on_failed_trial=False, **quiet)
    assert [(trial.status, str(trial.error)) for trial in found.trials] == [("ERROR", "not today")]


def test_fail_fast_raise_gives_the_users_exception(quiet):
    with pytest.raises(ValueError, match="not today"):
        tune.run(fails, name="e", fail_fast="raise", **quiet)
    with pytest.raises(ValueError, match="max_failures"):
        tune.run(fails, name="e", fail_fast=True, max_failures=2, **quiet)


def test_a_class_makes_no_checkpoint_unless_it_is_told_to(quiet, tmp_path):
    tune.run(Counter, name="e", stop={"at": 2}, **quiet)
    assert not list((tmp_path / "e").rglob("checkpoint_*"))


def test_the_old_checkpoint_arguments_warn_and_work(quiet, tmp_path):
    with pytest.warns(DeprecationWarning) as warned:
        tune.run(
            Counter,
            name="e",
            stop={"at": 4},
            checkpoint_freq=1,
            keep_checkpoints_num=1,
            checkpoint_score_attr="min-at",
            **quiet,
        )
    told = [str(each.message).split("=")[0] for each in warned]
    assert told == [
        "tune.run(keep_checkpoints_num",
        "tune.run(checkpoint_score_attr",
        "tune.run(checkpoint_freq",
    ]
    kept = sorted(path.name for path in (tmp_path / "e").rglob("checkpoint_*"))
    assert kept == ["checkpoint_000000", "checkpoint_000003"]  # the best by "min", and the newest


@pytest.mark.conformance("C-002")
def test_every_trial_can_begin_with_one_checkpoint(quiet):
    first = tune.run(
        Counter,
        name="first",
        stop={"at": 2},
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        **quiet,
    )
    place = first.get_last_checkpoint(first.trials[0]).path
    more = tune.run(Counter, name="more", stop={"at": 5}, num_samples=2, restore=place, **quiet)
    seen = [(trial.last_result["at"], trial.last_result["iterations_since_restore"]) for trial in more.trials]
    assert seen == [(5, 3), (5, 3)]


def test_resources_per_trial_reach_the_trial(quiet):
    def asks(config):
        return {"cpus": tune.get_context().get_trial_resources().required_resources["CPU"]}

    found = tune.run(asks, name="e", resources_per_trial={"cpu": 0.5}, **quiet)
    assert [trial.last_result["cpus"] for trial in found.trials] == [0.5]


@pytest.mark.conformance("C-097")
def test_a_model_is_exported_at_the_end(quiet, tmp_path):
    tune.run(Counter, name="e", stop={"at": 2}, export_formats=["model"], **quiet)
    assert [path.read_text() for path in (tmp_path / "e").rglob("model.bin")] == ["2"]


@pytest.mark.conformance("C-097")
@pytest.mark.parametrize(("formats", "seen"), [(["mine", "model"], "mine, model"), ("mine", "mine")])
def test_a_class_may_have_export_formats_of_its_own(quiet, tmp_path, formats, seen):
    class Exports(Counter):
        def _export_model(self, export_formats, export_dir):
            Path(export_dir, "formats").write_text(", ".join(export_formats))
            return {}

    tune.run(Exports, name="e", stop={"at": 2}, export_formats=formats, **quiet)
    assert [path.read_text() for path in (tmp_path / "e").rglob("formats")] == [seen]


def test_a_finished_run_is_not_repeated_when_it_is_resumed(quiet):
    arguments = {"name": "e", "config": {"x": tune.grid_search([1, 2])}, **quiet}
    first = tune.run(train, **arguments)
    again = tune.run(train, resume="AUTO", **arguments)
    ids = [[trial.trial_id for trial in each.trials] for each in (first, again)]
    assert ids[0] == ids[1]


def test_errored_trials_are_run_again_when_that_is_asked_for(quiet, tmp_path):
    marker = tmp_path / "marker"

    def once(config):
        if not marker.exists():
            marker.touch()
            raise ValueError("first time")
        return {"score": 1}

    tune.run(once, name="e", raise_on_failed_trial=False, **quiet)
    left = tune.run(once, name="e", resume=True, raise_on_failed_trial=False, **quiet)
    again = tune.run(once, name="e", resume="AUTO+ERRORED", **quiet)
    assert [[t.status for t in each.trials] for each in (left, again)] == [["ERROR"], ["TERMINATED"]]


def test_a_resumed_run_keeps_as_many_checkpoints_as_before(quiet, tmp_path):
    marker = tmp_path / "marker"

    class Fails(Counter):
        def step(self):
            if self.at == 3 and not marker.exists():
                marker.touch()
                raise ValueError("first time")
            return super().step()

        def load_checkpoint(self, checkpoint):
            self.at = int(Path(checkpoint, "at").read_text())

    keep = tune.CheckpointConfig(num_to_keep=2, checkpoint_frequency=1)
    arguments = {"name": "e", "stop": {"at": 6}, "raise_on_failed_trial": False, **quiet}
    tune.run(Fails, checkpoint_config=keep, **arguments)
    tune.run(Fails, resume="AUTO+ERRORED", **arguments)
    assert sorted(path.name for path in (tmp_path / "e").glob("*/checkpoint_*")) == [
        "checkpoint_000004",
        "checkpoint_000005",
    ]


def test_a_searcher_takes_over_what_an_experiment_found(quiet, tmp_path):
    pytest.importorskip("optuna")
    from muster.tune.search.optuna import OptunaSearch

    space = {"x": tune.uniform(0, 1)}
    tune.run(
        train,
        name="e",
        config=space,
        num_samples=4,
        search_alg=OptunaSearch(),
        metric="score",
        mode="max",
        **quiet,
    )
    again = OptunaSearch(space, metric="score", mode="max")
    again.restore_from_dir(str(tmp_path / "e"))
    assert len(again.study.trials) == 4
    with pytest.raises(RuntimeError, match="restore"):
        again.restore_from_dir(str(tmp_path))


def test_clean_up_knows_its_trial(quiet, tmp_path):
    class Leaves(Counter):
        def cleanup(self):
            (tmp_path / "left").write_text(f"{self.trial_id} {self.trial_name}")

    found = tune.run(Leaves, name="e", stop={"at": 1}, **quiet)
    (trial,) = found.trials
    assert (tmp_path / "left").read_text() == f"{trial.trial_id} {trial}"


def test_there_may_be_nothing_to_resume(quiet):
    found = tune.run(train, name="e", config={"x": 1}, resume=True, **quiet)
    assert [trial.status for trial in found.trials] == ["TERMINATED"]


@pytest.mark.parametrize(
    ("resume", "rules"),
    [
        (None, None),
        (False, None),
        (True, ResumeConfig()),
        ("AUTO", ResumeConfig()),
        ("auto", ResumeConfig()),
        ("AUTO+ERRORED", ResumeConfig(errored=KIND.RESUME)),
        ("AUTO+RESTART_ERRORED", ResumeConfig(errored=KIND.RESTART)),
        ("AUTO+ERRORED_ONLY", ResumeConfig(unfinished=KIND.SKIP, errored=KIND.RESUME)),
        ("AUTO+RESTART_ERRORED_ONLY", ResumeConfig(unfinished=KIND.SKIP, errored=KIND.RESTART)),
        ("AUTO+ERRORED+RESTART_ERRORED", ResumeConfig(errored=KIND.RESTART)),
    ],
)
def test_resume_strings_mean_what_they_mean_in_ray(resume, rules):
    assert resume_rules(resume) == rules


def test_an_explicit_resume_config_wins():
    mine = ResumeConfig(finished=KIND.RESTART)
    assert (resume_rules("AUTO+ERRORED", mine), resume_rules(None, mine)) == (mine, mine)


@pytest.mark.parametrize("resume", ["LOCAL", "REMOTE", "PROMPT", "ERRORED_ONLY"])
def test_resume_strings_of_old_are_refused(resume):
    with pytest.raises(DeprecationWarning, match=re.escape(repr(resume))):
        resume_rules(resume)


@pytest.mark.parametrize("resume", ["AUTO+SOME", "SOMETIMES"])
def test_unknown_resume_strings_are_refused(resume):
    with pytest.raises(ValueError, match="AUTO"):
        resume_rules(resume)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"local_dir": "x"}, DeprecationWarning, "use storage_path"),
        ({"chdir_to_trial_dir": True}, DeprecationWarning, "RAY_CHDIR_TO_TRIAL_DIR"),
        ({"max_concurrent_trials": -1}, ValueError, "at least 1"),
        ({"checkpoint_config": {"num_to_keep": 1}}, ValueError, "must be a CheckpointConfig"),
        ({"config": 3}, ValueError, "must be a dict"),
        ({"mode": "most", "metric": "x"}, ValueError, "must be 'min' or 'max'"),
        ({"verbose": 9}, ValueError, "verbose"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(arguments, kind, words, tmp_path):
    with pytest.raises(kind, match=words):
        tune.run(train, **{"storage_path": str(tmp_path), "verbose": 0, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.conformance("C-249")
def test_environment_variables_that_ray_dropped_are_refused(monkeypatch, quiet):
    monkeypatch.setenv("TUNE_RESULT_DIR", "somewhere")
    with pytest.raises(DeprecationWarning, match="TUNE_RESULT_DIR"):
        tune.run(train, config={"x": 1}, **quiet)


def test_nothing_to_run_is_said_so(quiet):
    with pytest.raises(TuneError, match=r"\bExperiment\b"):
        tune.run([], **quiet)


def test_several_experiments_give_one_analysis_with_the_trials_of_all(tmp_path):
    experiments = [
        tune.Experiment("one", train, config={"x": tune.grid_search([1, 5])}, storage_path=tmp_path),
        tune.Experiment("two", train, config={"x": 9}, storage_path=tmp_path),
    ]
    found = tune.run(experiments, metric="score", mode="max", verbose=0)
    assert [trial.last_result["score"] for trial in found.trials] == [3, 15, 27]
    assert (found.experiment_path, found.best_trial.config) == (str(tmp_path / "one"), {"x": 9})
    assert [Path(trial.path).parent.name for trial in found.trials] == ["one", "one", "two"]
    assert len(found.trial_dataframes) == 3


def test_a_failed_trial_of_several_experiments_is_raised_when_all_have_ended(tmp_path):
    experiments = [tune.Experiment(name, fails, storage_path=tmp_path) for name in ("one", "two")]
    with pytest.raises(TuneError, match=r"^Trials ") as raised:
        tune.run(experiments, verbose=0)
    assert len(raised.value.args[1]) == 2


def test_trials_of_an_analysis_have_what_scripts_for_ray_read(tmp_path, quiet):
    found = tune.run(
        Counter,
        name="e",
        stop={"at": 2},
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        **quiet,
    )
    read = tune.ExperimentAnalysis(str(tmp_path / "e"))
    for trial in (*found.trials, *read.trials):
        assert (trial.has_checkpoint(), trial.is_finished(), trial.error_file) == (True, True, None)
        assert (trial.logdir, trial.num_failures) == (trial.path, 0)
        assert trial.start_time > 1_700_000_000
        assert trial.placement_group_factory == tune.PlacementGroupFactory([{"CPU": 1}])
    failed = tune.run(fails, name="f", raise_on_failed_trial=False, **quiet)
    for trial in (*failed.trials, *tune.ExperimentAnalysis(str(tmp_path / "f")).trials):
        assert (trial.has_checkpoint(), trial.is_finished(), trial.num_failures) == (False, True, 1)
        assert "not today" in Path(trial.error_file).read_text()
        assert Path(trial.pickled_error_file).name == "error.pkl"


def test_trials_that_are_read_know_their_resources(tmp_path, quiet):
    wanted = tune.PlacementGroupFactory([{}, {"CPU": 0.5}], strategy="SPREAD", lifetime=None)
    tune.run(tune.with_resources(train, wanted), name="e", config={"x": 1}, **quiet)
    (trial,) = tune.ExperimentAnalysis(str(tmp_path / "e")).trials
    assert trial.placement_group_factory == wanted


def test_trials_that_are_read_know_resources_that_a_scheduler_changed(tmp_path, quiet):
    changed = tune.PlacementGroupFactory([{"CPU": 0.5}, {"CPU": 0.25}])
    scheduler = ResourceChangingScheduler(resources_allocation_function=lambda *_: changed)
    tune.run(Counter, name="e", stop={"at": 4}, scheduler=scheduler, metric="at", mode="max", **quiet)
    (trial,) = tune.ExperimentAnalysis(str(tmp_path / "e")).trials
    assert trial.placement_group_factory == changed


def test_checkpoints_of_a_class_that_are_read_know_their_results(tmp_path, quiet):
    keep = tune.CheckpointConfig(num_to_keep=2, checkpoint_frequency=2)
    found = tune.run(Counter, name="e", stop={"at": 7}, checkpoint_config=keep, **quiet)
    read = tune.ExperimentAnalysis(str(tmp_path / "e"))
    for analysis in (found, read):
        (trial,) = analysis.trials
        assert [metrics["at"] for _, metrics in trial.best_checkpoints] == [4, 6]
        assert analysis.get_best_checkpoint(trial, "at", "min").path.endswith("checkpoint_000001")


def test_a_searcher_with_a_space_of_its_own_gets_metric_and_mode_from_the_experiment(tmp_path, quiet):
    space = {"x": optuna.distributions.IntDistribution(1, 3)}
    search = ConcurrencyLimiter(OptunaSearch(space, seed=1), max_concurrent=1)
    found = tune.run(train, name="e", search_alg=search, metric="score", mode="max", num_samples=2, **quiet)
    assert len(found.trials) == 2


def test_an_experiment_object_can_be_run(tmp_path):
    experiment = tune.Experiment("mine", train, config={"x": 2}, stop={"score": 4}, storage_path=tmp_path)
    found = tune.run(experiment, verbose=0)
    assert [trial.last_result["score"] for trial in found.trials] == [4]
    (directory,) = directories(tmp_path / "mine")
    assert json.loads((directory / "params.json").read_text()) == {"x": 2}


@pytest.mark.parametrize("concurrent", [True, False])
def test_run_experiments_gives_the_trials_of_all(tmp_path, concurrent):
    place = {"storage_path": str(tmp_path)}
    trials = tune.run_experiments(
        {
            "one": {"run": train, "config": {"x": tune.grid_search([1, 2])}, **place},
            "two": {"run": Counter, "stop": {"at": 2}, **place},
        },
        verbose=0,
        concurrent=concurrent,
    )
    assert [(trial.trainable_name, trial.status) for trial in trials] == [
        ("train", "TERMINATED"),
        ("train", "TERMINATED"),
        ("Counter", "TERMINATED"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize(("concurrent", "begun"), [(True, ["bad", "good"]), (False, ["bad"])])
def test_a_failed_trial_ends_run_experiments_at_once_or_at_the_end(tmp_path, concurrent, begun):
    place = {"storage_path": str(tmp_path)}
    experiments = [
        tune.Experiment("bad", fails, **place),
        tune.Experiment("good", train, config={"x": 1}, **place),
    ]
    with pytest.raises(TuneError, match=r"^Trials "):
        tune.run_experiments(experiments, verbose=0, concurrent=concurrent)
    assert sorted(path.name for path in tmp_path.iterdir()) == begun


class Stubborn(Searcher):
    """Has a space of its own and takes no other."""

    def suggest(self, trial_id):
        return {"x": 5}

    def on_trial_complete(self, trial_id, result=None, error=False):
        """Learn nothing."""


def test_a_searcher_with_a_space_of_its_own_takes_constants_but_no_other_domains(quiet):
    found = tune.run(train, name="e", config={"fixed": 1}, search_alg=Stubborn(), **quiet)
    assert [trial.config for trial in found.trials] == [{"x": 5, "fixed": 1}]
    with pytest.raises(ValueError, match=r"^Stubborn "):
        tune.run(train, name="f", config={"x": tune.uniform(0, 1)}, search_alg=Stubborn(), **quiet)
