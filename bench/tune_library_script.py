"""Run a user's script as a program: eight short trials of a library; prints wall and CPU seconds of `fit()`.

usage: tune_library_script.py muster|interpreters|ray LIBRARY STORAGE PLACE_FOR_RAYS_OWN_FILES
`interpreters` is ours with a new interpreter for each trial, as where forking is not safe.
"""

import json
import resource
import sys
import time

system, library, storage, place = sys.argv[1:]

if system == "ray":
    import ray
    from ray import tune

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=place)
else:
    from muster import tune
if system == "interpreters":
    from muster.engines.local.engine import LocalEngine

    LocalEngine.__init__.__kwdefaults__["warm"] = False

if library == "torch":
    import torch

    def score(x: float) -> float:
        torch.set_num_threads(1)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=x)
        for _ in range(5):
            loss = model(torch.ones(16, 8)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss.item())

else:
    import numpy
    import pandas

    if library == "sklearn":
        from sklearn.linear_model import LogisticRegression as Model

        settings: dict = {}
    elif library == "lightgbm":
        from lightgbm import LGBMClassifier as Model

        settings = {"n_estimators": 5, "n_jobs": 1, "verbose": -1}
    else:
        from xgboost import XGBClassifier as Model

        settings = {"n_estimators": 5, "n_jobs": 1}

    def score(x: float) -> float:
        values = numpy.random.default_rng(0).random((200, 4))
        frame = pandas.DataFrame(values, columns=list("abcd"))
        return float(Model(**settings).fit(frame, values[:, 0] > x).score(frame, values[:, 0] > x))


def train(config):
    tune.report({"score": score(config["x"])})


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0.3, 0.7)},
        tune_config=tune.TuneConfig(num_samples=8),
        run_config=tune.RunConfig(storage_path=storage, name="library", verbose=0),
    )
    began, cpu_before = time.perf_counter(), cpu_s()
    results = tuner.fit()
    figures = {"wall_s": time.perf_counter() - began, "cpu_s": cpu_s() - cpu_before}
    if len(results) != 8 or results.num_errors:
        raise SystemExit(f"{results.num_errors} of {len(results)} trials failed")
    sys.stdout.write(json.dumps(figures) + "\n")
