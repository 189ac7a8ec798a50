"""Experiments that `test_1_tuner` runs on the cluster, each as a script of its own; says what came of it."""

from __future__ import annotations

import json
import sys
import time

from muster import tune

SEAT = {"cpu": 1, "seat": 1}


def work(config):
    time.sleep(config["seconds"])
    tune.report({"score": config["seconds"]})


def fit(storage, name, resources, space, **options):
    tuner = tune.Tuner(
        tune.with_resources(work, resources),
        param_space=space,
        tune_config=tune.TuneConfig(metric="score", mode="max", **options),
        run_config=tune.RunConfig(name=name, storage_path=storage, engine="ray", verbose=0),
    )
    grid = tuner.fit()
    return {
        "scores": [result.metrics["score"] for result in grid if result.error is None],
        "errors": [str(error) for error in grid.errors],
    }


def show_tier(config):
    import ray

    tune.report({"tier": ray.get_runtime_context().get_node_labels()["tier"]})


def by_label(storage, name):
    """Each trial chooses its node by a label; no type has the last one."""

    def labelled(config):
        return tune.PlacementGroupFactory([{"CPU": 1}], bundle_label_selector=[{"tier": config["tier"]}])

    tuner = tune.Tuner(
        tune.with_resources(show_tier, labelled),
        param_space={"tier": tune.grid_search(["gold", "silver", "bronze"])},
        run_config=tune.RunConfig(name=name, storage_path=storage, engine="ray", verbose=0),
    )
    grid = tuner.fit()
    return {
        "tiers": {each.config["tier"]: each.metrics["tier"] for each in grid if each.error is None},
        "errors": {each.config["tier"]: str(each.error) for each in grid if each.error is not None},
    }


def main(what, storage):
    if what == "labels":
        return by_label(storage, what)
    return fit(storage, what, SEAT, {"seconds": 4}, num_samples=4)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
