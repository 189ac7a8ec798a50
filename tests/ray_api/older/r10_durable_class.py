"""Ray 1.0: DurableTrainable with remote_checkpoint_dir, resources of a class, a syncer that is a template."""

import os

import ray
from ray import tune
from ray.tune.durable_trainable import DurableTrainable
from ray.tune.resources import Resources
from ray.tune.schedulers import HyperBandScheduler


class Model(DurableTrainable):
    @classmethod
    def default_resource_request(cls, config):
        return Resources(cpu=1, gpu=0)

    def setup(self, config):
        self.step_number = 0
        assert os.path.isdir(self.logdir)

    def step(self):
        self.step_number += 1
        return {"episode_reward_mean": self.step_number * config["rate"]}

    def save_checkpoint(self, checkpoint_dir):
        path = os.path.join(checkpoint_dir, "model.txt")
        with open(path, "w") as f:
            f.write(str(self.step_number))
        return path

    def load_checkpoint(self, checkpoint_path):
        with open(checkpoint_path) as f:
            self.step_number = int(f.read())

    def reset_config(self, new_config):
        self.config = new_config
        self.step_number = 0
        return True

    def cleanup(self):
        print(self.iteration, self.trial_id, self.trial_name)


config = {"rate": 2}
ray.init(ignore_reinit_error=True, local_mode=False, include_webui=False)
place = os.path.join(os.getcwd(), "bucket")
analysis = tune.run(
    Model,
    name="hyperband_test",
    num_samples=3,
    scheduler=HyperBandScheduler(
        time_attr="training_iteration", metric="episode_reward_mean", mode="max", max_t=4
    ),
    stop={"training_iteration": 4},
    config={
        "rate": tune.sample_from(lambda spec: 1 + spec.config.rate_base),
        "rate_base": tune.grid_search([1]),
    },
    checkpoint_freq=2,
    checkpoint_at_end=True,
    keep_checkpoints_num=2,
    checkpoint_score_attr="episode_reward_mean",
    reuse_actors=True,
    max_failures=1,
    sync_config=tune.SyncConfig(sync_to_driver=False, upload_dir=place, sync_to_cloud=None),
    verbose=1,
)
trial = analysis.get_best_trial("episode_reward_mean", mode="max", scope="all")
assert open(analysis.get_best_checkpoint(trial, metric="episode_reward_mean", mode="max")).read() == "4"
paths = analysis.get_trial_checkpoints_paths(trial, metric="episode_reward_mean")
assert paths[-1][1] == 8, paths
stop = {"episode_reward_mean": 10}
trial = tune.run(Model, restore=paths[0][0], stop=stop, config={"rate": 2}, verbose=0).trials[0]
assert trial.last_result["iterations_since_restore"] == 3, trial.last_result
