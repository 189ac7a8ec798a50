"""Ray 1.0 to 1.3: with_parameters, pinned objects, EarlyStopping, get_trial_id, get_trial_dir."""

import os

from ray import tune
from ray.tune.stopper import EarlyStopping
from ray.tune.utils import get_pinned_object, pin_in_object_store

DATA = list(range(20_000))
PINNED = pin_in_object_store(bytes(100_000))


def train(config, data=None, checkpoint_dir=None):
    assert os.path.isdir(tune.get_trial_dir())
    assert len(get_pinned_object(PINNED)) == 100_000
    tune.report(total=sum(data) * config["x"], trial=tune.get_trial_id(), name=tune.get_trial_name())


analysis = tune.run(
    tune.with_parameters(train, data=DATA),
    config={"x": tune.grid_search([1, 2])},
    stop=EarlyStopping("total"),
    verbose=0,
)
assert {trial.last_result["trial"] for trial in analysis.trials} == {
    trial.trial_id for trial in analysis.trials
}
