"""Resources of a trial are changed while it runs (docs: ResourceChangingScheduler)."""

from ray import tune
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler

FILES_VARY = True  # at which result the new resources are there depends on the machine


def allocate(tune_controller, trial, result, scheduler):
    if result["training_iteration"] < 2:
        return None
    return tune.PlacementGroupFactory([{"CPU": 2}])


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
        base_scheduler=FIFOScheduler(), resources_allocation_function=allocate
    )
    results = tune.Tuner(
        tune.with_resources(Grows, {"cpu": 1}),
        tune_config=tune.TuneConfig(metric="at", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="grows", storage_path=storage, verbose=0, stop={"training_iteration": 5}
        ),
    ).fit()
    return [results[0].metrics["at"], results[0].metrics["cpus"], results[0].error]
