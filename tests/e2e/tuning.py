"""Experiments that `test_1_tuner` and `test_1_money` run on the cluster, each as a script of its own.

Prints what came of it as JSON. Trials note every step that they take, with its node, in a file of their own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from muster import tune

SEAT = {"cpu": 1, "seat": 1}
PLACE = {"cpu": 1, "place": 1}
STEPS, WAITS_AT = 6, 2  # of a trial that leaves a machine which the cloud will take
MOVED_STEPS, STEP_S = 80, 0.4  # of a trial that is moved to empty its machine
PAID_STEPS = 100  # of a tenth of a second


def work(config):
    time.sleep(config["seconds"])
    tune.report({"score": config["seconds"]})


def fit(storage, name, resources, space, **options):
    tuner = tune.Tuner(
        tune.with_resources(work, resources),
        param_space=space,
        tune_config=tune.TuneConfig(metric="score", mode="max", **options),
        run_config=tune.RunConfig(name=name, storage_path=storage, engine="ray", verbose=0),
    )
    grid = tuner.fit()
    return {
        "scores": [result.metrics["score"] for result in grid if result.error is None],
        "errors": [str(error) for error in grid.errors],
    }


def show_tier(config):
    import ray

    tune.report({"tier": ray.get_runtime_context().get_node_labels()["tier"]})


def by_label(storage, name):
    """Each trial chooses its node by a label; no type has the last one."""

    def labelled(config):
        return tune.PlacementGroupFactory([{"CPU": 1}], bundle_label_selector=[{"tier": config["tier"]}])

    tuner = tune.Tuner(
        tune.with_resources(show_tier, labelled),
        param_space={"tier": tune.grid_search(["gold", "silver", "bronze"])},
        run_config=tune.RunConfig(name=name, storage_path=storage, engine="ray", verbose=0),
    )
    grid = tuner.fit()
    return {
        "tiers": {each.config["tier"]: each.metrics["tier"] for each in grid if each.error is None},
        "errors": {each.config["tier"]: str(each.error) for each in grid if each.error is not None},
    }


def note(config, step):
    """Write down that a step is taken, and where."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    with open(f"{config['notes']}/{config['number']}.txt", "a", encoding="utf-8") as stream:
        stream.write(f"{step} {node}\n")
    return node


def continued():
    """Return the first step that no checkpoint has."""
    if (found := tune.get_checkpoint()) is None:
        return 0
    with found.as_directory() as folder:
        return int(Path(folder, "step").read_text(encoding="utf-8")) + 1


def report_saved(row):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(row["step"]), encoding="utf-8")
        tune.report(row, checkpoint=tune.Checkpoint.from_directory(folder))


def leaves_when_told(config):
    """Save only where it is told that its machine will be taken; waits for that in one of its steps."""
    for step in range(continued(), STEPS):
        node, info = note(config, step), None
        while step == WAITS_AT and (info := tune.get_preemption_info()) is None:
            time.sleep(0.05)
        told = "" if info is None else f"{info.kind}, {info.source}, {info.left_s(time.time()) > 0}"
        row = {"step": step, "node": node, "told": told}
        if tune.should_checkpoint():
            report_saved(row)
        else:
            tune.report(row)


def saves_each_step(config):
    """Costs five cents with all of its steps; what another attempt has left to do is done at once."""
    first = continued()
    for step in range(first, PAID_STEPS):
        node = note(config, step)
        time.sleep(0.0 if first else 0.1)
        report_saved({"step": step, "node": node, "told": ""})


class SavedSteps(tune.Trainable):
    """A class with checkpoints; files beside its notes end it early, or let it hurry."""

    def setup(self, config):
        self.next = 0

    def step(self):
        notes, step = Path(self.config["notes"]), self.next
        node = note(self.config, step)
        time.sleep(0.0 if (notes / "hurry").exists() else STEP_S)
        self.next += 1
        is_over = (notes / f"end-{self.config['number']}").exists()
        return {"step": step, "node": node, "told": "", "done": is_over}

    def save_checkpoint(self, checkpoint_dir):
        return {"next": self.next}

    def load_checkpoint(self, checkpoint):
        self.next = checkpoint["next"]


def noted(storage, name, trainable, trials, stop=None, saved_every=0, budget=None):
    """Return a tuner whose trials are numbered, hold one place each, and note their steps."""
    notes = Path(storage, f"{name}-notes")
    notes.mkdir(parents=True, exist_ok=True)
    return tune.Tuner(
        tune.with_resources(trainable, PLACE),
        param_space={"notes": str(notes), "number": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(cost_budget=budget),
        run_config=tune.RunConfig(
            name=name,
            storage_path=storage,
            engine="ray",
            verbose=0,
            stop=stop,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=saved_every),
        ),
    )


def told(grid):
    rows = {
        each.config["number"]: each.metrics_dataframe[["step", "node", "told"]].values.tolist()
        for each in grid
    }
    return {
        "rows": [rows[number] for number in sorted(rows)],
        "errors": list(map(str, grid.errors)),
        "cost": grid.cost_usd,
        "ended_by": grid.ended_by,
    }


def ends_and_goes_on(storage, name):
    """A budget of three cents, then one of a dollar."""
    first = told(noted(storage, name, saves_each_step, 1, budget=0.03).fit())
    trainable = tune.with_resources(saves_each_step, PLACE)
    more = tune.Tuner.restore(str(Path(storage, name)), trainable, cost_budget=1.0).fit()
    return {"first": first, "more": told(more)}


def main(what, storage):
    if what == "labels":
        return by_label(storage, what)
    if what == "taken":
        return told(noted(storage, what, leaves_when_told, 3).fit())
    if what == "emptied":
        stop = {"training_iteration": MOVED_STEPS}
        return told(noted(storage, what, SavedSteps, 4, stop, saved_every=1).fit())
    if what == "budget":
        return ends_and_goes_on(storage, what)
    return fit(storage, what, SEAT, {"seconds": 4}, num_samples=4)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
