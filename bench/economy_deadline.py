"""Measure how often a deadline is met where a plan that knows everything could meet it: `deadline_met`.

A problem is an experiment, a cluster and a deadline, all drawn. The exact plan knows every step time and buys
on demand at once, within the limits of the cluster; it is searched for over the machines that it may buy, and
each candidate runs in the simulator. Ours is the real tuner and autoscaler, which know none of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

from bench import table
from bench.economy_budget import quiet
from bench.economy_scenario import PacedCurve, Scenario, assign_pools
from muster.base.resources import Resources
from muster.base.rng import Seed, Stream
from muster.cluster.budget_policy import ForecastPolicy
from muster.cluster.model import (
    ClusterSpec,
    LaunchLimits,
    NodeType,
    Objective,
    Offer,
    Timeouts,
    health_key,
)
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue
from muster.sim.cluster.options import HEAD_TYPE, RunOptions, head_type
from muster.sim.joint.cloud import BootTime, JointCluster
from muster.sim.joint.run import JointRun
from muster.sim.joint.tuner import JointExperiment, TunerGroup
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import Limits
from muster.tune.schedulers import ASHAScheduler

PROBLEMS_IN_ALL, QUICK_PROBLEMS = 1000, 40
SPARE = 0.1  # of the deadline, that the exact plan must leave
MOST_FACTOR = 4.0  # of the best plan's time: the longest deadline
LONGEST_S = 86_400.0
TICK_S, PUBLISH_S = 20.0, 20.0
# name: GPUs, speed, $ per hour on demand
TYPES: Mapping[str, tuple[int, float, float]] = {
    "slow": (1, 1.0, 0.53),
    "fast": (1, 1.8, 1.01),
    "double": (2, 1.5, 1.70),
    "quad": (4, 1.5, 3.91),
}
SPEEDS = {name: speed for name, (_, speed, _) in TYPES.items()}
_PROBLEM = PROBLEMS["power_law"]


@dataclass(frozen=True)
class DeadlineProblem:
    """One experiment on one cluster; `factor` times the best plan is its deadline."""

    seed: int
    experiment: SimulatedExperiment
    spec: ClusterSpec
    boot: BootTime
    factor: float
    kind: str

    @classmethod
    def drawn(cls, seed: int) -> DeadlineProblem:
        draw = Seed(seed).derive("bench.deadline")
        kind = draw.choice(("fifo", "asha"))
        boot = BootTime(median_s=draw.choice((60.0, 90.0, 120.0)))
        return cls(
            seed=seed,
            kind=kind,
            boot=boot,
            experiment=_experiment(draw, kind, seed),
            spec=_spec(draw, boot),
            factor=math.exp(draw.uniform(0.0, math.log(MOST_FACTOR))),
        )

    def cluster(self) -> JointCluster:
        types = self.spec.node_types
        charged = {t.name: t.price_per_hour or 0.0 for t in types}
        charged |= {health_key(t.name, o.name): o.price_per_hour or 0.0 for t in types for o in t.offers}
        sells = Catalogue(types={t.name: t for t in types}, prices=charged, reports_offers=True)
        options = RunOptions(spec=self.spec, catalogue=sells, tick_s=TICK_S)
        cluster = JointCluster(Seed(self.seed), options, Faults.none())
        cluster.cloud.boot_time = self.boot
        keys = [health_key(t.name, o.name) for t in types for o in t.offers if o.market == "spot"]
        if keys:
            pools = assign_pools(keys, Scenario().series(), Seed(self.seed), Seed(self.seed))
            cluster.cloud.open_pools(Seed(self.seed), pools)
        return cluster

    # -- the plan that knows everything -----------------------------------------------------------

    def best_plan_s(self) -> float:
        """Return how long the best of the plans takes, from the moment of the first purchase."""
        return min(self.planned_s(machines) for machines in self._candidates())

    def _candidates(self) -> Iterator[dict[str, int]]:
        """Yield what to buy: as many as there is work for, of each type alone and of all, fastest first.

        Fewer machines are never done sooner, so that the number is not searched for.
        """
        by_speed = sorted(self.spec.node_types[1:], key=lambda each: -SPEEDS[each.name])
        for types in ([one] for one in by_speed):
            yield self._filled(types)
        if len(by_speed) > 1:
            yield self._filled(by_speed)

    def _filled(self, types: list[NodeType]) -> dict[str, int]:
        room, trials, found = (self.spec.max_nodes or 0) - 1, self.experiment.num_samples, {}
        for known in types:
            places = TYPES[known.name][0]
            count = max(0, min(room, known.max_nodes, math.ceil(trials / places)))
            found[known.name] = count
            room, trials = room - count, trials - count * places
        return {name: count for name, count in found.items() if count}

    def planned_s(self, machines: Mapping[str, int]) -> float:
        """Run the experiment on machines that are launched on demand from the first tick on."""
        cluster = self.cluster()
        group = TunerGroup(cluster, speed_of=SPEEDS.__getitem__)
        group.begin(JointExperiment(name="plan", experiment=self.experiment, publishes=False))
        draw = Seed(self.seed).derive("bench.deadline.boots")
        for name, count in machines.items():
            for asked_s in self._purchases(count):
                cluster.world.after(asked_s + self.boot.draw(draw), lambda name=name: _join(cluster, name))
        while not group.is_over and cluster.world.run_next(LONGEST_S):
            group.note_capacity()
            group.handle_news()
        return group.tuners[0].ended_at or math.inf

    def _purchases(self, count: int) -> list[float]:
        """Return when the machines of a type can be asked for, within the limits of the cluster."""
        limits, asked, now = self.spec.limits, [], 0.0
        while len(asked) < count:
            running = sum(at + self.boot.expected_s <= now for at in asked)
            most = math.ceil(max(1.0, min(limits.upscaling_speed * max(running, 1), limits.max_concurrent)))
            asked += [now] * most
            now += TICK_S
        return asked[:count]

    # -- ours -------------------------------------------------------------------------------------

    def ours(self, deadline_s: float) -> JointRun:
        """Run tuner and autoscaler, which are told the deadline."""
        limited = replace(self.experiment, limits=Limits(deadline=deadline_s))
        asked = JointExperiment(name="ours", experiment=limited)
        run = JointRun(self.cluster(), [asked], speed_of=SPEEDS.__getitem__, publish_s=PUBLISH_S)
        while not run.is_over:
            run.step(LONGEST_S)
        return run


def _join(cluster: JointCluster, name: str) -> None:
    machine = cluster.cloud.create(name)
    machine.up = True
    cluster.join(machine)


def _experiment(draw: Stream, kind: str, seed: int) -> SimulatedExperiment:
    max_t = draw.choice((1, 3, 9, 20)) if kind == "fifo" else draw.choice((9, 27, 81))
    trial_s = math.exp(draw.uniform(math.log(240.0), math.log(1500.0)))
    curve = PacedCurve(_PROBLEM.curve(seed), trial_s / max_t, draw.choice((0.0, 0.2, 0.4)), seed)
    return SimulatedExperiment(
        curve=curve,
        space=_PROBLEM.space(),
        metric=_PROBLEM.metric,
        mode=_PROBLEM.mode,
        num_samples=round(math.exp(draw.uniform(math.log(8.0), math.log(64.0)))),
        make_scheduler=lambda: ASHAScheduler(max_t=max_t, grace_period=1) if kind == "asha" else None,
        max_t=max_t,
        resources=PlacementGroupFactory([{"GPU": 1, "CPU": 1}]),
        costs=Costs(start_s=2.0, save_s=5.0, restore_s=20.0, checkpoint_every=1),
        max_failures=-1,
        seed=seed,
    )


def _spec(draw: Stream, boot: BootTime) -> ClusterSpec:
    names = draw.sample(tuple(TYPES), draw.randint(1, 3))
    with_spot = draw.random() < 0.5
    return ClusterSpec(
        cluster_name="deadline",
        head_node_type=HEAD_TYPE,
        node_types=(head_type(0), *(_node_type(draw, name, with_spot=with_spot) for name in names)),
        max_nodes=draw.choice((9, 17, 33, 65)),
        idle_timeout_s=300.0,
        objective=Objective.COST,
        limits=LaunchLimits(upscaling_speed=draw.choice((1.0, 10.0)), max_concurrent=draw.choice((10, 50))),
        forecasts=ForecastPolicy(boot_s=boot.expected_s),
        timeouts=Timeouts(drain_deadline_s=60.0),
    )


def _node_type(draw: Stream, name: str, *, with_spot: bool) -> NodeType:
    gpus, _, price = TYPES[name]
    offers = [Offer(price_per_hour=price, billing_minimum_s=60.0)]
    for zone in ("a", "b")[: draw.randint(1, 2) if with_spot else 0]:
        spot_price = round(price * draw.uniform(0.25, 0.6), 3)
        offers.append(Offer(zone=zone, market="spot", price_per_hour=spot_price, billing_minimum_s=60.0))
    return NodeType(
        name=name,
        resources=Resources.of({"CPU": 4.0 * gpus, "GPU": float(gpus)}),
        max_nodes=draw.choice((8, 16, 64)),
        price_per_hour=price,
        speed=SPEEDS[name],
        machine_type=name,
        launch_hash=name,
        offers=tuple(offers),
    )


@dataclass(frozen=True)
class DeadlineResult:
    """One problem that the exact plan could solve."""

    seed: int
    kind: str
    factor: float
    trials: int
    steps: int
    plan_s: float
    deadline_s: float
    is_met: bool
    end_s: float
    machines: int

    def __str__(self) -> str:
        return (
            f"{self.seed} ({self.kind}, {self.trials} trials of {self.steps} steps, "
            f"plan {self.plan_s:.0f} s, deadline {self.deadline_s:.0f} s)"
        )


def solved(seed: int) -> DeadlineResult | None:
    """Run one problem; None when the exact plan could not meet its deadline with a tenth to spare."""
    problem = DeadlineProblem.drawn(seed)
    if problem.factor * (1.0 - SPARE) < 1.0:
        return None
    plan_s = problem.best_plan_s()
    deadline_s = plan_s * problem.factor
    run = problem.ours(deadline_s)
    (tuner,) = run.tuners
    state, end_s = tuner.run.state, tuner.ended_at or math.inf
    is_whole = not state.ended_by and len(state.trials) == problem.experiment.num_samples
    launched = sum(machine.node_type != HEAD_TYPE for machine in run.cluster.cloud.machines.values())
    return DeadlineResult(
        seed=seed,
        kind=problem.kind,
        factor=problem.factor,
        trials=problem.experiment.num_samples,
        steps=problem.experiment.max_t or 0,
        plan_s=plan_s,
        deadline_s=deadline_s,
        is_met=is_whole and end_s <= deadline_s,
        end_s=end_s,
        machines=launched,
    )


def run(*, quick: bool) -> dict[str, float]:
    """Run the problems on all processors, print what came of them, returns the figures."""
    seeds = range(1, (QUICK_PROBLEMS if quick else PROBLEMS_IN_ALL) + 1)
    with ProcessPoolExecutor(initializer=quiet) as pool:
        found = [one for one in pool.map(solved, seeds, chunksize=5) if one is not None]
    rows = []
    for kind in ("fifo", "asha"):
        for low, high in ((1.0, 1.5), (1.5, 2.5), (2.5, MOST_FACTOR)):
            some = [one for one in found if one.kind == kind and low <= one.factor < high]
            if some:
                rows.append([kind, f"{low:g} to {high:g}", str(len(some)), *_row(some)])
    columns = ["", "deadline / best plan", "could", "met", "our time / deadline", "machines"]
    table.show(f"deadlines, {len(seeds)} problems, {len(found)} of which a plan could meet", columns, rows)
    missed = [one for one in found if not one.is_met]
    if missed:
        table.note(f"missed: {'; '.join(map(str, missed))}")
    return {"deadline_met": 1.0 - len(missed) / len(found), "deadline_could": float(len(found))}


def _row(some: list[DeadlineResult]) -> list[str]:
    return [
        str(sum(one.is_met for one in some)),
        f"{median(one.end_s / one.deadline_s for one in some):.2f}",
        f"{median(one.machines for one in some):.0f}",
    ]
