"""Ray 1.7: tune.sample, tune.trial, placement groups by their older path."""

from ray import tune
from ray.tune.sample import Categorical, Float
from ray.tune.trial import Trial
from ray.tune.utils.placement_groups import PlacementGroupFactory

space = {"x": tune.uniform(0, 1), "y": tune.choice(["a", "b"])}
assert isinstance(space["x"], Float)
assert isinstance(space["y"], tune.sample.Categorical)


def name(trial: Trial):
    return f"{trial.trainable_name}_{trial.trial_id}"


def train(config):
    tune.report(loss=config["x"])


tune.run(
    train,
    config=space,
    num_samples=2,
    trial_name_creator=name,
    resources_per_trial=PlacementGroupFactory([{"CPU": 1}]),
    verbose=0,
)
