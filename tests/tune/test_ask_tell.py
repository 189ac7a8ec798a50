"""Ask and tell on real stores and files: the decisions, what is recorded, and going on after a crash."""

from __future__ import annotations

import doctest
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster import tune
from muster.errors import TuneError
from muster.tune import Checkpoint, RunConfig, TuneConfig
from muster.tune.ask_tell import AskTell
from muster.tune.config import FailureConfig
from muster.tune.schedulers import ASHAScheduler
from muster.tune.search import BasicVariantGenerator, Searcher
from muster.tune.stopper import Stopper


def search_in(tmp_path, space, *, name="exp", run=None, **asked):
    goal = {"metric": "y", "mode": "max", **asked}
    more = run or {}
    return AskTell(
        space, tune_config=TuneConfig(**goal), run_config=RunConfig(name=name, storage_path=tmp_path, **more)
    )


def rows_of(trial) -> list[dict]:
    lines = Path(trial.directory, "result.json").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def saved_checkpoint(tmp_path, text) -> Checkpoint:
    place = tmp_path / "own" / text
    place.mkdir(parents=True, exist_ok=True)
    (place / "state").write_text(text, encoding="utf-8")
    return Checkpoint.from_directory(place)


def seeded() -> BasicVariantGenerator:
    return BasicVariantGenerator(random_state=3, id_prefix="abcde")


def test_every_configuration_is_asked_once_and_its_result_is_in_the_grid_and_the_files(tmp_path):
    with search_in(tmp_path, {"x": tune.grid_search([1, 2, 3])}) as search:
        asked = []
        while (trial := search.ask()) is not None:
            asked.append(trial)
            assert search.tell(trial, {"y": -trial.config["x"]}, done=True) == "STOP"
        results = search.results()
    assert search.is_finished
    assert [trial.config for trial in asked] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert [(r.metrics["y"], r.metrics["training_iteration"], r.metrics["done"]) for r in results] == [
        (-1, 1, True),
        (-2, 1, True),
        (-3, 1, True),
    ]
    assert results.get_best_result().config == {"x": 1}
    assert [[row["y"] for row in rows_of(trial)] for trial in asked] == [[-1], [-2], [-3]]


def test_a_trial_may_tell_many_results_and_then_only_that_it_is_done(tmp_path):
    with search_in(tmp_path, {"x": 1}) as search:
        trial = search.ask()
        decisions = [search.tell(trial.trial_id, {"y": step}) for step in (5, 6)]
        assert (decisions, search.tell(trial, done=True)) == (["CONTINUE", "CONTINUE"], "STOP")
        assert search.ask() is None
    assert [(row["y"], row["training_iteration"]) for row in rows_of(trial)] == [(5, 1), (6, 2)]


class Listening(Searcher):
    """Suggests how many trials have completed."""

    def __init__(self):
        super().__init__(metric="y", mode="max")
        self.completed = 0

    def suggest(self, trial_id):
        return {"known": self.completed}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.completed += 1


def test_a_suggestion_is_made_when_it_is_asked_for_and_knows_all_that_was_told(tmp_path):
    goal = TuneConfig(search_alg=Listening(), num_samples=5)
    with AskTell(tune_config=goal, run_config=RunConfig(name="e", storage_path=tmp_path)) as search:
        first, second = search.ask(), search.ask()
        search.tell(first, {"y": 1}, done=True)
        search.tell(second, {"y": 1}, done=True)
        third = search.ask()
    assert [trial.config["known"] for trial in (first, second, third)] == [0, 0, 2]


def test_the_scheduler_stops_a_trial_that_does_badly(tmp_path):
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    with search_in(tmp_path, {"x": tune.grid_search([3, 2, 1])}, scheduler=asha) as search:
        trials = [search.ask() for _ in range(3)]
        first = [search.tell(trial, {"y": trial.config["x"]}) for trial in trials]
        later = [search.tell(trials[0], {"y": 3}) for _ in range(8)]
    assert first == ["CONTINUE", "STOP", "STOP"]
    assert later == ["CONTINUE"] * 7 + ["STOP"]


