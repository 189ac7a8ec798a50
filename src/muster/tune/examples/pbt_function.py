"""Define Ray's example for population based training: a learning rate whose best value moves."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from muster.session.checkpoint import Checkpoint
from muster.session.report import get_checkpoint, report

_MIDPOINT = 100.0  # the accuracy at which the best learning rate starts to fall again
_STEPS = 100


def pbt_function(config: dict[str, Any]) -> None:
    """Report `mean_accuracy`, which rises the faster the nearer `lr` is to a best value that moves.

    The best rate rises with the accuracy up to a midpoint and falls after it, so no fixed rate is good for
    long. A checkpoint is made every `checkpoint_interval` steps (1) and holds accuracy and step.
    """
    learning_rate, every = float(config["lr"]), int(config.get("checkpoint_interval", 1))
    accuracy, start = 0.0, 1
    checkpoint = get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = json.loads(Path(folder, "checkpoint.json").read_text("utf-8"))
        accuracy, start = saved["acc"], saved["step"] + 1
    for step in range(start, start + _STEPS):
        distance = accuracy if accuracy < _MIDPOINT else 2 * _MIDPOINT - accuracy
        best = 0.01 * max(distance, 1.0) / 10
        off = max(best / learning_rate, learning_rate / best) if learning_rate > 0 else math.inf
        accuracy = max(0.0, accuracy + 5.0 / off - 0.5)
        metrics = {"mean_accuracy": accuracy, "cur_lr": learning_rate, "optimal_lr": best, "q_err": off}
        metrics["done"] = accuracy > 2 * _MIDPOINT
        if step % every:
            report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "checkpoint.json").write_text(json.dumps({"acc": accuracy, "step": step}), "utf-8")
            report(metrics, checkpoint=Checkpoint.from_directory(folder))
