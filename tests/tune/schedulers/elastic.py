"""Random experiments whose trials grow and shrink, in virtual time, and what must be true of each step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyExperiment

from muster.base.resources import Resources
from muster.sim.tune.experiment import SimulatedExperiment, SimulatedRun
from muster.sim.tune.trial import Costs
from muster.trials.placement_group import PlacementGroupFactory as Pgf
from muster.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from muster.tune.schedulers.resource_changing_scheduler import (
    DistributeResources,
    DistributeResourcesToTopJob,
)
from muster.tune.search.space import uniform

ONE, GANG = Pgf([{"CPU": 1}]), Pgf([{"CPU": 1}, {"CPU": 0.5, "GPU": 0.5}])
BASES = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=9, reduction_factor=2),
    "promotion": lambda: ASHAScheduler(max_t=9, reduction_factor=2, type="promotion"),
    "hyperband": lambda: HyperBandScheduler(max_t=8, reduction_factor=2),
    "median": lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=1, hard_stop=False),
    "pbt": lambda: population(synch=False),
    "pbt_synch": lambda: population(synch=True),
}
JUMPS = ("pbt", "pbt_synch")  # trials continue from the checkpoints of others


def population(synch):
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"x": uniform(0.0, 1.0)},
        log_config=False,
        synch=synch,
        seed=1,
    )


class Whims:
    """A user's function without any sense: too much, too little, and never the same."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, tune_controller, trial, result, scheduler):
        draw = random.Random(f"{self._seed} {trial.trial_id} {result['training_iteration']}")
        answers = [None, {"cpu": draw.choice([0.5, 1, 2, 3, 50])}, Pgf([{"CPU": 1}] * draw.randint(1, 6))]
        return draw.choice(answers)


def elastic(seed: int, base: str, *, faults: FaultRates | None = None) -> SimulatedExperiment:
    """The experiment of that seed; without `faults` nothing is lost except answers to saves."""
    draw = random.Random(seed)
    resources = draw.choice([ONE, GANG])
    functions: list[Callable[[], Any]] = [
        lambda: DistributeResources(add_bundles=resources is GANG),
        lambda: DistributeResources(add_bundles=True, increase_by={"CPU": 1}, increase_by_times=2),
        lambda: DistributeResourcesToTopJob(add_bundles=True, reserve_resources={"CPU": 1}),
        lambda: Whims(seed),
    ]
    allocate = draw.choice(functions)
    plan = faults or FaultRates(lost_saves=0.3 if base in ("fifo", "asha") else 0.0, stragglers=0.3)
    return FaultyExperiment(
        curve=lambda config, t: {"score": round(config["x"], 1) - 1.0 / t},
        space={"x": uniform(0.0, 1.0)},
        metric="score",
        mode="max",
        num_samples=draw.randint(1, 9),
        make_scheduler=lambda: ResourceChangingScheduler(BASES[base](), allocate()),
        workers=draw.randint(1, 6),
        resources=resources,
        max_t=draw.choice([6, 12]),
        max_failures=0 if faults is None else draw.choice([0, 1, 3]),
        max_concurrent=draw.choice([0, 0, 2]),
        costs=Costs(
            start_s=draw.choice([0.0, 0.5]),
            save_s=draw.choice([0.0, 0.3, 2.5]),
            stop_s=draw.choice([0.0, 0.7]),
            checkpoint_every=draw.choice([0, 0, 2]),
        ),
        faults=FaultPlan(plan, seed),
        seed=seed,
        ahead=draw.choice([None, 1, 4]),
    )


class Watched:
    """A life whose every step is looked at."""

    def __init__(self, asked: SimulatedExperiment) -> None:
        self.life: SimulatedRun = asked.begin()
        self.iterations: dict[str, list[int]] = {}
        self.sizes: dict[str, list[Resources]] = {}  # at each start
        self._fire, self.life.state.plugins.hooks = self.life.state.plugins.hooks.fire, self

    def fire(self, hook: str, **info: Any) -> None:
        self._fire(hook, **info)
        if hook == "on_trial_result":
            known = self.iterations.setdefault(info["trial"].trial_id, [])
            known.append(info["result"]["training_iteration"])
        if hook == "on_trial_start":
            trial = info["trial"]
            self.sizes.setdefault(trial.trial_id, []).append(self.life.state.index.size(trial))

    def run(self) -> Watched:
        """Raise when it is stuck, or when more is used than there is."""
        index, engine, idle = self.life.state.index, self.life.engine, 0
        while self.life.step():
            assert index.capacity.holds(index.used), f"{index.used} of {index.capacity}"
            assert not engine._queue, "the engine was given more than it has room for"
            idle = idle + 1 if engine.is_idle else 0
            assert idle < 5, f"stuck: { ({t.trial_id: t.state for t in index.live.values()}) }"
            assert self.life.steps < 20_000, "no end"
        return self

    @property
    def changes(self) -> int:
        return sum(len(set(sizes)) - 1 for sizes in self.sizes.values())
