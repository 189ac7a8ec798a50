"""Run trials that report, for files, frames and the best result."""

from __future__ import annotations

import seen
from system import fit, tune


def nested(config):
    for step in range(3):
        tune.report(
            {
                "loss": config["x"] / (step + 1),
                "val": {"acc": step * config["x"], "by": {"class": [1, step]}, "none": None, "empty": {}},
                "after": True,
            }
        )


def nested_metrics():
    found = fit("nested_metrics", nested, {"x": tune.grid_search([2.0, 1.0])})
    return {
        **seen.grid(found),
        "best": seen.plain(found.get_best_result("val/acc", "max").config),
        "best of all": seen.plain(found.get_best_result("loss", "max", scope="all").config),
        "average": seen.plain(found.get_best_result("loss", "max", scope="avg").config),
        "extreme rows": sorted(found.get_dataframe("loss", "max")["training_iteration"].tolist()),
        "no metric": seen.raised(found.get_best_result),
        "unknown metric": seen.raised(found.get_best_result, "nothing", "max"),
        "bad mode": seen.raised(found.get_best_result, "loss", "most"),
        "bad scope": seen.raised(found.get_best_result, "loss", "max", scope="some"),
    }


def odd_numbers(config):
    for value in config["values"]:
        tune.report({"loss": value})


def nan_and_infinity():
    nan, inf = float("nan"), float("inf")
    found = fit(
        "nan_and_infinity",
        odd_numbers,
        {"values": tune.grid_search([[1.0, nan], [nan, 2.0], [3.0, inf], [nan]])},
    )
    return {
        **seen.grid(found),
        "best": seen.plain(found.get_best_result("loss", "min").config),
        "most": seen.plain(found.get_best_result("loss", "max").config),
        "unfiltered": seen.plain(found.get_best_result("loss", "max", filter_nan_and_inf=False).config),
    }


def answers(config):
    kind = config["kind"]
    if kind == "number":
        return 4.5
    if kind == "dict":
        return {"loss": 1, "done": False}
    if kind == "late key":
        tune.report({"loss": 1})
        tune.report({"loss": 2, "late": 3})
        tune.report({"other": 4})
    if kind == "counts":
        tune.report({"timesteps_this_iter": 5, "episodes_this_iter": 2})
        tune.report({"timesteps_this_iter": 0, "time_this_iter_s": 9.0, "timestamp": 7})
        tune.report({"timesteps_total": 100})
    return None


def what_functions_answer():
    found = fit(
        "what_functions_answer",
        answers,
        {"kind": tune.grid_search(["number", "dict", "late key", "counts", "nothing"])},
    )
    return seen.grid(found)


def yielding(config):
    yield {"loss": 1}
    yield 2
    yield {"loss": 3}


def generators():
    return seen.grid(fit("generators", yielding))


def chatty(config):
    import sys

    sys.stdout.write("to stdout\n")
    sys.stderr.write("to stderr\n")
    tune.report({"loss": 1})


def output_to_files():
    found = fit("output_to_files", chatty, log_to_file=("out.txt", "err.txt"))
    return {"files": [name for name in seen.grid(found)["trials"][0]["files"] if name != "out.txt"]}


def asks(config, data):
    context = tune.get_context()
    tune.report(
        {
            "data": len(data),
            "experiment": context.get_experiment_name(),
            "name": context.get_trial_name() == f"asks_{context.get_trial_id()}",
            "bundles": [dict(bundle) for bundle in context.get_trial_resources().bundles],
            "checkpoint": tune.get_checkpoint() is None,
        }
    )


def context_parameters_resources():
    wrapped = tune.with_resources(tune.with_parameters(asks, data=list(range(1000))), {"cpu": 0.5})
    return seen.grid(fit("context", wrapped))


SCENARIOS = (
    nested_metrics,
    nan_and_infinity,
    what_functions_answer,
    generators,
    output_to_files,
    context_parameters_resources,
)
