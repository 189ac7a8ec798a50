"""Measure how often a budget is exceeded in random worlds with faults, by what the cloud charges.

Each world has a cluster with faults of every kind, tuners, and money that is limited: for the cluster
(`muster.budget`), for experiments (`TuneConfig(cost_budget=...)`), or for both. Nothing of our own accounting
is used: machines cost from their purchase to their end, by the terms of their offers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as struct_replace
from tests.simulation.checkers import Check
from tests.simulation.cluster import FaultyCluster
from tests.simulation.joint.seed_run import JointSeedRun, draw_joint_options

from bench import table
from muster.base.ids import CloudId
from muster.base.rng import Stream
from muster.cluster.budget_policy import Budget
from muster.cluster.model import NodeKind
from muster.cluster.plan import Reason
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import RunOptions
from muster.sim.joint.tuner import JointExperiment
from muster.trials.budget import BUDGET
from muster.trials.template import Limits

WORLDS, QUICK_WORLDS = 1000, 40
LEAST_UNIT_S = 60.0  # where a machine is billed by the second: what clouds bill at least
CALM_S = 1800.0  # how long a world is watched after its faults


def quiet() -> None:
    """Silence what both halves say about faults, which are expected here."""
    logging.getLogger("muster").setLevel(logging.CRITICAL)


def unit_usd(machine: CloudMachine) -> float:
    """Return one billing unit of a machine."""
    offer, unit_s = machine.offer, LEAST_UNIT_S
    if offer is not None:
        unit_s = max(unit_s, offer.billing_minimum_s, offer.billing_granularity_s)
    return machine.price_per_hour * unit_s / 3600.0


@dataclass
class BudgetWatch:
    """Follows what a cloud charges; one that it is not to end any more is counted apart."""

    refused: dict[CloudId, float] = field(default_factory=dict)  # since when its end was asked for in vain
    over_usd: float = 0.0  # the most beyond the total of a period
    allowed_usd: float = 0.0  # one billing unit of each machine of the period
    is_used_up: bool = False  # no machine could be launched, or all had to go
    over_rate_usd: float = 0.0  # beyond the limit per hour, summed up over time
    headless_usd: float = 0.0  # charged while there was no head that could have ended anything
    _heads: int = 0
    _is_headless: bool = False
    _last_usd: float = 0.0
    _asked: int = 0
    _since: float | None = None
    _before_usd: float = 0.0  # charged before the running period
    _seen_at: float = 0.0
    _since_s: float = 0.0  # when the running period began

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        """Look at the cloud after a tick; yields nothing, because it only measures."""
        self._note_refused(cluster)
        self._note_headless(cluster)
        budget, plan = cluster.options.spec.budget, cluster.store.newest
        if budget is not None and plan is not None:
            self.is_used_up |= any(verdict.reason is Reason.BUDGET for verdict in plan.verdicts)
            since = plan.memory.budget_period.since
            if since != self._since:
                before_usd = self._charged(cluster) - self.headless_usd
                self._before_usd = before_usd if self._since is not None else 0.0
                self._since_s = cluster.world.time if self._since is not None else 0.0
                self._since = since
            self._check_total(cluster, budget)
            self._check_rate(cluster, budget)
            self._seen_at = cluster.world.time
        yield from ()

    def _note_refused(self, cluster: FaultyCluster) -> None:
        for at, cloud_id in cluster.cloud.terminated[self._asked :]:
            machine = cluster.cloud.machines.get(cloud_id)
            if machine is not None and machine.exists and not machine.leaving:
                self.refused.setdefault(cloud_id, at)
        self._asked = len(cluster.cloud.terminated)

    def _note_headless(self, cluster: FaultyCluster) -> None:
        """What is charged from the loss of a head to the first plan of the next one is counted apart."""
        now_usd = self._charged(cluster)
        if len(cluster.restored_at) != self._heads:
            self._heads, self._is_headless = len(cluster.restored_at), True
        if self._is_headless:
            self.headless_usd += now_usd - self._last_usd
            self._is_headless = cluster.plan is None
        self._last_usd = now_usd

    def _counted_s(self, machine: CloudMachine, now: float) -> float:
        """Return until when a machine counts."""
        end = now if machine.ended_at is None else machine.ended_at
        return min(end, self.refused.get(machine.cloud_id, end))

    def _workers(self, cluster: FaultyCluster) -> list[CloudMachine]:
        return [m for m in cluster.cloud.machines.values() if m.kind is NodeKind.WORKER]

    def _charged(self, cluster: FaultyCluster) -> float:
        """Return what was charged so far; the head's cost to the end of the last worker: it has to stay."""
        now, workers = cluster.world.time, self._workers(cluster)
        last = max((self._counted_s(one, now) for one in workers), default=0.0)
        heads = [m for m in cluster.cloud.machines.values() if m.kind is NodeKind.HEAD]
        return sum(_cost(one, self._counted_s(one, now)) for one in workers) + sum(
            _cost(one, min(last, self._counted_s(one, now))) for one in heads
        )

    def _check_total(self, cluster: FaultyCluster, budget: Budget) -> None:
        if budget.total is None:
            return
        over = self._charged(cluster) - self.headless_usd - self._before_usd - budget.total
        if over > self.over_usd + 1e-9:
            now = cluster.world.time
            paid = [m for m in cluster.cloud.machines.values() if self._counted_s(m, now) > self._since_s]
            self.over_usd, self.allowed_usd = over, sum(map(unit_usd, paid))

    def _check_rate(self, cluster: FaultyCluster, budget: Budget) -> None:
        if budget.per_hour is None:
            return
        now = cluster.world.time
        counted = [m for m in cluster.cloud.alive() if m.cloud_id not in self.refused]
        rate = sum(machine.price_per_hour for machine in counted)
        if rate > budget.per_hour + 1e-9:
            self.over_rate_usd += (rate - budget.per_hour) * (now - self._seen_at) / 3600.0


