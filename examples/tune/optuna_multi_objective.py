"""Optimises two objectives with Optuna, accuracy and latency, and prints the Pareto-optimal configurations.

python examples/tune/optuna_multi_objective.py [DIRECTORY]     (needs optuna: pip install "muster-ml[optuna]")
"""

from __future__ import annotations

import sys
import tempfile

from muster import tune
from muster.tune.search.optuna import OptunaSearch


def train(config: dict) -> dict:
    """Simulates a model that becomes better and slower as it grows."""
    size = config["width"] * config["depth"]
    return {
        "accuracy": 1 - 1 / (1 + size / 50) - 0.02 * (config["dropout"] - 0.3) ** 2,
        "latency_ms": 0.2 * config["depth"] + size / 40,
    }


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    tuner = tune.Tuner(
        train,
        param_space={
            "width": tune.randint(8, 257),
            "depth": tune.randint(1, 9),
            "dropout": tune.uniform(0.0, 0.6),
        },
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(metric=["accuracy", "latency_ms"], mode=["max", "min"], seed=0),
            num_samples=60,
            max_concurrent_trials=2,
        ),
        run_config=tune.RunConfig(name="two-objectives", storage_path=storage, verbose=0),
    )
    results = tuner.fit()
    front = results.get_pareto_front(["accuracy", "latency_ms"], ["max", "min"])
    print(f"{len(front)} of {len(results)} configurations are Pareto-optimal:")
    for each in sorted(front, key=lambda one: one.metrics["latency_ms"]):
        accuracy, latency_ms = each.metrics["accuracy"], each.metrics["latency_ms"]
        chosen = {key: each.config[key] for key in ("width", "depth")}
        print(f"  accuracy {accuracy:.3f}   latency {latency_ms:5.1f} ms   {chosen}")


if __name__ == "__main__":
    main()
