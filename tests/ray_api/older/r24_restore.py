"""Ray 2.4: Tuner.restore, get_dataframe, checkpoints as directories."""

import os
import tempfile

from ray import air, tune
from ray.air import session


def train(config):
    for step in range(2):
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "x"), "w").write(str(step))
            session.report({"step": step}, checkpoint=air.Checkpoint.from_directory(folder))


place = os.path.join(os.getcwd(), "r24")
tune.Tuner(train, run_config=air.RunConfig(storage_path=place, name="e", verbose=0)).fit()
tuner = tune.Tuner.restore(os.path.join(place, "e"), trainable=train)
results = tuner.get_results()
assert results[0].checkpoint is not None
assert len(results.get_dataframe()) == 1