def test_a_paused_trial_comes_back_with_its_checkpoint_and_its_count(tmp_path):
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3, type="promotion")
    with search_in(tmp_path, {"x": tune.grid_search([3, 2, 1])}, scheduler=asha) as search:
        decisions = []
        for _ in range(3):
            trial = search.ask()
            checkpoint = saved_checkpoint(tmp_path, f"x{trial.config['x']}")
            decisions.append(search.tell(trial, {"y": trial.config["x"]}, checkpoint=checkpoint))
        again = search.ask()
        assert search.tell(again, {"y": 3}) == "CONTINUE"
    assert decisions == ["PAUSE"] * 3
    assert (again.config, again.training_iteration) == ({"x": 3}, 1)
    assert Path(again.checkpoint.path, "state").read_text(encoding="utf-8") == "x3"
    assert [row["training_iteration"] for row in rows_of(again)] == [1, 2]


def test_a_failed_trial_is_asked_for_again_as_often_as_allowed(tmp_path):
    run = {"failure_config": FailureConfig(max_failures=1)}
    with search_in(tmp_path, {"x": 1}, run=run) as search:
        first = search.ask()
        assert search.tell(first, error=RuntimeError("no luck")) == "PAUSE"
        second = search.ask()
        assert search.tell(second, {"y": 1}, error=RuntimeError("no luck again")) == "STOP"
        results = search.results()
    assert first.trial_id == second.trial_id
    assert [str(error) for error in results.errors] == ["no luck again"]
    assert "no luck again" in Path(first.directory, "error.txt").read_text(encoding="utf-8")


def test_a_limit_on_concurrent_trials_makes_ask_wait_for_tell(tmp_path):
    space = {"x": tune.grid_search([1, 2, 3])}
    with search_in(tmp_path, space, max_concurrent_trials=2) as search:
        first, second = search.ask(), search.ask()
        assert (search.ask(), search.is_finished) == (None, False)
        search.tell(first, {"y": 1}, done=True)
        assert search.ask().config == {"x": 3}
        assert second.config == {"x": 2}


def test_when_the_experiment_ends_the_other_trials_hear_of_it_at_their_next_result(tmp_path):
    run = {"failure_config": FailureConfig(fail_fast=True)}
    with search_in(tmp_path, {"x": tune.grid_search([1, 2, 3])}, run=run) as search:
        first, second = search.ask(), search.ask()
        search.tell(second, {"y": 1})
        assert search.tell(first, error=RuntimeError("bad")) == "STOP"
        assert search.tell(second, {"y": 2}) == "STOP"
        assert (search.ask(), search.is_finished) == (None, True)
    assert [row["y"] for row in rows_of(second)] == [1]


class After(Stopper):
    """Ends everything after so many results."""

    def __init__(self, most):
        self.seen, self.most = 0, most

    def __call__(self, trial_id, result):
        self.seen += 1
        return False

    def stop_all(self):
        return self.seen >= self.most


def test_a_stopper_that_ends_everything_answers_the_very_result_that_made_it(tmp_path):
    with search_in(tmp_path, {"x": tune.uniform(0, 1)}, run={"stop": After(3)}, num_samples=-1) as search:
        trial = search.ask()
        assert [search.tell(trial, {"y": 1}) for _ in range(3)] == ["CONTINUE", "CONTINUE", "STOP"]
        assert (search.ask(), search.is_finished) == (None, True)


def crashed(search, tmp_path, name) -> AskTell:
    """What a new process would find if this one were killed now."""
    image = tmp_path / "images" / name / search.directory.name
    shutil.copytree(search.directory, image)
    return AskTell.restore(image)


def test_after_a_crash_unfinished_trials_come_back_first_and_nothing_told_is_lost(tmp_path):
    with search_in(tmp_path, {"x": tune.uniform(0, 1)}, num_samples=4, search_alg=seeded()) as search:
        done, half, fresh = (search.ask() for _ in range(3))
        search.tell(done, {"y": 1}, done=True)
        search.tell(half, {"y": 2}, checkpoint=saved_checkpoint(tmp_path, "half"))
        search.tell(half, {"y": 3})
        with crashed(search, tmp_path, "one") as restored:
            again = [restored.ask() for _ in range(3)]
            restored.tell(again[0], {"y": 4}, done=True)
            statuses = [trial.status for trial in restored._state.index.order]
        uninterrupted = search.ask()
    assert [trial.trial_id for trial in again] == [half.trial_id, fresh.trial_id, uninterrupted.trial_id]
    assert [trial.config for trial in again] == [half.config, fresh.config, uninterrupted.config]
    assert [trial.training_iteration for trial in again] == [1, 0, 0]
    assert Path(again[0].checkpoint.path, "state").read_text(encoding="utf-8") == "half"
    assert [row["y"] for row in rows_of(again[0])] == [2, 4]
    assert statuses == ["TERMINATED", "TERMINATED", "RUNNING", "RUNNING"]


