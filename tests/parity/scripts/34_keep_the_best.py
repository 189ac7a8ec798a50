"""Only the two best checkpoints by a nested score are kept (docs: num_to_keep, score attribute and order)."""

import os
import tempfile

from ray import tune


def train(config):
    for accuracy in (0.1, 0.9, 0.3, 0.7, 0.2):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "accuracy"), "w") as stream:
                stream.write(str(accuracy))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"eval": {"accuracy": accuracy}, "loss": 1 - accuracy}, checkpoint=checkpoint)


def main(storage):
    values = {}
    for attribute, order in (("eval/accuracy", "max"), ("loss", "max")):
        results = tune.Tuner(
            train,
            run_config=tune.RunConfig(
                name=f"keep_{attribute[:4]}",
                storage_path=storage,
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(
                    num_to_keep=2, checkpoint_score_attribute=attribute, checkpoint_score_order=order
                ),
            ),
        ).fit()
        kept = [os.path.basename(checkpoint.path) for checkpoint, _ in results[0].best_checkpoints]
        best = results[0].get_best_checkpoint("loss", "min")
        values[attribute] = [kept, os.path.basename(best.path), os.path.basename(results[0].checkpoint.path)]
    return values
