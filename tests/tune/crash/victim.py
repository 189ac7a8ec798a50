"""The program that tests kill: an experiment with checkpoints and failures; begins or continues.

Usage: python victim.py FOLDER SCHEDULER SEARCHER one|many local|remote|URL plain|large

`large`: trials get 50 MB of parameters, and objects of classes that this script defines.

Each row is a function of configuration and iteration, and names the row before it: `before` is the `chain` of
the step that the trial went on from. FOLDER/ready appears before fit(), FOLDER/told.json after it, and
FOLDER/notes/steps has a byte for each step of any trial.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from muster import tune
from muster.errors import StoreError
from muster.host.machine import cpu_count
from muster.stores import mirror
from muster.stores.experiment.reader import open_trials
from muster.stores.experiment.values import Pickled
from muster.tune.execution import upload
from muster.tune.execution.paths import ExperimentPaths
from muster.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from muster.tune.schedulers.pb2 import PB2
from muster.tune.search import BasicVariantGenerator
from muster.tune.search.optuna import OptunaSearch

TRIALS, ITERATIONS, EVERY = 8, 12, 3
AT_ONCE, HEAD_CPUS = 4, 2
STEP_S = 0.02
LARGE_BYTES = 50_000_000
HALVING = {"time_attr": "training_iteration", "max_t": ITERATIONS, "reduction_factor": 2}
POPULATION = {"time_attr": "training_iteration", "perturbation_interval": 3, "seed": 3}
SCHEDULERS = {
    "fifo": FIFOScheduler,
    "stopping": lambda: ASHAScheduler(grace_period=2, **HALVING),
    "promotion": lambda: ASHAScheduler(grace_period=2, type="promotion", **HALVING),
    "hyperband": lambda: HyperBandScheduler(max_t=9),
    "bohb": lambda: HyperBandForBOHB(max_t=9),
    "median": lambda: MedianStoppingRule("training_iteration", grace_period=2, min_samples_required=2),
    "pbt": lambda: PopulationBasedTraining(hyperparam_mutations={"x": tune.uniform(0, 1)}, **POPULATION),
    "pb2": lambda: PB2(hyperparam_bounds={"x": [0.0, 1.0]}, **POPULATION),
    "resource": lambda: ResourceChangingScheduler(ASHAScheduler(grace_period=2, **HALVING)),
}
CLASSES = ("hyperband", "pbt", "resource")  # the others train by a function


class Bucket(LocalFileSystem):
    """A directory that is filled as object stores are: a file is there whole or not at all."""

    def put_file(self, lpath, rpath, **options):
        partial = f"{rpath}.{os.getpid()}.{threading.get_ident()}"
        shutil.copyfile(lpath, partial)
        os.replace(partial, rpath)


class Unit(enum.Enum):
    """Members are compared by identity, in trials and in the driver."""

    ONE = 1


class Shape:
    """An object of the script, in configurations and in results."""

    def __init__(self, size):
        self.size = size

    def __repr__(self):
        return f"Shape({self.size})"


def large_data():
    return np.random.default_rng(5).random(LARGE_BYTES // 8)


class Progress:
    """What a checkpoint holds: the last step, and the chain of all steps up to it."""

    def __init__(self, config, file=None, data=None):
        self.x, self.notes, self.config, self.data = config["x"], Path(config["notes"]), config, data
        self.done, self.chain = json.loads(Path(file).read_text()) if file else (0, "")

    def step(self, trial_id):
        """The next row; a trial with a large x fails once, in the middle."""
        time.sleep(STEP_S)
        step, once = self.done + 1, self.notes / f"{trial_id}.failed"
        if self.x > 0.8 and step == 5 and not once.exists():
            once.touch()
            raise RuntimeError("fails once")
        with open(self.notes / "steps", "ab") as file:
            file.write(b".")
        before, self.done = self.chain, step
        value = "" if self.data is None else f" {self.data[-step]}"
        self.chain = hashlib.sha256(f"{before} {self.x!r} {step}{value}".encode()).hexdigest()[:12]
        return {
            **{"loss": loss(self.x, step), "step": step, "before": before, "chain": self.chain},
            **({} if self.data is None else self._objects()),
        }

    def _objects(self):
        unit, shape = self.config["unit"], self.config["shape"]
        assert unit is Unit.ONE
        assert isinstance(shape, Shape)
        return {"unit": unit, "shape": Shape(shape.size + self.done)}

    def save(self, folder):
        Path(folder, "state.json").write_text(json.dumps([self.done, self.chain]))


def loss(x, step):
    return round(x + 1 / step, 12)


def train(config, data=None):
    """Checkpoints every third step; what report() took is noted in a file of its own."""
    progress, checkpoint = Progress(config, data=data), tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            progress = Progress(config, Path(directory, "state.json"), data)
    name = tune.get_context().get_trial_id()
    while progress.done < ITERATIONS:
        row = progress.step(name)
        if row["step"] % EVERY:
            tune.report(row)
        else:
            with tempfile.TemporaryDirectory() as directory:
                progress.save(directory)
                tune.report(row, checkpoint=tune.Checkpoint.from_directory(directory))
        with open(progress.notes / name, "a") as file:
            file.write(f"{row['step']}\n")


class Train(tune.Trainable):
    """The same as a class."""

    def setup(self, config, data=None):
        self.progress = Progress(config, data=data)

    def step(self):
        return self.progress.step(self.trial_id)

    def save_checkpoint(self, checkpoint_dir):
        self.progress.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint):
        self.progress = Progress(self.config, Path(checkpoint, "state.json"), self.progress.data)


def searcher(kind):
    return OptunaSearch(seed=7) if kind == "optuna" else BasicVariantGenerator(random_state=7)


def make_tuner(folder, kind, searcher_kind, crowd, storage, objects="plain"):
    parent, filesystem = (
        storage if "://" in storage else str(folder),
        Bucket() if storage == "remote" else None,
    )
    path = f"{parent}/exp"
    grows = kind == "resource" and crowd == "one"  # onto all that there is: the others must not wait for room
    cpus = (HEAD_CPUS if os.environ.get("RAY_ADDRESS") else cpu_count()) / (
        1 if crowd == "one" and not grows else AT_ONCE
    )
    trainable, given = tune.with_resources(Train if kind in CLASSES else train, {"cpu": cpus}), {}
    if tune.Tuner.can_restore(path, storage_filesystem=filesystem):
        if objects == "large":  # what it needs must have been kept
            trainable = None
        tuner = tune.Tuner.restore(path, trainable, storage_filesystem=filesystem)
        undo_unknown_failures(ExperimentPaths(parent, "exp", filesystem).directory, Path(folder, "notes"))
        return tuner
    if objects == "large":
        trainable = tune.with_parameters(trainable, data=large_data())
        given = {"unit": tune.choice([Unit.ONE]), "shape": Shape(3)}
    return tune.Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1), "notes": str(Path(folder, "notes")), **given},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=TRIALS,
            scheduler=SCHEDULERS[kind](),
            search_alg=searcher(searcher_kind),
            max_concurrent_trials=1 if grows else 3 if searcher_kind == "optuna" else None,
        ),
        run_config=tune.RunConfig(
            name="exp",
            storage_path=parent,
            storage_filesystem=filesystem,
            stop={"training_iteration": ITERATIONS},
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=2),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=2, checkpoint_frequency=EVERY if kind in CLASSES else 0
            ),
        ),
    )


def undo_unknown_failures(directory, notes):
    """Let trials fail whose failure was lost with a machine or a driver: it is one more event of the run.

    Schedulers are notified of a failure (a bracket expects the trial again, a population forgets what it
    trained), so a run in which one is missing ends in another way than the run without kills.
    """
    failed = set()
    with contextlib.suppress(StoreError), open_trials(directory) as reader:  # killed before it was made
        failed = {trial.trial_id for trial in reader.trials() if trial.failures}
    for note in notes.glob("*.failed"):
        if note.stem not in failed:
            note.unlink()


def told(grid):
    """What a user sees of the results. Those of a remote storage are not unpickled."""
    objects = [each.metrics[name] for each in grid for name in ("unit", "shape") if name in each.metrics]
    assert all(each is Unit.ONE or isinstance(each, Shape | Pickled) for each in objects)
    best = [grid.get_best_result(scope=scope) for scope in ("all", "last")]
    return {
        "trials": len(grid),
        "errors": [str(error) for error in grid.errors],
        "best": [[each.config["x"], each.metrics["chain"]] for each in best],
        "ends": [[each.config["x"], each.metrics["chain"], each.metrics["done"]] for each in grid],
    }


def main():
    """The storage is written every moment, so that a lost machine is not a new beginning each time."""
    mirror.MirrorInterval = functools.partial(mirror.MirrorInterval, again_s=0.1, store_s=0.2)
    upload.LOGS_EVERY_S = 0.1
    folder = Path(sys.argv[1])
    (folder / "notes").mkdir(exist_ok=True)
    tuner = make_tuner(*sys.argv[1:7])
    (folder / "ready").touch()
    (folder / "told.json").write_text(json.dumps(told(tuner.fit())))


if __name__ == "__main__":
    main()
