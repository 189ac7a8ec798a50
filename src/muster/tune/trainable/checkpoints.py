"""A class trainable's checkpoint outside of an engine: what save_checkpoint answered becomes a directory.

The layout is the engines': a dict is pickled as `_dict_checkpoint.pkl`, anything else is files.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

from muster.session.checkpoint import Checkpoint
from muster.session.publish import checkpoint_name, publish_copy

DICT_CHECKPOINT = "_dict_checkpoint.pkl"
COUNTERS = ("training_iteration", "time_total_s", "timesteps_total", "episodes_total")


class TrainingResult:
    """What `Trainable.save` gives and `restore` takes: a checkpoint and the result it belongs to."""

    __slots__ = ("checkpoint", "metrics")

    def __init__(self, checkpoint: Checkpoint, metrics: Mapping[str, Any]) -> None:
        self.checkpoint = checkpoint
        self.metrics = dict(metrics)

    def __repr__(self) -> str:
        return f"TrainingResult(checkpoint={self.checkpoint!r}, metrics={self.metrics!r})"


def write_answer(answer: object, folder: str, who: str) -> None:
    """Complete the checkpoint in `folder`, given what `save_checkpoint(folder)` answered."""
    if answer is None:
        return
    if isinstance(answer, Mapping):
        import cloudpickle  # type: ignore[import-untyped]  # it has no types

        with open(os.path.join(folder, DICT_CHECKPOINT), "wb") as stream:
            cloudpickle.dump(dict(answer), stream)
    elif not isinstance(answer, str):
        kind = type(answer).__name__
        raise TypeError(f"{who}.save_checkpoint returned a {kind}; return a dict, its directory or nothing")
    elif os.path.abspath(answer) != os.path.abspath(folder):
        raise ValueError(
            f"{who}.save_checkpoint was given {folder} and returned {answer}; write the files into the given "
            "directory and return it, or return a dict"
        )


def publish_next(folder: str, trial_dir: str) -> str:
    """Copy a checkpoint into the trial's directory, under a number that nothing there has."""
    os.makedirs(trial_dir, exist_ok=True)
    taken = [name[len("checkpoint_") :] for name in os.listdir(trial_dir) if name.startswith("checkpoint_")]
    newest = max((int(number) for number in taken if number.isdigit()), default=-1)
    return publish_copy(folder, trial_dir, checkpoint_name(newest + 1))


def read_saved(folder: str) -> Any:  # noqa: ANN401 - a user's dict
    """What load_checkpoint is given: the dict that was saved, else the directory."""
    saved = os.path.join(folder, DICT_CHECKPOINT)
    if not os.path.exists(saved):
        return folder
    with open(saved, "rb") as stream:
        return pickle.load(stream)


def as_training_result(given: TrainingResult | Checkpoint | str | os.PathLike[str]) -> TrainingResult:
    """Whatever `restore` accepts; the counters of a bare checkpoint are in its metadata."""
    if isinstance(given, TrainingResult):
        result = given
    elif isinstance(given, Checkpoint):
        result = TrainingResult(given, {})
    else:
        result = TrainingResult(Checkpoint(given), {})
    place = result.checkpoint
    if not place.filesystem.exists(place.path):
        raise ValueError(
            f"cannot restore: the checkpoint {place.path} does not exist (any more); "
            "save it outside of temporary directories, or keep more (CheckpointConfig.num_to_keep)"
        )
    return result if result.metrics else TrainingResult(place, place.get_metadata())
