"""Measures how often a budget is exceeded in random worlds with faults, by what the cloud charges.

Each world has a cluster with faults of every kind, tuners, and money that is limited: for the cluster
(`muster.budget`), for experiments (`TuneConfig(cost_budget=...)`), or for both. Nothing of our own accounting
is used: machines cost from their purchase to their end, by the terms of their offers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as struct_replace

from bench import table
from muster.base.ids import CloudId
from muster.base.rng import Stream
from muster.cluster.model import NodeKind
from muster.cluster.plan import Reason
from muster.cluster.spending import Budget
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.checkers import Check
from muster.sim.cluster.cloud import CloudMachine
from muster.sim.cluster.options import RunOptions
from muster.sim.cluster.run import quiet
from muster.sim.joint.seed_run import JointSeedRun, draw_joint_options
from muster.sim.joint.tuner import JointExperiment
from muster.trials.template import Limits

WORLDS, QUICK_WORLDS = 1000, 40
LEAST_UNIT_S = 60.0  # where a machine is billed by the second: what clouds bill at least
CALM_S = 1800.0  # how long a world is watched after its faults


def unit_usd(machine: CloudMachine) -> float:
    """Returns one billing unit of a machine."""
    offer, unit_s = machine.offer, LEAST_UNIT_S
    if offer is not None:
        unit_s = max(unit_s, offer.billing_minimum_s, offer.billing_granularity_s)
    return machine.price_per_hour * unit_s / 3600.0


@dataclass
class BudgetWatch:
    """A BudgetWatch follows what a cloud charges; one that it is not to end any more is counted apart."""

    refused: dict[CloudId, float] = field(default_factory=dict)  # since when its end was asked for in vain
    over_usd: float = 0.0  # the most beyond the total of a period
    allowed_usd: float = 0.0  # one billing unit of each machine of the period
    is_used_up: bool = False  # no machine could be bought, or all had to go
    over_rate_usd: float = 0.0  # beyond the limit per hour, summed up over time
    _asked: int = 0
    _since: float | None = None
    _before_usd: float = 0.0  # charged before the running period
    _seen_at: float = 0.0
    _since_s: float = 0.0  # when the running period began

    def __call__(self, cluster: SimulatedCluster) -> Iterator[str]:
        """Looks at the cloud after a tick; yields nothing, because it only measures."""
        self._note_refused(cluster)
        budget, plan = cluster.options.spec.budget, cluster.store.newest
        if budget is not None and plan is not None:
            self.is_used_up |= any(verdict.reason is Reason.BUDGET for verdict in plan.verdicts)
            since = plan.memory.budget_period.since
            if since != self._since:
                self._before_usd = self._charged(cluster) if self._since is not None else 0.0
                self._since_s = cluster.world.time if self._since is not None else 0.0
                self._since = since
            self._check_total(cluster, budget)
            self._check_rate(cluster, budget)
            self._seen_at = cluster.world.time
        yield from ()

    def _note_refused(self, cluster: SimulatedCluster) -> None:
        for at, cloud_id in cluster.cloud.terminated[self._asked :]:
            machine = cluster.cloud.machines.get(cloud_id)
            if machine is not None and machine.exists and not machine.leaving:
                self.refused.setdefault(cloud_id, at)
        self._asked = len(cluster.cloud.terminated)

    def _counted_s(self, machine: CloudMachine, now: float) -> float:
        """Returns until when a machine counts."""
        end = now if machine.ended_at is None else machine.ended_at
        return min(end, self.refused.get(machine.cloud_id, end))

    def _workers(self, cluster: SimulatedCluster) -> list[CloudMachine]:
        return [m for m in cluster.cloud.machines.values() if m.kind is NodeKind.WORKER]

    def _charged(self, cluster: SimulatedCluster) -> float:
        """Returns what was charged so far; the head's cost to the end of the last worker: it has to stay."""
        now, workers = cluster.world.time, self._workers(cluster)
        last = max((self._counted_s(one, now) for one in workers), default=0.0)
        heads = [m for m in cluster.cloud.machines.values() if m.kind is NodeKind.HEAD]
        return sum(_cost(one, self._counted_s(one, now)) for one in workers) + sum(
            _cost(one, min(last, self._counted_s(one, now))) for one in heads
        )

    def _check_total(self, cluster: SimulatedCluster, budget: Budget) -> None:
        if budget.total is None:
            return
        over = self._charged(cluster) - self._before_usd - budget.total
        if over > self.over_usd + 1e-9:
            now = cluster.world.time
            paid = [m for m in cluster.cloud.machines.values() if self._counted_s(m, now) > self._since_s]
            self.over_usd, self.allowed_usd = over, sum(map(unit_usd, paid))

    def _check_rate(self, cluster: SimulatedCluster, budget: Budget) -> None:
        if budget.per_hour is None:
            return
        now = cluster.world.time
        counted = [m for m in cluster.cloud.alive() if m.cloud_id not in self.refused]
        rate = sum(machine.price_per_hour for machine in counted)
        if rate > budget.per_hour + 1e-9:
            self.over_rate_usd += (rate - budget.per_hour) * (now - self._seen_at) / 3600.0


