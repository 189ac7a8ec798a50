"""What trials print is kept in files of the trial (docs: redirect stdout and stderr)."""

import sys

from ray import tune


def train(config):
    sys.stdout.write("a line for stdout\n")
    sys.stderr.write("a line for stderr\n")
    tune.report({"loss": 1})


def main(storage):
    results = tune.Tuner(
        train,
        run_config=tune.RunConfig(
            name="log", storage_path=storage, verbose=0, log_to_file=("my_stdout.log", "my_stderr.log")
        ),
    ).fit()
    return [results[0].metrics["loss"], results[0].error]
