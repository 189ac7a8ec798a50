"""A class says which resources it needs, by its config (docs: default_resource_request)."""

from ray import tune


class Hungry(tune.Trainable):
    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": config["cpus"]}])

    def step(self):
        return {"cpus": self.trial_resources.required_resources["CPU"], "done": True}


def main(storage):
    results = tune.Tuner(
        Hungry,
        param_space={"cpus": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="hungry", storage_path=storage, verbose=0),
    ).fit()
    return [result.metrics["cpus"] for result in results]
