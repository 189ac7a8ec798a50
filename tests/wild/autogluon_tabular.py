"""TabularPredictor of AutoGluon: hyperparameter search of NN_TORCH on Ray Tune, then bagged GBM on tasks."""

import muster.as_ray  # first: what follows imports ray

import sys
import tempfile

import numpy as np
import pandas as pd
from autogluon.common import space
from autogluon.tabular import TabularPredictor


def frame(count):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 3))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": (x.sum(axis=1) > 0).astype(int)})


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    data = frame(200)
    options = {"num_epochs": 2, "learning_rate": space.Real(1e-4, 1e-2, log=True)}
    searched = TabularPredictor(label="y", path=f"{folder}/hpo").fit(
        data,
        hyperparameters={"NN_TORCH": options},
        hyperparameter_tune_kwargs={"num_trials": 3, "scheduler": "local", "searcher": "random"},
        num_gpus=0,
        verbosity=2,
    )
    names = searched.model_names()
    rates = [
        searched._trainer.load_model(name).params.get("learning_rate")
        for name in names
        if "NeuralNet" in name
    ]
    print("RESULT NN_TORCH", names)
    print("CONFIGURATION", sorted(rates))
    bagged = TabularPredictor(label="y", path=f"{folder}/bag").fit(
        data,
        hyperparameters={"GBM": {"num_boost_round": 5}},
        num_bag_folds=3,
        num_stack_levels=0,
        num_gpus=0,
        ag_args_ensemble={"fold_fitting_strategy": "parallel_local"},
    )
    print("RESULT GBM", bagged.model_names())
    sys.exit(0 if len(names) >= 3 and any("GBM" in name for name in bagged.model_names()) else 1)
