"""Create random small experiments with faults, one per seed: none may get stuck, whatever its scheduler.

For tests of schedulers; every run must end by itself within the virtual time that its work can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyCosts, FaultyExperiment

from muster.base.rng import Seed, Stream
from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings
from muster.sim.tune.experiment import SimulatedExperiment, SimulatedRun
from muster.sim.tune.trial import Config, Costs, Curve, Metrics
from muster.trials.model import CheckpointPolicy

MOST_S = 60.0  # an iteration, at the usual pace
MOST_STEPS = 100_000


@dataclass(frozen=True)
class RandomCurve(Curve):
    """Gets better, at another pace for every config; some trials return early or at once."""

    early: float  # the share of trials whose code returns before `max_t`
    max_t: int
    is_uniform: bool  # all iterations take the same time, so that many events meet

    def iterations(self, config: Config) -> int | None:
        where = (config["x"] * 7.0) % 1.0
        return int(config["y"] * self.max_t) if where < self.early else None

    def seconds(self, config: Config, iteration: int) -> float:
        return 10.0 if self.is_uniform else 1.0 + (MOST_S - 1.0) * config["y"]

    def metrics(self, config: Config, iteration: int) -> Metrics:
        return {"loss": config["x"] + (1.0 + config["y"]) / iteration}


def random_experiment(scheduler: str, seed: int) -> SimulatedExperiment:
    """Return the experiment of that seed. What it draws does not depend on the scheduler."""
    from muster.tune.search.space import uniform

    stream = Seed(seed).derive("sim.tune.chaos")
    space = {"x": uniform(0.0, 1.0), "y": uniform(0.0, 1.0)}
    max_t = stream.choice([1, 2, 3, 5, 9, 16])
    settings = CandidateSettings(max_t=max_t, eta=stream.choice([2, 3, 4]), seed=seed, space=space)
    early = stream.choice([0.0, 0.0, 0.3, 1.0])
    limited = stream.random() < 0.3
    curve = RandomCurve(early=early, max_t=max_t, is_uniform=stream.random() < 0.5)
    return FaultyExperiment(
        curve=curve,
        space=space,
        metric="loss",
        mode=stream.choice(["min", "max"]),
        num_samples=stream.choice([1, 2, 3, 5, 8, 13, 21]),
        workers=stream.choice([1, 2, 3, 4, 8]),
        make_scheduler=lambda: SCHEDULERS[scheduler].make(settings),
        max_t=max_t,
        max_failures=stream.choice([0, 1, 3]),
        max_concurrent=stream.choice([1, 2, 4]) if limited else 0,
        reuse_actors=stream.random() < 0.3 and scheduler != "resource_changing",  # which refuses that
        checkpoint_policy=_policy(stream),
        costs=_costs(stream, is_function=Seed(seed).derive("sim.tune.chaos.function").random() < 0.3),
        faults=FaultPlan(FaultRates.swarm(seed, hour_s=max_t * MOST_S), seed),
        seed=seed,
        ahead=stream.choice([1, 4, 200]),
    )


def longest_s(experiment: SimulatedExperiment) -> float:
    """Return the most that the work can take: one worker, every start slow, every trial lost at its end."""
    costs, max_t = experiment.costs, experiment.max_t or 1
    per_start = 10.0 * costs.start_s + 60.0 + costs.restore_s + max_t * MOST_S
    per_iteration = 3.0 * MOST_S + costs.save_s + costs.stop_s
    starts = (experiment.max_failures + 1) * (max_t + 1)  # a scheduler may pause a trial at every iteration
    return experiment.num_samples * starts * (per_start + max_t * per_iteration)


def run_to_end(scheduler: str, seed: int) -> str:
    """Run the experiment; return "" when it ended correctly, else what is wrong, exceptions included."""
    experiment = random_experiment(scheduler, seed)
    run = experiment.begin()
    try:
        run.run(MOST_STEPS)
    except Exception as error:
        return f"{scheduler}, seed {seed}: {type(error).__name__}: {error}"
    return "; ".join(f"{scheduler}, seed {seed}: {text}" for text in _problems(experiment, run))


def _problems(experiment: SimulatedExperiment, run: SimulatedRun) -> list[str]:
    facts: list[tuple[bool, Any]] = [
        (run.state.is_finished, f"not over after {run.steps} steps"),
        (
            run.clock.monotonic() <= longest_s(experiment),
            f"took {run.clock.monotonic():g} s, more than its work can take",
        ),
        (
            len(run.state.trials) == experiment.num_samples,
            f"{len(run.state.trials)} trials instead of {experiment.num_samples}",
        ),
        (
            run.engine.worker_capacity._free == run.engine.worker_capacity.whole,
            "a trial still holds its worker",
        ),
        (not run.state.facts.warnings, run.state.facts.warnings),
    ]
    return [str(text) for is_true, text in facts if not is_true]


def _policy(stream: Stream) -> CheckpointPolicy:
    return CheckpointPolicy(
        frequency=stream.choice([0, 0, 1, 3]),
        num_to_keep=stream.choice([None, 1, 2]),
        at_end=stream.random() < 0.3,
    )


def _costs(stream: Stream, *, is_function: bool) -> Costs:
    if stream.random() < 0.3:
        return FaultyCosts(is_function=is_function)
    return FaultyCosts(
        start_s=stream.uniform(0.0, 20.0),
        reuse_s=stream.uniform(0.0, 1.0),
        restore_s=stream.uniform(0.0, 5.0),
        save_s=stream.choice([0.0, 5.0, 100.0]),
        stop_s=stream.choice([0.0, 3.0]),
        checkpoint_every=stream.choice([0, 0, 1]),
        is_function=is_function,
    )