@pytest.mark.slow
def test_restored_at_any_moment_searcher_and_scheduler_stand_where_they_stood(tmp_path):
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    asked = {"num_samples": 6, "search_alg": seeded(), "scheduler": asha}
    running: list = []
    moments = 0
    with search_in(tmp_path, {"x": tune.uniform(0, 1)}, **asked) as search:
        while not search.is_finished:
            if len(running) < 3 and (trial := search.ask()) is not None:
                running.append(trial)
            elif running:
                trial = running.pop(0)
                if search.tell(trial, {"y": trial.config["x"]}) == "CONTINUE":
                    running.append(trial)
            moments += 1
            with crashed(search, tmp_path, str(moments)) as restored:
                mine, theirs = restored._state, search._state
                for plugin in ("search", "scheduler"):
                    states = [getattr(each.plugins, plugin).save_state() for each in (mine, theirs)]
                    assert states[0] == states[1]
                assert {t.trial_id: t.last_result.get("y") for t in mine.index.order} == {
                    t.trial_id: t.last_result.get("y") for t in theirs.index.order
                }
    assert moments > 12


def test_a_closed_search_can_be_restored_where_it_was_and_ends(tmp_path):
    with search_in(tmp_path, {"x": tune.grid_search([1, 2])}) as search:
        search.tell(search.ask(), {"y": 1}, done=True)
    with AskTell.restore(search.directory) as again:
        trial = again.ask()
        again.tell(trial, {"y": 2}, done=True)
        assert (trial.config, again.ask(), again.is_finished) == ({"x": 2}, None, True)
        assert [result.metrics["y"] for result in again.results()] == [1, 2]


def test_a_tuner_can_go_on_with_what_was_begun_by_hand(tmp_path):
    def train(config):
        return {"y": config["x"] * 10}

    goal = TuneConfig(metric="y", mode="max")
    run = RunConfig(name="both", storage_path=tmp_path, verbose=0)
    with AskTell(
        {"x": tune.grid_search([1, 2])}, tune_config=goal, run_config=run, trainable=train
    ) as search:
        search.tell(search.ask(), {"y": 1}, done=True)
    results = tune.Tuner.restore(str(search.directory), trainable=train).fit()
    assert [result.metrics["y"] for result in results] == [1, 20]


def test_remote_storage_gets_everything_and_can_be_restored_from(tmp_path):
    url = f"memory://{tmp_path.name}/asked"
    goal = TuneConfig(metric="y", mode="max")
    with AskTell(
        {"x": tune.grid_search([1, 2])}, tune_config=goal, run_config=RunConfig(name="far", storage_path=url)
    ) as search:
        search.tell(search.ask(), {"y": 1}, done=True)
    shutil.rmtree(search.directory)
    with AskTell.restore(f"{url}/far") as again:
        again.tell(again.ask(), {"y": 2}, done=True)
        assert [result.metrics["y"] for result in again.results()] == [1, 2]
    shutil.rmtree(again.directory)


def test_what_the_loop_does_to_its_dicts_later_changes_nothing(tmp_path):
    with search_in(tmp_path, {"x": 1}) as search:
        trial = search.ask()
        told = {"y": 1, "inner": {"z": [1]}}
        search.tell(trial, told)
        told["inner"]["z"].append(2)
        trial.config["x"] = 99
        search.tell(trial, {"y": 2}, done=True)
        assert search.results()[0].config == {"x": 1}
    assert rows_of(trial)[0]["inner"] == {"z": [1]}


