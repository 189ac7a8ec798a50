"""A function trial whose processes report: exec, spawn, fork, the shell."""

from __future__ import annotations

import pytest

from muster import tune

CODE = "from muster import tune; import sys; [tune.report({'loss': float(sys.argv[1]) / n}) for n in (1, 2)]"


def in_child(config):
    for step in (1, 2):
        tune.report({"loss": config["x"] / step})


def train(config):
    import multiprocessing
    import os
    import subprocess
    import sys

    if config["way"] == "subprocess":
        subprocess.run([sys.executable, "-c", CODE, str(config["x"])], check=True)
    elif config["way"] == "system":
        assert os.system(f'{sys.executable} -c "{CODE}" {config["x"]}') == 0
    else:
        process = multiprocessing.get_context(config["way"]).Process(target=in_child, args=(config,))
        process.start()
        process.join()


@pytest.mark.slow
def test_results_of_children_are_those_of_the_trial(tmp_path):
    ways = ["subprocess", "system", "spawn", "fork"]
    results = tune.Tuner(
        train,
        param_space={"way": tune.grid_search(ways), "x": 4.0},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    losses = {result.config["way"]: list(result.metrics_dataframe["loss"]) for result in results}
    assert losses == {way: [4.0, 2.0] for way in ways}


@pytest.mark.slow
def test_a_stop_reaches_the_child(tmp_path):
    results = tune.Tuner(
        train,
        param_space={"way": "subprocess", "x": 4.0},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 1}),
    ).fit()
    assert [result.metrics["loss"] for result in results] == [4.0]
    assert not results.errors
