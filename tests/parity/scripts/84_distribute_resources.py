"""Free CPUs are given to the trials that still run (docs: DistributeResources)."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler, ResourceChangingScheduler
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

FILES_VARY = True  # at which result the new resources are there depends on the machine


class Grows(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"at": self.at, "cpus": self.trial_resources.required_resources["CPU"]}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def main(storage):
    scheduler = ResourceChangingScheduler(
        base_scheduler=ASHAScheduler(max_t=8, grace_period=8),
        resources_allocation_function=DistributeResources(add_bundles=False),
    )
    results = tune.Tuner(
        tune.with_resources(Grows, {"cpu": 1}),
        tune_config=tune.TuneConfig(metric="at", mode="max", scheduler=scheduler, num_samples=1),
        run_config=tune.RunConfig(name="distribute", storage_path=storage, verbose=0),
    ).fit()
    return [results[0].metrics["at"], results[0].metrics["cpus"] >= 1, results[0].error]
