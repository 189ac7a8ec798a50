"""PipelineTuner of lenskit: random search over a k-NN scorer, then Optuna over an iterative model."""

import muster.as_ray  # first: what follows imports ray

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from lenskit.data import from_interactions_df
from lenskit.flexmf import FlexMFImplicitScorer
from lenskit.knn import ItemKNNScorer
from lenskit.pipeline import topn_pipeline
from lenskit.splitting import SampleN, sample_users
from lenskit.tuning import PipelineTuner, TuningSpec


def data():
    rng = np.random.default_rng(1)
    rows = [(user, item) for user in range(60) for item in rng.choice(80, 15, replace=False)]
    return from_interactions_df(pd.DataFrame(rows, columns=["user_id", "item_id"]))


def tune(scorer, space, folder, method):
    spec = TuningSpec.model_validate(
        {
            "search": {
                "method": method,
                "max_points": 4,
                "metric": "RBP",
                "list_length": 10,
                "max_epochs": 5,
                "min_epochs": 3,
                "num_cpus": 1,
            },
            "space": {"scorer": space},
            "pipeline": topn_pipeline(scorer, n=10).config.model_dump(),
        }
    )
    split = sample_users(data(), 20, SampleN(3), rng=2)
    tuner = PipelineTuner(spec, Path(folder), rng=3)
    tuner.settings.jobs = 1  # torch's compiler cache is not safe for two trials at once
    tuner.set_data(split.train, split.test)
    results = tuner.run()
    print("RESULT", method, results.num_errors, len(results), tuner.best_result()["config"])
    return results.num_errors


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"  # a killed trial may leave half a file
    number = {"type": "int", "min": 2, "max": 20}
    failed = tune(ItemKNNScorer(feedback="implicit"), {"max_nbrs": number}, f"{folder}/knn", "random")
    size = {"type": "int", "min": 4, "max": 16}
    failed += tune(FlexMFImplicitScorer(), {"embedding_size": size}, f"{folder}/mf", "optuna")
    sys.exit(failed)
