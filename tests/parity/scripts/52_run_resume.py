"""tune.run continues with failed trials when it is started again (docs: resume="AUTO+ERRORED")."""

import os

from ray import tune
from ray.tune import TuneError


def train(config):
    tune.report({"score": config["x"]})
    if config["x"] == 2 and not os.path.exists(config["repaired"]):
        raise RuntimeError("not repaired yet")


def main(storage):
    repaired = os.path.join(storage, "repaired")
    options = {
        "name": "resume",
        "config": {"x": tune.grid_search([1, 2]), "repaired": repaired},
        "storage_path": storage,
        "verbose": 0,
        "max_concurrent_trials": 1,
    }
    try:
        tune.run(train, **options)
        raised = False
    except TuneError:
        raised = True
    with open(repaired, "w"):
        pass
    analysis = tune.run(train, resume="AUTO+ERRORED", **options)
    return [raised, sorted([trial.config["x"], trial.status] for trial in analysis.trials)]
