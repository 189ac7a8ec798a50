"""Ray 1.9: is_session_enabled, and tune.session."""

from ray import tune
from ray.tune.session import get_trial_id


def train(config):
    assert tune.is_session_enabled()
    tune.report(trial=get_trial_id(), value=config["v"])


assert not tune.is_session_enabled()
experiment = tune.Experiment("exp", train, config={"v": tune.grid_search([1, 2])}, local_dir="exp-1.9")
analysis = tune.run(experiment, verbose=0)
assert len(analysis.trials) == 2