def _cost(machine: CloudMachine, until: float) -> float:
    return replace(machine, ended_at=max(until, machine.created_at)).cost(until)


def _drawn(draw: Stream, low: float, high: float) -> float:
    """Draws an amount of money; small ones are as likely as large ones."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))), 5)


class BudgetRun(JointSeedRun):
    """A BudgetRun is one world in which money is limited."""

    def __init__(self, seed: int) -> None:
        self.watch = BudgetWatch()
        self._places: dict[str, dict[CloudId, CloudMachine]] = {}  # experiment -> machines of its trials
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

    def _watch_tuners(self, cluster: SimulatedCluster) -> Iterator[str]:
        """Compares what the places of trials cost with the budget of their experiment."""
        for tuner in self.group.tuners:
            name, budget = tuner.asked.name, tuner.asked.experiment.limits.cost_budget
            if budget is None:
                continue
            places = self._places.setdefault(name, {})
            nodes = (node for placement in tuner.engine.placements() for node in placement.nodes)
            places |= {node.machine.cloud_id: node.machine for node in nodes}
            over = tuner.engine.held_usd() - budget
            if over > 0.0:
                self.over[name] = over, sum(map(unit_usd, places.values()))
        yield from ()

    def excesses(self) -> list[tuple[float, float]]:
        """Returns every excess of a limit with what is allowed for it: one billing unit per machine."""
        watch, machines = self.watch, self.cluster.cloud.machines.values()
        found = [(watch.over_usd, watch.allowed_usd), *self.over.values()]
        if watch.over_rate_usd:
            found.append((watch.over_rate_usd, sum(map(unit_usd, machines))))
        return [each for each in found if each[0] > 0.0]


@dataclass(frozen=True)
class BudgetSummary:
    """A BudgetSummary is what 1,000 worlds amount to."""

    worlds: int = 0
    used_up: int = 0  # in which a limit was reached
    exceeded: tuple[int, ...] = ()  # seeds
    most_units: float = 0.0  # the largest excess, in billing units of its machines
    with_refusals: int = 0  # worlds in which a machine's end was refused or lost
    refused: int = 0  # such machines

    @classmethod
    def of(cls, seeds: Iterable[int]) -> BudgetSummary:
        found = cls()
        for seed in seeds:
            run = BudgetRun(seed)
            run.to_end()
            found = found.after(seed, run)
        return found

    def after(self, seed: int, run: BudgetRun) -> BudgetSummary:
        excesses, refused = run.excesses(), len(run.watch.refused)
        units = [over / allowed if allowed else math.inf for over, allowed in excesses]
        ended = any(tuner.run.state.ended_by for tuner in run.group.tuners)
        return BudgetSummary(
            worlds=self.worlds + 1,
            used_up=self.used_up + (run.watch.is_used_up or ended),
            exceeded=(*self.exceeded, seed) if any(unit > 1.0 for unit in units) else self.exceeded,
            most_units=max(self.most_units, *units, 0.0),
            with_refusals=self.with_refusals + bool(refused),
            refused=self.refused + refused,
        )


def run(*, quick: bool) -> dict[str, float]:
    """Runs the worlds, prints what they cost, returns the figures."""
    quiet()
    found = BudgetSummary.of(range(1, (QUICK_WORLDS if quick else WORLDS) + 1))
    rows = [
        ["worlds with faults", str(found.worlds)],
        ["a limit was reached", str(found.used_up)],
        ["exceeded by more than a billing unit per machine", str(len(found.exceeded))],
        ["largest excess, in billing units of its machines", f"{found.most_units:.2f}"],
        ["worlds with a machine whose end was refused (counted apart)", str(found.with_refusals)],
        ["such machines", str(found.refused)],
    ]
    table.show("budgets of clusters and experiments, by what the cloud charges", ["", ""], rows)
    if found.exceeded:
        table.note(f"exceeded in the worlds {', '.join(map(str, found.exceeded))}")
    return {
        "budget_exceeded": float(len(found.exceeded)),
        "budget_reached": float(found.used_up),
        "budget_most_units": found.most_units,
    }
