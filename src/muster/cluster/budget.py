"""Hold a cluster's budget: what is spent, what is promised, and whether one more machine fits; pure.

A machine is promised up to the earliest moment at which it can be released: its work is drained, the cloud
ends it, and what its offer bills at least is paid. What is promised is as good as spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from muster.cluster.budget_policy import Budget
from muster.cluster.cost import billed_s, cost_of, spend_so_far
from muster.cluster.model import ClusterSpec, Instance, Offer
from muster.cluster.snapshot import BudgetPeriod, Memory
from muster.cluster.states import ON_CLOUD, InstanceState

ENDING_S = 60.0  # from the end of a drain until the cloud has ended the machine
SLACK_S = 30.0  # until the next tick has been carried out
_PERIODS = {3600.0: "this hour", 86_400.0: "this day", 604_800.0: "this week", 2_592_000.0: "these 30 days"}
_PROMISED = (*ON_CLOUD, InstanceState.REQUESTED)


class BudgetState(Struct, kw_only=True):
    """What is left of a budget while a tick buys; `take` reserves."""

    budget: Budget
    spent: float  # $ in the running period
    promised: float  # $ that machines which exist or were asked for will cost at least from now on
    per_hour: float  # $ per hour of those machines
    boot_s: float
    giveback_s: float
    refused: int = 0

    @property
    def left(self) -> float:
        """Return the $ that may still be promised; inf where only the price per hour is limited."""
        return math.inf if self.budget.total is None else self.budget.total - self.spent - self.promised

    def take(self, price_per_hour: float | None, offer: Offer | None = None) -> bool:
        """Reserve one machine; False when it does not fit, or when nobody knows what it costs."""
        if price_per_hour is None:
            self.refused += 1
            return False
        least = self.least_cost(price_per_hour, offer)
        most_per_hour = math.inf if self.budget.per_hour is None else self.budget.per_hour
        if least > self.left + 1e-9 or self.per_hour + price_per_hour > most_per_hour + 1e-9:
            self.refused += 1
            return False
        self.promised += least
        self.per_hour += price_per_hour
        return True

    def least_cost(self, price_per_hour: float, offer: Offer | None = None) -> float:
        """Return the $ of one more machine if it is given up as soon as it has come."""
        return price_per_hour * billed_s(offer, self.boot_s + self.giveback_s) / 3600.0

    @property
    def is_used_up(self) -> bool:
        """Return whether the machines must go now for the budget to be held."""
        return self.left < self.per_hour * SLACK_S / 3600.0

    @property
    def is_overdue(self) -> bool:
        """Return whether the time in which work could be saved is over, since the machines must go."""
        return self.left < -self.per_hour * (self.giveback_s - ENDING_S) / 3600.0

    def text(self) -> str:
        parts = []
        if self.budget.total is not None:
            period_s = self.budget.period_s
            within = "" if period_s is None else f" of {_PERIODS.get(period_s, f'these {period_s:g} s')}"
            spent = (
                f"${self.spent:.2f} spent and ${self.promised:.2f} reserved of ${self.budget.total:g}{within}"
            )
            parts += [spent, f"${max(0.0, self.left):.2f} left"]
        if self.budget.per_hour is not None:
            parts.append(f"${self.per_hour:.2f} of ${self.budget.per_hour:g} per hour")
        return ", ".join(parts)


def budget_state(
    spec: ClusterSpec, instances: Iterable[Instance], memory: Memory, now: float, boot_s: float
) -> BudgetState | None:
    """Return the state of the cluster's budget; None when it has none.

    Records may have ended in the tick under way: what they cost is not in memory yet.
    """
    if spec.budget is None:
        return None
    records = list(instances)
    live = [record for record in records if record.state in _PROMISED]
    ended = sum(cost_of(record, now) for record in records if record.state is InstanceState.TERMINATED)
    spent = spend_so_far(live, memory, now) + ended
    period = period_at(spec.budget, memory, spent, now)
    giveback_s = spec.timeouts.drain_deadline_s + ENDING_S
    return BudgetState(
        budget=spec.budget,
        spent=max(0.0, spent - period.spent_before),
        promised=sum(_promised(record, now, boot_s, giveback_s, spec.timeouts.request_s) for record in live),
        per_hour=sum(record.price_per_hour or 0.0 for record in live),
        boot_s=boot_s,
        giveback_s=giveback_s,
    )


def period_at(budget: Budget, memory: Memory, spent: float, now: float) -> BudgetPeriod:
    """Return the period that runs at `now`: a new one when the last is over, or none has begun."""
    period = memory.budget_period
    if period.since is None:
        return BudgetPeriod(since=now, spent_before=0.0 if budget.period_s is None else spent)
    if budget.period_s is None or now - period.since < budget.period_s:
        return period
    passed = math.floor((now - period.since) / budget.period_s)
    return BudgetPeriod(since=period.since + passed * budget.period_s, spent_before=spent)


def _promised(record: Instance, now: float, boot_s: float, giveback_s: float, request_s: float) -> float:
    """Return the $ that the record's machine will cost from now on if it is given up now.

    A machine may exist since it was asked for, whenever a list first shows it.
    """
    since = _may_exist_since(record, request_s)
    price = record.price_per_hour or 0.0
    if record.state is InstanceState.REQUESTED:
        waited_s = 0.0 if since is None else now - since
        return price * billed_s(record.offer, max(boot_s, waited_s) + giveback_s) / 3600.0
    arrived = next((change.at for change in record.history if change.state in ON_CLOUD), now)
    unseen_s = 0.0 if since is None else max(0.0, arrived - since)
    return max(0.0, cost_of(record, now + giveback_s) - cost_of(record, now)) + price * unseen_s / 3600.0


def _may_exist_since(record: Instance, request_s: float) -> float | None:
    """Return when the machine was asked for; None when we did not.

    A request that nothing answered in time may have been heard all the same; one that was refused was not.
    """
    found: float | None = None
    for change, following in zip(record.history, (*record.history[1:], None), strict=True):
        if change.state is InstanceState.REQUESTED:
            found = change.at if found is None else found
            is_refused = following is not None and following.state is InstanceState.QUEUED
            if is_refused and following is not None and following.at - change.at <= request_s:
                found = None
    return found
