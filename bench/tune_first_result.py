"""Run a user's script as a program: prints the time (seconds since 1970) of its first result.

usage: tune_first_result.py muster|ray STORAGE PLACE_FOR_RAYS_OWN_FILES
Ray is started as cheaply as it can be; nothing else differs.
"""

import sys
import time

if sys.argv[1] == "ray":
    import ray
    from ray import tune

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=sys.argv[3],
    )
else:
    from muster import tune


class FirstResult(tune.Callback):
    """A FirstResult callback prints the time of each result to stderr."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        sys.stderr.write(f"first result at {time.time()}\n")


def train(config):
    tune.report({"score": config["x"]})


if __name__ == "__main__":
    tune.Tuner(
        train,
        param_space={"x": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(
            name="bench", storage_path=sys.argv[2], verbose=0, callbacks=[FirstResult()]
        ),
    ).fit()
