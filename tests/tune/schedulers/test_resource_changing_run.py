"""Real processes: a trial grows when another ends, shrinks when one comes, and grows again."""

import json
import time
from pathlib import Path

import pytest

from muster import tune
from muster.host.machine import cpu_count
from muster.trials.placement_group import PlacementGroupFactory as Pgf
from muster.tune import Checkpoint, RunConfig, Trainable, TuneConfig, Tuner
from muster.tune.schedulers import ResourceChangingScheduler
from muster.tune.schedulers.resource_changing_scheduler import DistributeResources
from muster.tune.search import Searcher

PARTS = 8  # the machine has so many
PART = cpu_count() / PARTS
PATIENCE = 2_000  # steps; none comes near it unless something is wrong


def own_parts():
    return round(tune.get_context().get_trial_resources().required_resources["CPU"] / PART)


def noted(config, i):
    path = Path(config["dir"], f"{i}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def phases(steps):
    """The sizes in the order in which they came, each once."""
    sizes = [size for _, size in steps]
    return [size for n, size in enumerate(sizes) if n == 0 or sizes[n - 1] != size]


def work(config, at):
    """One step: note which one it is and with how much; whether it was the last."""
    time.sleep(0.005)
    with Path(config["dir"], f"{config['i']}.jsonl").open("a") as file:
        file.write(json.dumps([at, own_parts()]) + "\n")
    leader = phases(noted(config, 0))
    enough = {0: 5, 1: 2, 2: 4}[config["i"]]  # the others end when the first has changed so often
    return len(leader) >= enough or at > PATIENCE


class Stepper(Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"parts": own_parts(), "done": work(self.config, self.at)}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def function(config):
    """Save at every third step only: its resources may change then, and at no other time."""
    at, is_last = 0, False
    if (checkpoint := tune.get_checkpoint()) is not None:
        at = json.loads(Path(checkpoint.path, "at").read_text())
    own = Path(tune.get_context().get_trial_dir(), "own")
    own.mkdir(exist_ok=True)
    while not is_last:
        at += 1
        is_last = work(config, at)
        saved = None
        if at % 3 == 0:
            (own / "at").write_text(str(at))
            saved = Checkpoint.from_directory(str(own))
        tune.report({"parts": own_parts()}, checkpoint=saved)


class Late(Searcher):
    """Two trials, and a third one when the first has the whole machine."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.given, self.is_time = directory, 0, False

    def suggest(self, trial_id):
        if self.given == 3:
            return Searcher.FINISHED
        if self.given == 2 and not self.is_time:
            return None
        self.given += 1
        return {"i": self.given - 1, "dir": self.directory}

    def on_trial_result(self, trial_id, result):
        self.is_time |= result["parts"] == PARTS

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


GANG = Pgf([{"CPU": PART}, {"CPU": PART}])
ALONE = Pgf([{"CPU": 2 * PART}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainable", "needs", "allocate"),
    [
        (Stepper, GANG, DistributeResources(add_bundles=True)),
        (function, ALONE, DistributeResources(increase_by={"CPU": 2 * PART})),
    ],
    ids=["a class with a gang of workers", "a function that saves now and then"],
)
def test_a_trial_grows_shrinks_and_grows_again_without_losing_a_step(trainable, needs, allocate, tmp_path):
    grid = Tuner(
        tune.with_resources(trainable, needs),
        tune_config=TuneConfig(
            scheduler=ResourceChangingScheduler(None, allocate),
            search_alg=Late(str(tmp_path)),
            num_samples=3,
            metric="parts",
            mode="max",
        ),
        run_config=RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert (len(grid), grid.num_errors) == (3, 0)
    steps = [noted({"dir": str(tmp_path)}, i) for i in range(3)]
    for i, result in enumerate(sorted(grid, key=lambda one: one.config["i"])):
        taken = [at for at, _ in steps[i]]
        while taken[:2] == [1, 1]:  # a first step without a checkpoint is repeated
            del taken[0]
        assert taken == list(range(1, len(taken) + 1))
        assert result.metrics["training_iteration"] == len(taken) < PATIENCE
    # Alone with one: half of it all. Alone: all. A third one waits: it gets what it needs, until it ends.
    assert phases(steps[0]) == [2, 4, 8, 6, 8]
    assert phases(steps[2]) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("reports", [1, 3])
def test_a_function_without_checkpoints_starts_again_with_more_after_its_first_report(reports, tmp_path):
    """As in Ray, whose trial starts from scratch with the whole machine and counts from 1 again."""

    def train(config):
        with Path(config["dir"], "starts").open("a") as file:
            file.write(f"{own_parts()}\n")
        for _ in range(reports):
            tune.report({"parts": own_parts()})

    (result,) = Tuner(
        tune.with_resources(train, {"cpu": 2 * PART}),
        param_space={"dir": str(tmp_path)},
        tune_config=TuneConfig(scheduler=ResourceChangingScheduler(None, DistributeResources())),
        run_config=RunConfig(name="e", storage_path=str(tmp_path), verbose=0, engine="local"),
    ).fit()
    starts = Path(tmp_path, "starts").read_text().split()
    assert (len(starts), starts[0], starts[1] > starts[0]) == (2, "2", True)
    assert [row["training_iteration"] for row in result.metrics_history] == list(range(1, reports + 1))
