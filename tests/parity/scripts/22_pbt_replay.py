"""A recorded policy of a population is replayed for one trial (docs: PopulationBasedTrainingReplay)."""

import json
import os

from ray import tune
from ray.tune.schedulers import PopulationBasedTrainingReplay


class Climber(tune.Trainable):
    def setup(self, config):
        self.height = 0

    def step(self):
        self.height += self.config["stride"]
        return {"height": self.height, "stride": self.config["stride"]}

    def save_checkpoint(self, checkpoint_dir):
        return {"height": self.height}

    def load_checkpoint(self, checkpoint):
        self.height = checkpoint["height"]

    def reset_config(self, new_config):
        self.config = new_config
        return True


def main(storage):
    policy = os.path.join(storage, "pbt_policy_abc12_00000.txt")
    lines = (
        ["abc12_00000", "abc12_00001", 2, 2, {"stride": 4}, {"stride": 5}],
        ["abc12_00000", "abc12_00001", 4, 4, {"stride": 8}, {"stride": 9}],
    )
    with open(policy, "w") as stream:
        stream.write("".join(json.dumps(line) + "\n" for line in lines))
    results = tune.Tuner(
        Climber,
        param_space={"stride": 4},
        tune_config=tune.TuneConfig(scheduler=PopulationBasedTrainingReplay(policy)),
        run_config=tune.RunConfig(
            name="replay", storage_path=storage, verbose=0, stop={"training_iteration": 6}
        ),
    ).fit()
    saved = [metrics["height"] for _, metrics in results[0].best_checkpoints]
    return [results[0].config, results[0].metrics["height"], results[0].metrics["training_iteration"], saved]