def _cost(machine: CloudMachine, until: float) -> float:
    """Return what a machine costs up to a time, at the price at which it was asked for.

    A price that changes in the second in which a machine is made is that of the next one.
    """
    price = machine.price_per_hour if machine.offer is None else machine.offer.price_per_hour
    ended_at = max(until, machine.created_at)
    return replace(machine, ended_at=ended_at, price_per_hour=price or 0.0).cost(until)


def _drawn(draw: Stream, low: float, high: float) -> float:
    """Draw an amount of money; small ones are as likely as large ones."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))), 5)


class BudgetRun(JointSeedRun):
    """One world in which money is limited."""

    def __init__(self, seed: int) -> None:
        self.watch = BudgetWatch()
        self.over: dict[str, tuple[float, float]] = {}  # experiment -> $ beyond its budget, $ allowed
        super().__init__(seed)

    def draw_options(self) -> RunOptions:
        draw = self.seed.derive("bench.budget")
        options, budget = draw_joint_options(self.seed), None
        if draw.random() < 0.75:
            budget = Budget(
                total=_drawn(draw, 0.02, 1.0) if draw.random() < 0.8 else None,
                per_hour=_drawn(draw, 0.3, 8.0) if draw.random() < 0.5 else None,
                period_s=draw.choice((None, None, 300.0)),
            )
        spec = struct_replace(options.spec, budget=budget)
        return replace(options, spec=spec, calm_s=CALM_S, waves=1)

    def checks(self) -> tuple[Check, ...]:
        return self.watch, self._watch_tuners

    def _begin(self, asked: JointExperiment) -> None:
        draw = self.seed.derive(f"bench.budget.{asked.name}")
        if self.options.spec.budget is None or draw.random() < 0.5:
            limits = Limits(cost_budget=_drawn(draw, 0.0005, 0.1))
            asked = replace(asked, experiment=replace(asked.experiment, limits=limits))
        super()._begin(asked)

    def _watch_tuners(self, cluster: FaultyCluster) -> Iterator[str]:
        """Compare what the places of trials cost with the budget of their experiment."""
        for tuner in self.group.tuners:
            name, budget = tuner.asked.name, tuner.asked.experiment.limits.cost_budget
            if budget is None:
                continue
            over = tuner.engine.held_usd() - budget
            if over > 0.0:
                self.over[name] = over, sum(map(unit_usd, tuner.engine.work.machines.values()))
        yield from ()

    def excesses(self) -> list[tuple[float, float]]:
        """Return every excess of a limit with what is allowed for it: one billing unit per machine."""
        watch, machines = self.watch, self.cluster.cloud.machines.values()
        found = [(watch.over_usd, watch.allowed_usd), *self.over.values()]
        if watch.over_rate_usd:
            found.append((watch.over_rate_usd, sum(map(unit_usd, machines))))
        return [each for each in found if each[0] > 0.0]


@dataclass(frozen=True)
class BudgetOutcome:
    """What came of one world."""

    seed: int
    is_reached: bool  # a limit was reached
    units: float  # the largest excess, in billing units of its machines
    refused: int  # machines whose end was refused or lost
    headless_usd: float

    @property
    def is_exceeded(self) -> bool:
        return self.units > 1.0

    @classmethod
    def of(cls, seed: int) -> BudgetOutcome:
        run = BudgetRun(seed)
        run.to_end()
        units = [over / allowed if allowed else math.inf for over, allowed in run.excesses()]
        ended = any(tuner.run.state.ended_by == BUDGET for tuner in run.group.tuners)
        return cls(
            seed=seed,
            is_reached=run.watch.is_used_up or ended,
            units=max(units, default=0.0),
            refused=len(run.watch.refused),
            headless_usd=run.watch.headless_usd,
        )


def run(*, quick: bool) -> dict[str, float]:
    """Run the worlds on all processors, print what they cost, returns the figures."""
    seeds = range(1, (QUICK_WORLDS if quick else WORLDS) + 1)
    with ProcessPoolExecutor(initializer=quiet) as pool:
        found = list(pool.map(BudgetOutcome.of, seeds, chunksize=5))
    exceeded = [str(one.seed) for one in found if one.is_exceeded]
    reached, most = sum(one.is_reached for one in found), max(one.units for one in found)
    rows = [
        ["worlds with faults", str(len(found))],
        ["a limit was reached", str(reached)],
        ["exceeded by more than a billing unit per machine", str(len(exceeded))],
        ["largest excess, in billing units of its machines", f"{most:.2f}"],
        [
            "worlds with a machine whose end was refused (counted apart)",
            str(sum(one.refused > 0 for one in found)),
        ],
        ["such machines", str(sum(one.refused for one in found))],
        [
            "$ while a head was lost and none could act (counted apart)",
            f"{sum(one.headless_usd for one in found):.2f}",
        ],
    ]
    table.show("budgets of clusters and experiments, by what the cloud charges", ["", ""], rows)
    if exceeded:
        table.note(f"exceeded in the worlds {', '.join(exceeded)}")
    return {
        "budget_exceeded": float(len(exceeded)),
        "budget_reached": float(reached),
        "budget_most_units": most,
    }
