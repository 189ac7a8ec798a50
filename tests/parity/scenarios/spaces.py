"""Run search spaces: which trials, in which order, by which names, with which values."""

from __future__ import annotations

import seen
from system import fit, part, tune


def train(config):
    for step in range(2):
        tune.report({"score": config["a"] * (step + 1)})


def grid_and_random():
    basic = part("search.basic_variant").BasicVariantGenerator(random_state=3, max_concurrent=1)
    found = fit(
        "grid_and_random",
        train,
        {
            "a": tune.grid_search([1, 2]),
            "b": {"c": tune.grid_search(["x", "y z"])},
            "k": 7,
            "n": tune.randint(0, 100),
            "r": tune.uniform(0, 1),
            "s": tune.sample_from(lambda config: config["a"] * 10),
        },
        tune_config={"search_alg": basic, "metric": "score", "mode": "max", "reuse_actors": True},
    )
    best = found.get_best_result()
    return {**seen.grid(found), "best": seen.plain(best.config)}


def points_come_first():
    basic = part("search.basic_variant").BasicVariantGenerator(
        points_to_evaluate=[{"a": 5}, {"a": 6, "q": 0.5}], random_state=11, max_concurrent=1
    )
    found = fit(
        "points_come_first",
        train,
        {"a": tune.grid_search([1, 2]), "q": tune.quniform(0, 1, 0.25), "w": tune.choice(["u", "v"])},
        tune_config={"search_alg": basic, "num_samples": 3, "reuse_actors": True},
    )
    return seen.grid(found)


def own_names():
    found = fit(
        "own_names",
        train,
        {"a": tune.grid_search([1, 2]), "env": "CartPole/v1"},
        tune_config={
            "trial_name_creator": lambda trial: f"mine-{trial.config['a']}",
            "trial_dirname_creator": lambda trial: f"folder {trial.config['a']}",
            "max_concurrent_trials": 1,
        },
    )
    return seen.grid(found)


def odd_names():
    found = fit(
        "odd_names",
        train,
        {"a": 1, "path/with": tune.choice(["a/b(c)<d>:e"]), "env": "Env", "long": tune.choice(["z" * 200])},
        tune_config={"search_alg": part("search").BasicVariantGenerator(random_state=1)},
    )
    return seen.grid(found)


SCENARIOS = (grid_and_random, points_come_first, own_names, odd_names)
