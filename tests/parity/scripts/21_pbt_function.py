"""Population based training of a function that loads its checkpoint (docs: PBT with the function API)."""

import json
import os
import tempfile

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

FILES_VARY = True  # in Ray, rows and checkpoints of a trial that is replaced are lost or not, from run to run


def train(config):
    step, total = 1, 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as stream:
            step, total = json.load(stream)
        step += 1
    while True:
        total += config["gain"]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.json"), "w") as stream:
                json.dump([step, total], stream)
            tune.report({"total": total}, checkpoint=tune.Checkpoint.from_directory(folder))
        step += 1


def main(storage):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        resample_probability=0,
        custom_explore_fn=lambda config: {**config, "gain": config["gain"] + 1},
        synch=True,
    )
    results = tune.Tuner(
        train,
        param_space={"gain": tune.grid_search([1, 5])},
        tune_config=tune.TuneConfig(metric="total", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="pbt_fn", storage_path=storage, verbose=0, stop={"training_iteration": 5}
        ),
    ).fit()
    return [[r.config, r.metrics["total"], r.metrics["training_iteration"]] for r in results]
