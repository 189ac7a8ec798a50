"""Uses Ray as AutoGluon does: version bounds, _tuner_kwargs, air.session, classes by identity, bagging."""

import json
import os

import ray

if not (2, 43) <= tuple(int(part) for part in ray.__version__.split(".")[:2]) < (2, 59):
    raise ValueError(ray.__version__)
from ray import tune
from ray.air import RunConfig
from ray.air import session as air_session
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

SEARCHERS = {"random": BasicVariantGenerator}
SCHEDULERS = {"FIFO": FIFOScheduler}


def fit(config, folder):
    from ray.air import session

    assert session is air_session
    resources = tune.get_context().get_trial_resources().required_resources
    session.report({"score": config["x"], "cpus": resources["CPU"]})


def fold(model, data, number):
    return {"fold": number, "score": sum(data) * model["scale"]}


def bagging():
    if not ray.is_initialized():
        ray.init(log_to_driver=False, num_cpus=2)
    remote = ray.remote(max_calls=1)(fold)
    model, data = ray.put({"scale": 2}), ray.put(list(range(100)))
    jobs = {remote.options(num_cpus=1, num_gpus=0).remote(model, data, number): number for number in range(3)}
    assert ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    pending, folds = list(jobs), []
    while pending:
        finished, pending = ray.wait(pending, num_returns=1)
        folds.append(ray.get(finished[0])["fold"])
    ray.internal.free(object_refs=[model, data])
    ray.shutdown()
    return sorted(folds)


if __name__ == "__main__":
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(fit, folder="x"), tune.PlacementGroupFactory([{"CPU": 1}])),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            num_samples=3,
            metric="score",
            mode="max",
            search_alg=SEARCHERS["random"](),
            scheduler=SCHEDULERS["FIFO"](),
        ),
        run_config=RunConfig(name="hpo", storage_path=os.path.join(os.getcwd(), "ag"), verbose=0),
        _tuner_kwargs={
            "trial_name_creator": lambda trial: f"T{trial.trial_id[-1]}",
            "trial_dirname_creator": lambda trial: f"T{trial.trial_id[-1]}",
        },
    )
    analysis = tuner.fit()._experiment_analysis
    names = sorted(os.path.basename(trial.local_path) for trial in analysis.trials)
    print(json.dumps({"names": names, "results": len(analysis.results), "folds": bagging()}))
