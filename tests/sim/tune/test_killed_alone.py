"""With one trial at a time a killed experiment decides as if it had not been killed, whenever that was."""

from __future__ import annotations

import random

import pytest
from tests.series import length, step
from tests.simulation.tune import crash_matrix as crash
from tests.support.memory_trial_store import MemoryTrialStore

from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Curve
from muster.trials.controller import TrialController
from muster.trials.model import CheckpointPolicy
from muster.tune.execution.between_steps import ExperimentSaver
from muster.tune.schedulers import (
    ASHAScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from muster.tune.search.space import uniform

STEPS = 12


class Chain(Curve):
    """Trials whose state is the chain of all steps so far, each with the `x` that it was made with."""

    def begin(self, config):
        return ""

    def advance(self, config, iteration, memory):
        chain = f"{memory}.{iteration}:{config['x']:.4f}"
        return {"loss": config["x"] + 1.0 / iteration, "chain": chain}, chain

    def seconds(self, config, iteration):
        return 60.0


def population(**more):
    asked = {"time_attr": "training_iteration", "perturbation_interval": 3, "seed": 3, "log_config": True}
    return PopulationBasedTraining(hyperparam_mutations={"x": uniform(0, 1)}, **asked, **more)


HALVING = {"time_attr": "training_iteration", "max_t": STEPS, "grace_period": 2, "reduction_factor": 2}
SCHEDULERS = {
    "pbt": population,
    "pbt-synch": lambda: population(synch=True),
    "pbt-often": lambda: population(quantile_fraction=0.5, resample_probability=0.5),
    "stopping": lambda: ASHAScheduler(**HALVING),
    "promotion": lambda: ASHAScheduler(type="promotion", **HALVING),
    "hyperband": lambda: HyperBandScheduler(max_t=9),
    "bohb": lambda: HyperBandForBOHB(max_t=9),
    "median": lambda: MedianStoppingRule("training_iteration", grace_period=2, min_samples_required=2),
}
# A class that saves when it is asked, as often as the scheduler or more; a function that reports them.
KINDS = {
    "class": {"checkpoint_policy": CheckpointPolicy(frequency=3, num_to_keep=2)},
    "class-rarely": {"checkpoint_policy": CheckpointPolicy(num_to_keep=2)},
    "class-at-end": {"checkpoint_policy": CheckpointPolicy(frequency=2, num_to_keep=2, at_end=True)},
    "function": {"costs": Costs(checkpoint_every=3)},
    "function-rarely": {"costs": Costs(checkpoint_every=4)},
}


def experiment(scheduler, kind, **more):
    asked = {"num_samples": 6, "workers": 1, "max_t": STEPS, "seed": 7, **KINDS[kind], **more}
    return SimulatedExperiment(
        curve=Chain(),
        space={"x": uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        make_scheduler=SCHEDULERS[scheduler],
        **asked,
    )


def outcome(state):
    """What an experiment came to: its trials, their ends and checkpoints, and what the scheduler knows."""
    trials = [
        (
            (trial.trial_id, trial.status, trial.config, trial.experiment_tag, trial.num_rows),
            (trial.last_result["training_iteration"], trial.last_result["chain"]),
            [(each.index, each.rows, each.metrics["chain"]) for each in trial.checkpoints],
        )
        for trial in state.index.order
    ]
    return trials, state.plugins.scheduler.save_state()


CELLS = [(scheduler, kind) for scheduler in SCHEDULERS for kind in KINDS]


@pytest.mark.parametrize(("scheduler", "kind"), CELLS)
def test_killed_at_any_commit_it_comes_to_the_same(scheduler, kind):
    asked = experiment(scheduler, kind)
    expected = outcome(asked.run().state)
    commits = crash.recorded(asked, save_every=7)[1 :: step(13)]
    runs = crash.resumed_runs(asked, commits)
    assert [c.number for c, run in zip(commits, runs, strict=True) if outcome(run.state) != expected] == []


def killed_again_and_again(asked, chance):
    """Drivers that come to a few commits each; some cannot save what they begin with."""
    store, lives, has_snapshot = MemoryTrialStore(root="/simulated"), 0, False
    while True:
        run = asked.begin(store)
        saver = ExperimentSaver(run.state, store=store, clock=run.clock)
        controller = TrialController(run.state, engine=run.engine, store=store, clock=run.clock, saver=saver)
        if lives:
            saver.restore(store.load(), run.template.make)
        lives += 1
        if not has_snapshot or chance.random() < 0.5:
            controller.save()
            has_snapshot = True
        saver.is_due = lambda: chance.random() < 0.05
        before, most = store.commits, chance.choice([2, 5, 9, 40])
        while store.commits < before + most:
            if not controller.step(0.0):
                return run.state, lives


@pytest.mark.parametrize("kind", ["class", "class-at-end", "function-rarely"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_killed_again_and_again_it_comes_to_the_same(scheduler, kind):
    asked = experiment(scheduler, kind)
    expected = outcome(asked.run().state)
    for seed in range(length(1, 20)):
        state, lives = killed_again_and_again(asked, random.Random(f"{scheduler} {kind} {seed}"))
        assert lives > 1
        assert outcome(state) == expected, seed
