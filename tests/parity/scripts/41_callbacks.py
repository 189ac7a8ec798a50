"""A callback hears of results, ends and errors in order (docs: callbacks)."""

from ray import tune


class Notes(tune.Callback):
    def __init__(self):
        self.notes = []

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        self.notes.append(["setup", num_samples, total_num_samples])

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.notes.append(["result", trial.config["x"], result["training_iteration"], len(trials)])

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.notes.append(["complete", trial.config["x"], trial.status])

    def on_trial_error(self, iteration, trials, trial, **info):
        self.notes.append(["error", trial.config["x"], trial.status])

    def on_experiment_end(self, trials, **info):
        self.notes.append(["end", [trial.status for trial in trials]])


def train(config):
    for step in range(2):
        tune.report({"score": step})
    if config["x"] == 2:
        raise ValueError("two")


def main(storage):
    notes = Notes()
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="callbacks", storage_path=storage, verbose=0, callbacks=[notes]),
    ).fit()
    return notes.notes
