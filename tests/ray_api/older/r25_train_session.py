"""Ray 2.3 to 2.6: train.report, RunConfig of train, restore with trainable, Checkpoint.from_uri, storage_path."""

import os
import pickle
import tempfile

import ray
from ray import train, tune
from ray.air import Checkpoint, RunConfig, session
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.experiment.trial import Trial
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.stopper import CombinedStopper, TrialPlateauStopper
from ray.tune.tuner import Tuner


class Model(tune.Trainable):
    def setup(self, config):
        self.x = 0

    def step(self):
        self.x += self.config["a"]
        return {"x": self.x, "should_checkpoint": True}

    def save_checkpoint(self, checkpoint_dir: str):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]


def objective(config):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "m.pkl"), "wb") as stream:
            pickle.dump(config, stream)
        session.report({"_metric": config["width"], "loss": 1}, checkpoint=Checkpoint.from_directory(folder))


ray.init(runtime_env={"env_vars": {"A": "1"}}, configure_logging=False)
grid = Tuner(
    Model,
    param_space={"a": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(metric="x", mode="max", chdir_to_trial_dir=False),
    run_config=RunConfig(
        storage_path=os.path.abspath("store"), name="class", stop={"training_iteration": 3}, verbose=0
    ),
).fit()
best = grid.get_best_result()
assert best.metrics["x"] == 6
assert best.checkpoint.to_dict()["x"] == 6, best.checkpoint
tuner = Tuner(
    tune.with_resources(objective, PlacementGroupFactory([{"CPU": 1.0}])),
    param_space={"width": tune.uniform(0, 20), "nested": {"deep": tune.quniform(0, 1, 0.1)}},
    tune_config=tune.TuneConfig(num_samples=2, metric="_metric", mode="min"),
    run_config=ray.train.RunConfig(local_dir="old", name="fn", verbose=0),
)
results = tuner.fit()
best = results.get_best_result()
checkpoint_path = os.path.join(best.checkpoint.to_directory(), "m.pkl")
assert pickle.load(open(checkpoint_path, "rb"))["width"] == best.config["width"]
assert best.checkpoint.uri
assert str(best.log_dir).startswith(os.path.abspath("old")), best.log_dir
again = Checkpoint.from_uri("file://" + best.checkpoint.to_directory())
assert again.to_directory()
restored = Tuner.restore(
    os.path.abspath("old/fn"),
    trainable=objective,
    resume_unfinished=True,
    resume_errored=False,
    restart_errored=False,
)
assert restored.can_restore(os.path.abspath("old/fn"))
assert len(restored.fit()) == 2
