"""Compute what needs no trial: values that domains draw, variants, resources, and what is refused."""

from __future__ import annotations

import numpy
import seen
from system import part, run_config, tune


def draws():
    """Five values of each domain with one seed, and what counts as valid."""
    domains = {
        "uniform": tune.uniform(-1, 1),
        "quniform": tune.quniform(0, 10, 2.5),
        "loguniform": tune.loguniform(1e-4, 1),
        "qloguniform": tune.qloguniform(0.1, 100, 0.1),
        "randn": tune.randn(10, 2),
        "qrandn": tune.qrandn(10, 2, 0.5),
        "randint": tune.randint(-5, 5),
        "qrandint": tune.qrandint(0, 10, 2),
        "qrandint 1": tune.qrandint(0, 10, 1),
        "lograndint": tune.lograndint(1, 1000),
        "qlograndint": tune.qlograndint(2, 100, 2),
        "choice": tune.choice([1, "two", None, (3, 4)]),
        "sample_from": tune.sample_from(lambda: 42),
    }
    return {
        name: {
            "five": [seen.plain(value) for value in domain.sample(size=5, random_state=7)],
            "one": seen.plain(domain.sample(random_state=7)),
            "text": domain.domain_str.partition(" at 0x")[0],
            "valid": [domain.is_valid(value) for value in (0, 1, 2.5, 1000)],
        }
        for name, domain in domains.items()
    }


def variants():
    """Order, resolved variables and tags of the variants of a specification."""
    generator = part("search.variant_generator")
    spec = {
        "config": {
            "a": tune.grid_search([1, 2]),
            "b": {"c": tune.grid_search(["x", 0.25])},
            "d": tune.choice([{"e": tune.randint(0, 9)}, 5]),
            "f": [tune.uniform(0, 1), tune.grid_search([True, None])],
            "g": {"eval": "spec.config.a * 2"},
            "h": "constant",
        }
    }
    found = generator.generate_variants(spec, random_state=numpy.random.default_rng(5))
    return {
        "variants": [
            [
                sorted([list(map(str, path)), seen.plain(value)] for path, value in resolved.items()),
                seen.plain(out),
            ]
            for resolved, out in found
        ],
        "tags": [
            generator.format_vars(variables)
            for variables in (
                {("a c?x",): " <;%$ok "},
                {("b", "lr"): 0.123456, ("a",): 3},
                {("z", 0): [1, 2], ("z", 1): {"k": 1.0}},
            )
        ],
    }


def resources():
    def shown(trainable):
        factory = trainable._resources
        return [factory.bundles, factory.strategy, factory.head_cpus, factory.required_resources]

    return {
        str(number): shown(tune.with_resources(lambda config: None, wanted))
        for number, wanted in enumerate(
            (
                {"cpu": 2},
                {"CPU": 1, "GPU": 0.5, "licence": 3},
                {"cpu": 1, "custom_resources": {"a": 1}},
                tune.PlacementGroupFactory([{"CPU": 1}, {"GPU": 1, "CPU": 0}], strategy="SPREAD"),
                tune.PlacementGroupFactory([{}, {"CPU": 2}]),
            )
        )
    }


def trainable(config):
    return {"loss": 1}


def refusals():
    """The kind of error for what makes no sense."""
    calls = {
        "no trainable": tune.Tuner,
        "space no dict": lambda: tune.Tuner(trainable, param_space=3),
        "unknown name": lambda: tune.Tuner("nobody_has_this_name", run_config=run_config("n")).fit(),
        "two arguments": lambda: tune.Tuner(lambda a, b: None, run_config=run_config("two")).fit(),
        "keep none": lambda: tune.CheckpointConfig(num_to_keep=0),
        "odd order": lambda: tune.CheckpointConfig(checkpoint_score_order="best"),
        "negative frequency": lambda: tune.CheckpointConfig(checkpoint_frequency=-1),
        "odd fail_fast": lambda: tune.FailureConfig(fail_fast="now"),
        "fail_fast and retries": lambda: tune.FailureConfig(fail_fast=True, max_failures=1),
        "chdir": lambda: tune.TuneConfig(chdir_to_trial_dir=True),
        "local_dir": lambda: tune.RunConfig(local_dir="x"),
        "frequency of a function": lambda: tune.Tuner(
            trainable,
            run_config=run_config("freq", checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1)),
        ).fit(),
        "stop": lambda: tune.Tuner(trainable, run_config=run_config("stop", stop=5)).fit(),
        "log of nothing": lambda: tune.loguniform(0, 1),
        "bounds no multiples": lambda: tune.quniform(0, 1, 0.3),
        "no deviation": lambda: tune.randn(0, 0),
        "arity": lambda: tune.sample_from(lambda a, b: 1),
        "second sampler": lambda: tune.uniform(0, 1).uniform(),
        "empty range": lambda: tune.randint(3, 3).sample(),
        "no bundles": lambda: tune.PlacementGroupFactory([]),
        "all zero": lambda: tune.PlacementGroupFactory([{"CPU": 0}]),
        "resources of nothing": lambda: tune.with_resources(3, {"cpu": 1}),
        "odd resources": lambda: tune.with_resources(trainable, 3),
        "register nothing": lambda: tune.register_trainable("x", 3),
        "register a class": lambda: tune.register_trainable("x", dict),
        "env": lambda: tune.register_env("e", 3),
        "searcher": lambda: tune.create_searcher("nobody"),
        "scheduler": lambda: tune.create_scheduler("nobody"),
        "plateau": lambda: part("stopper").ExperimentPlateauStopper("m", top=0),
        "timeout": lambda: part("stopper").TimeoutStopper("soon"),
        "threshold": lambda: part("stopper").TrialPlateauStopper("m", metric_threshold=1),
        "asha": lambda: part("schedulers").ASHAScheduler(max_t=0),
        "asha mode": lambda: part("schedulers").ASHAScheduler(mode="most"),
        "limiter": lambda: part("search").ConcurrencyLimiter(3, 1),
        "experiment": lambda: tune.run_experiments(3),
        "no run": lambda: tune.run_experiments({"e": {"config": {}}}),
        "resume": lambda: tune.run(trainable, resume="SOMETIMES", storage_path=run_config("r").storage_path),
        "resume local": lambda: tune.run(
            trainable, resume="LOCAL", storage_path=run_config("r").storage_path
        ),
        "restore of an object": lambda: tune.Tuner(trainable, run_config=run_config("o")).restore,
        "results before fit": lambda: tune.Tuner(trainable, run_config=run_config("b")).get_results(),
        "checkpoint as path": lambda: __import__("os").fspath(tune.Checkpoint("/tmp")),
    }
    return {name: seen.raised(call) for name, call in calls.items()}


SCENARIOS = (draws, variants, resources, refusals)
