"""Our overhead over `study.optimize`: 2,000 trivial TPE trials each. Not a test; run it by hand:

python tests/tune/search/optuna_overhead.py [trials]
"""

from __future__ import annotations

import json
import sys
import time

import optuna

from muster.trials.template import TrialTemplate
from muster.tune.search.optuna import OptunaSearch
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.space import choice, loguniform, uniform

SPACE = {"x": uniform(-1, 1), "lr": loguniform(1e-4, 1e-1), "kind": choice(["a", "b"])}


def loss(x: float, lr: float, kind: str) -> float:
    return (x - 0.3) ** 2 + lr + (kind == "a")


def alone(trials: int) -> float:
    def objective(trial):
        x, lr = trial.suggest_float("x", -1, 1), trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        return loss(x, lr, trial.suggest_categorical("kind", ["a", "b"]))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    started = time.process_time()
    study.optimize(objective, n_trials=trials)
    return time.process_time() - started


def ours(trials: int) -> tuple[float, float, int]:
    generator = SearchGenerator(OptunaSearch(seed=1))
    generator.set_search_properties("loss", "min", SPACE)
    generator.add_configurations(TrialTemplate(trainable_name="t", param_space=SPACE, num_samples=trials))
    started = time.process_time()
    while (trial := generator.next_trial()) is not None:
        generator.on_trial_complete(trial.trial_id, {"loss": loss(**trial.config)})
    took = time.process_time() - started
    generator.save_state()
    started = time.process_time()
    size = len(generator.save_state())
    return took, time.process_time() - started, size


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    base = alone(trials)
    with_us, save_s, size = ours(trials)
    sys.stdout.write(
        json.dumps(
            {
                "trials": trials,
                "study_optimize_s": round(base, 2),
                "search_generator_s": round(with_us, 2),
                "ratio": round(with_us / base, 3),
                "second_save_ms": round(save_s * 1e3, 2),
                "bytes_per_trial": round(size / trials),
            }
        )
        + "\n"
    )
