"""HyperTuning of hopwise with tuner="ray": random search and ASHA, over an objective of its own form."""

import muster.as_ray  # first: what follows imports ray

import os
import sys
import tempfile

from hopwise.trainer import HyperTuning


def objective(config_dict=None, config_file_list=None, **_):
    score = -((config_dict["learning_rate"] - 0.01) ** 2)
    return {
        "model": "BPR",
        "best_valid_score": score,
        "valid_score_bigger": True,
        "best_valid_result": {"mrr@10": score},
        "test_result": {"mrr@10": score},
    }


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    tuning = HyperTuning(
        objective,
        tuner="ray",
        params_dict={"loguniform": {"learning_rate": [-8, 0]}},
        algo="random-async_hyperband",
        max_evals=4,
        output_path=os.path.join(folder, "out"),
        study_name="study",
    )
    tuning.run()
    from muster.tune import ExperimentAnalysis

    analysis = ExperimentAnalysis(os.path.join(folder, "out", "study"))
    print("RESULT", len(analysis.trials), [trial.status for trial in analysis.trials])
    sys.exit(any(trial.status != "TERMINATED" for trial in analysis.trials))
