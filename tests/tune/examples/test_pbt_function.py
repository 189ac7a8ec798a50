"""Ray's example for population based training, run by the scheduler it was written for."""

from __future__ import annotations

import pytest

from muster import tune
from muster.tune.examples.pbt_function import pbt_function
from muster.tune.schedulers import PopulationBasedTraining


@pytest.mark.slow
def test_a_population_follows_the_best_rate_where_a_fixed_rate_cannot(tmp_path):
    def best_accuracy(name, scheduler):
        tuner = tune.Tuner(
            pbt_function,
            param_space={"lr": tune.grid_search([0.001, 0.01]), "checkpoint_interval": 5},
            tune_config=tune.TuneConfig(metric="mean_accuracy", mode="max", scheduler=scheduler),
            run_config=tune.RunConfig(
                name=name, storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 100}
            ),
        )
        return tuner.fit().get_best_result().metrics["mean_accuracy"]

    moving = PopulationBasedTraining(
        perturbation_interval=5,
        time_attr="training_iteration",
        quantile_fraction=0.5,
        hyperparam_mutations={"lr": lambda: 0.05},
        resample_probability=0.1,
        synch=True,
    )
    assert best_accuracy("moving", moving) > best_accuracy("fixed", None) > 0
