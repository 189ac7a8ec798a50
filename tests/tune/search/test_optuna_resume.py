"""A restored OptunaSearch makes the suggestions that the saved one would have made."""

from __future__ import annotations

import optuna
import pytest

from muster.errors import RestoreError
from muster.trials.template import TrialTemplate
from muster.tune.search.concurrency_limiter import ConcurrencyLimiter
from muster.tune.search.optuna import OptunaSearch
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.space import choice, loguniform, randint, uniform

SPACE = {
    "x": uniform(-1, 1),
    "lr": loguniform(1e-4, 1e-1),
    "kind": choice(["a", "b", (1, 2)]),
    "n": {"k": randint(1, 9)},
}


def loss(config):
    return config["x"] ** 2 + config["lr"] + (config["kind"] == "a") + config["n"]["k"] / 10


def generator(searcher, space=SPACE, metric="loss", mode="min"):
    made = SearchGenerator(searcher)
    made.set_search_properties(metric, mode, space)
    made.add_configurations(TrialTemplate(trainable_name="t", param_space=space, num_samples=60))
    return made


def restored(state, make, space=SPACE):
    again = SearchGenerator(make())
    again.add_configurations(TrialTemplate(trainable_name="t", param_space=space, num_samples=60))
    again.restore_state(state)
    return again


def step(made, live, number):
    """Two trials run at a time; each reports once on the way."""
    trial = made.next_trial()
    live.append(trial)
    made.on_trial_result(trial.trial_id, {"loss": loss(trial.config) + 1, "training_iteration": 1})
    if len(live) == 2:
        done = live.pop(number % 2)
        made.on_trial_complete(done.trial_id, {"loss": loss(done.config)}, error=False)
    return (trial.trial_id, trial.config)


def follow(made, live, number, count):
    live = list(live)
    return [step(made, live, number + i) for i in range(count)]


def check_at_every_step(make, steps, every=1):
    straight = generator(make())
    saved, live, seen = [], [], []
    for number in range(steps + 3):
        saved.append((straight.save_state(), list(live)))
        seen.append(step(straight, live, number))
    for number in range(0, steps, every):
        again = restored(saved[number][0], make)
        assert again.save_state() == saved[number][0], number
        assert follow(again, saved[number][1], number, 3) == seen[number : number + 3], number


@pytest.mark.slow
def test_tpe_restored_at_every_one_of_40_trials():
    check_at_every_step(lambda: OptunaSearch(seed=5), 40)


def test_without_a_seed_too():
    check_at_every_step(OptunaSearch, 14, every=4)


S = optuna.samplers
SAMPLERS = {
    "multivariate": lambda: S.TPESampler(seed=1, multivariate=True, group=True, n_startup_trials=4),
    "unseeded random": S.RandomSampler,
    "nsga2": lambda: S.NSGAIISampler(seed=1, population_size=4),
    "constraints": lambda: S.TPESampler(
        seed=1, n_startup_trials=4, constraints_func=lambda t: (t.user_attrs["loss"] - 1,)
    ),
    "partly fixed": lambda: S.PartialFixedSampler({"x": 0.5}, S.TPESampler(n_startup_trials=4)),
    "brute force": lambda: S.BruteForceSampler(seed=1),
}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::optuna.exceptions.ExperimentalWarning", "ignore:.constraints_func.:FutureWarning"
)
@pytest.mark.parametrize("name", SAMPLERS)
def test_other_samplers(name):
    space = {
        "x": choice([0.5, 1.0]),
        "lr": choice([1, 2, 3]),
        "kind": choice([1, "a"]),
        "n": {"k": randint(1, 9)},
    }
    straight = generator(OptunaSearch(sampler=SAMPLERS[name]()), space)
    live = []
    for number in range(12):
        step(straight, live, number)
    again = restored(straight.save_state(), lambda: OptunaSearch(sampler=SAMPLERS[name]()), space)
    assert follow(again, live, 12, 4) == follow(straight, live, 12, 4)