def test_a_slip_is_told_and_leaves_the_trial_as_it_was(tmp_path):
    with search_in(tmp_path, {"x": tune.grid_search([1, 2])}) as search:
        trial = search.ask()
        for slip, message in (
            (lambda: search.tell("nobody", {"y": 1}), "there is no trial 'nobody'"),
            (lambda: search.tell(trial), "nothing was reported"),
            (lambda: search.tell(trial, 7), "must be a dict, not an int"),
            (lambda: search.tell(trial, {"y": threading.Lock()}), r"the value of 'y' .* cannot be pickled"),
            (lambda: search.tell(trial, {"y": 1}, checkpoint="here"), "must be a Checkpoint, not a str"),
            (
                lambda: search.tell(trial, done=True, checkpoint=saved_checkpoint(tmp_path, "c")),
                "with the metrics",
            ),
        ):
            with pytest.raises((ValueError, TypeError), match=message):
                slip()
        assert search.tell(trial, {"y": 1}, done=True) == "STOP"
        with pytest.raises(ValueError, match="TERMINATED"):
            search.tell(trial, {"y": 1})
    assert [row["y"] for row in rows_of(trial)] == [1]
    with pytest.raises(TuneError, match=r"closed: AskTell\.restore\("):
        search.ask()


def test_another_thread_is_sent_back(tmp_path):
    with search_in(tmp_path, {"x": 1}) as search:
        caught = []

        def ask():
            try:
                search.ask()
            except TuneError as error:
                caught.append(str(error))

        worker = threading.Thread(target=ask)
        worker.start()
        worker.join()
        assert len(caught) == 1
        assert "thread" in caught[0]


def test_what_would_be_ignored_or_overwritten_is_refused(tmp_path):
    with pytest.raises(TuneError, match=r"^RunConfig: trial_time_limit_s "):
        search_in(tmp_path, {"x": 1}, run={"trial_time_limit_s": 3})
    with search_in(tmp_path, {"x": 1}):
        pass
    with pytest.raises(TuneError, match=r"exp .*AskTell\.restore\("):
        search_in(tmp_path, {"x": 1})
    with pytest.raises(FileNotFoundError, match=r"nothing .*tuner\.pkl"):
        AskTell.restore(tmp_path / "nothing")


def test_the_example_in_the_docstring_does_what_it_says():
    from muster.tune import ask_tell

    found = doctest.testmod(ask_tell)
    assert (found.failed, found.attempted) == (0, 7)


def test_optuna_learns_from_what_is_told(tmp_path):
    pytest.importorskip("optuna")
    from muster.tune.search.optuna import OptunaSearch

    space = {"x": tune.uniform(-1, 1)}
    with search_in(tmp_path, space, search_alg=OptunaSearch(seed=1), num_samples=30) as search:
        while (trial := search.ask()) is not None:
            search.tell(trial, {"y": -((trial.config["x"] - 0.5) ** 2)}, done=True)
        assert abs(search.results().get_best_result().config["x"] - 0.5) < 0.2


LOOP = """
import sys
from muster import tune
from muster.tune.ask_tell import AskTell

goal = tune.TuneConfig(metric="y", mode="max", num_samples=50)
run = tune.RunConfig(name="killed", storage_path=sys.argv[1])
search = AskTell({"x": tune.uniform(0, 1)}, tune_config=goal, run_config=run)
while (trial := search.ask()) is not None:
    for step in range(1, 5):
        search.tell(trial, {"y": trial.config["x"] * step}, done=step == 4)
        sys.stdout.write(f"{trial.trial_id} {step}\\n")  # one write: a kill leaves no half of a line
        sys.stdout.flush()
"""


@pytest.mark.slow
def test_a_loop_that_is_killed_has_lost_nothing_it_told(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", LOOP, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as loop:
        told = [loop.stdout.readline().split() for _ in range(30)]
        loop.kill()
        told += [line.split() for line in loop.stdout]
    last = {trial_id: int(step) for trial_id, step in told}
    with AskTell.restore(tmp_path / "killed") as search:
        trials = search._state.trials
        known = {trial_id: trials[trial_id].last_result["training_iteration"] for trial_id in last}
        extra = [known[trial_id] - step for trial_id, step in last.items()]
        assert extra in ([0] * len(last), [*[0] * (len(last) - 1), 1])  # the kill may come before the print
        while (trial := search.ask()) is not None:
            search.tell(trial, {"y": trial.config["x"]}, done=True)
        results = search.results()
    ended = {result.metrics["trial_id"]: len(result.metrics_dataframe) for result in results}
    assert (len(results), {result.metrics["done"] for result in results}) == (50, {True})
    assert [ended[trial_id] for trial_id, step in last.items() if step == 4] == [4] * (
        sum(step == 4 for step in last.values())
    )
