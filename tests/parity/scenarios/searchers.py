"""Run searchers: their calls, and what Optuna suggests with a seed."""

from __future__ import annotations

import seen
from system import fit, part, tune


def bowl(config):
    for step in range(2):
        tune.report({"loss": (config["x"] - 0.3) ** 2 + config["n"] - step})


SPACE = {"n": None, "x": None, "c": None}


def _space():
    return {
        "n": tune.randint(1, 6),
        "x": tune.loguniform(1e-3, 1),
        "c": tune.choice(["p", "q"]),
        "d": {"u": tune.quniform(0, 1, 0.25)},
        "fixed": 5,
    }


def optuna():
    import logging

    logging.getLogger("optuna").setLevel(logging.ERROR)
    search = part("search.optuna").OptunaSearch(
        seed=4, points_to_evaluate=[{"x": 0.5, "n": 2, "c": "q", "d/u": 0.5}]
    )
    found = fit(
        "optuna",
        bowl,
        _space(),
        tune_config={
            "search_alg": search,
            "metric": "loss",
            "mode": "min",
            "num_samples": 12,
            "max_concurrent_trials": 1,
            "reuse_actors": True,
        },
    )
    return {"configs": [seen.plain(each.config) for each in found], "trial": seen.trial(found[0])}


class Clerk(part("search").Searcher):
    """Suggests 1, 2, 3 and is then finished; records its calls."""

    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.lines = []
        self.numbers = {}

    def _name(self, trial_id):
        return self.numbers.setdefault(trial_id, len(self.numbers))

    def set_search_properties(self, metric, mode, config, **spec):
        self.lines.append(["properties", metric, mode, sorted(config), sorted(spec)])
        return True

    def suggest(self, trial_id):
        if len(self.numbers) == 3:
            return part("search").Searcher.FINISHED
        number = self._name(trial_id)
        self.lines.append(["suggest", number])
        return {"x": number / 10, "n": number}

    def on_trial_result(self, trial_id, result):
        self.lines.append(["result", self._name(trial_id), result["loss"], result["done"], sorted(result)])

    def on_trial_complete(self, trial_id, result=None, error=False):
        loss = None if result is None else result.get("loss")
        self.lines.append(["complete", self._name(trial_id), loss, error])


def fussy(config):
    if config["n"] == 1:
        raise ValueError("not one")
    bowl(config)


def own_searcher():
    clerk = Clerk()
    found = fit(
        "own_searcher",
        fussy,
        {"given": 1},
        tune_config={"search_alg": clerk, "num_samples": 10, "max_concurrent_trials": 1},
    )
    return {"lines": clerk.lines, **seen.grid(found)}


def repeated():
    clerk = Clerk()
    repeater = part("search").Repeater(clerk, repeat=2)
    found = fit(
        "repeated",
        bowl,
        tune_config={
            "search_alg": repeater,
            "num_samples": 4,
            "max_concurrent_trials": 1,
            "reuse_actors": True,
        },
    )
    return {"lines": clerk.lines, "configs": [seen.plain(each.config) for each in found]}


SCENARIOS = (optuna, own_searcher, repeated)
