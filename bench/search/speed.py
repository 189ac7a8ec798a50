"""Measure the CPU time of a suggestion with ten numbers, in turns with Optuna in the same process."""

from __future__ import annotations

import statistics
import time

import numpy as np

from bench.search.players import Optuna, Ours
from muster.tune.search import space as domains

BLOCK = 10
SPACE = {f"x{place}": domains.uniform(0.0, 1.0) for place in range(10)}


def _value(config: dict[str, float]) -> float:
    return sum((number - 0.3) ** 2 for number in config.values())


def filled_ours(count: int) -> Ours:
    made, rng = Ours(SPACE, 0), np.random.default_rng(0)
    for _ in range(count):
        config = {name: float(rng.random()) for name in SPACE}
        made.searcher.add_evaluated_point(config, _value(config))
    return made


def filled_optuna(count: int) -> Optuna:
    from optuna.distributions import FloatDistribution
    from optuna.trial import create_trial

    made, rng = Optuna(SPACE, 0), np.random.default_rng(0)
    distributions = {f"/{name}": FloatDistribution(0.0, 1.0) for name in SPACE}
    trials = []
    for _ in range(count):
        params = {name: float(rng.random()) for name in distributions}
        trials.append(create_trial(params=params, distributions=distributions, value=_value(params)))
    made.study.add_trials(trials)
    return made


def block_s(one: Ours | Optuna) -> float:
    """Return the CPU seconds of asking and telling once, over ten times: reading the clock takes long too."""
    started = time.process_time()
    for _ in range(BLOCK):
        key, config = one.ask()
        one.tell(key, [_value(config)])
    return (time.process_time() - started) / BLOCK


def figures(with_optuna: bool, blocks: int = 9) -> dict[str, float]:
    result: dict[str, float] = {}
    for count in (200, 1000, 5000):
        sides = [filled_ours(count)] + ([filled_optuna(count)] if with_optuna else [])
        taken = [[block_s(side) for side in sides] for _ in range(blocks)]
        ours = statistics.median(each[0] for each in taken)
        result[f"suggest_ms.{count}"] = 1e3 * ours  # with the result, a few microseconds
        if with_optuna:
            result[f"speedup.optuna.{count}"] = statistics.median(each[1] for each in taken) / ours
    return result