def test_several_objectives():
    def run(made, live, count):
        seen = []
        for _ in range(count):
            trial = made.next_trial()
            seen.append(trial.config)
            made.on_trial_complete(trial.trial_id, {"a": trial.config["x"], "b": trial.config["lr"]})
        return seen

    straight = generator(OptunaSearch(seed=1), metric=["a", "b"], mode=["min", "max"])
    run(straight, [], 15)
    again = restored(straight.save_state(), OptunaSearch)
    assert run(again, [], 5) == run(straight, [], 5)
    assert [d.name for d in again.searcher.study.directions] == ["MINIMIZE", "MAXIMIZE"]


def test_constraints():
    def make():
        return OptunaSearch(sampler=S.TPESampler(seed=1, n_startup_trials=4), constraints={"lr": 0.05})

    straight = generator(make())
    for _ in range(12):
        trial = straight.next_trial()
        straight.on_trial_complete(trial.trial_id, {"loss": loss(trial.config), "lr": trial.config["lr"]})
    again = restored(straight.save_state(), OptunaSearch)
    last = [made.next_trial() for made in (straight, again)]
    assert last[0].config == last[1].config
    again.on_trial_complete(last[1].trial_id, {"loss": 1.0, "lr": 0.06})
    assert again.searcher.study.trials[-1].constraints == pytest.approx({"lr": 0.01})


def test_a_define_by_run_space_is_saved_with_it():
    def space(trial):
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":
            trial.suggest_float("x", 0, 1)
        return {"const": 1}

    straight = OptunaSearch(space, metric="loss", mode="min", seed=1)
    for i in range(15):
        straight.suggest(f"t{i}")
        straight.on_trial_complete(f"t{i}", {"loss": i})
    again = OptunaSearch()
    again.restore_state(straight.save_state())
    assert [again.suggest(f"u{i}") for i in range(5)] == [straight.suggest(f"u{i}") for i in range(5)]


def test_points_that_have_not_been_asked_for_are_saved():
    points = [{"x": 0.1 * i, "lr": 0.01, "kind": "a", "n": {"k": 1}} for i in range(3)]
    straight = generator(OptunaSearch(seed=1, points_to_evaluate=points))
    straight.next_trial()
    again = restored(straight.save_state(), lambda: OptunaSearch(points_to_evaluate=points))
    left = [again.next_trial().config["x"] for _ in range(2)]
    assert left == [0.1, 0.2]
    assert again.next_trial().config == [straight.next_trial() for _ in range(3)][2].config


def test_inside_a_limiter():
    def make():
        return ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=1)

    straight = generator(make())
    for _ in range(12):
        trial = straight.next_trial()
        straight.on_trial_complete(trial.trial_id, {"loss": loss(trial.config)})
    running = straight.next_trial()
    again = restored(straight.save_state(), make)
    assert again.next_trial() is None
    for made in (straight, again):
        made.on_trial_complete(running.trial_id, {"loss": loss(running.config)})
    assert again.next_trial().config == straight.next_trial().config


def test_save_and_restore_by_path(tmp_path):
    straight = OptunaSearch(seed=1)
    straight.set_search_properties("loss", "min", SPACE)
    straight.suggest("a")
    straight.save(str(tmp_path / "state"))
    again = OptunaSearch()
    again.restore(str(tmp_path / "state"))
    again.on_trial_complete("a", {"loss": 1})
    straight.on_trial_complete("a", {"loss": 1})
    assert again.suggest("b") == straight.suggest("b")
    assert again.study.best_value == 1


def test_a_finished_trial_is_encoded_once():
    made = generator(OptunaSearch(sampler=S.RandomSampler(seed=1)))
    for _ in range(20):
        trial = made.next_trial()
        made.on_trial_complete(trial.trial_id, {"loss": 1.0})
    made.save_state()
    record = made.searcher._record
    first = list(record._finished)
    made.save_state()
    assert len(first) == 20
    assert all(one is other for one, other in zip(first, record._finished, strict=True))
    assert len(made.save_state()) < 20 * 450 + 8000


def test_a_damaged_state_is_refused():
    with pytest.raises(RestoreError, match="OptunaSearch"):
        restored(generator(OptunaSearch()).save_state().replace(b"sampler", b"samplex"), OptunaSearch)
