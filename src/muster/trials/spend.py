"""Add up what trials cost, from the price of the place that each of them holds; the module does no I/O.

A place costs its share of a node: the largest share of any resource, so that trials which fill a node in one
resource pay for all of it. Without a price nothing is counted: a cost is then unknown, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum

from muster.base.resources import EMPTY, Resources
from muster.trials.model import Trial

COST_KEY = "cost_usd"  # in every result of a trial whose price is known: what it has cost so far
HOUR_S = 3600.0
NOTE_S = 0.25  # at least so often, the time until which trials have cost something is written down
UNSEEN_S = 0.5  # charged after the last time that a killed driver wrote down: its trials outlived it a little


def share_of(needs: Resources, whole: Resources) -> float:
    """Return the largest share of a resource; what the node does not have is left out.

    Example:
        >>> share_of(Resources.of(CPU=2, GPU=1), Resources.of(CPU=16, GPU=4))
        0.25
    """
    shares = [units / total for name, units in needs.items() if (total := whole.units(name))]
    return max(shares, default=0.0)


def share_of_bundles(bundles: Sequence[Mapping[str, float]], node: Resources) -> float:
    """Return the share of a node that a trial holds; bundles that need several nodes count on such nodes.

    Example:
        >>> share_of_bundles([{"CPU": 1}, {"CPU": 8}, {"CPU": 8}], Resources.of(CPU=8))
        2.125
    """
    sizes = [Resources.of(bundle) for bundle in bundles]
    together = EMPTY
    for size in sizes:
        together = together.plus(size)
    if node.holds(together):
        return share_of(together, node)
    return sum(share_of(size, node) for size in sizes)


def cost_of(trial: Trial, at: float) -> float | None:
    """Return the $ of one trial up to a time, in all its attempts; None when a price was not known."""
    if trial.is_unpriced:
        return None
    if trial.usd_per_hour is None:
        return trial.cost_usd
    return (trial.cost_usd or 0.0) + trial.usd_per_hour * max(0.0, at - trial.priced_at) / HOUR_S


def total_cost(costs: Iterable[float | None]) -> float | None:
    """Return the sum of those that are known; None when none is."""
    known = [cost for cost in costs if cost is not None]
    return fsum(known) if known else None


class SpendBook:
    """Keeps the costs of trials, and what all of them cost per hour now."""

    def __init__(self) -> None:
        self.is_used = False  # a price was known at some time
        self.seen_at = float("-inf")  # the newest time that is known: a driver that was killed ran until then
        self._ended_usd = 0.0
        self.open: dict[str, Trial] = {}  # trials whose place has a price
        # Of all open ones together: $ per hour, and $ per hour times the second (from `_origin`) since when.
        self._rate = self._shift = self._origin = 0.0

    @property
    def rate(self) -> float:
        """The $ per hour of all trials that hold a place."""
        return self._rate if self.open else 0.0

    def spent(self, at: float) -> float:
        """Return the $ of all trials up to a time; take the same time for any number of them."""
        running = self._rate * (at - self._origin) - self._shift if self.open else 0.0
        return self._ended_usd + running / HOUR_S

    def price(self, trial: Trial, at: float, usd_per_hour: float) -> None:
        """Count the place of a trial from a time on; what it cost until then stays."""
        self.is_used = True
        if trial.usd_per_hour is not None:
            self.close(trial, at)
        trial.usd_per_hour, trial.priced_at = usd_per_hour, at
        if not self.open:
            self._rate = self._shift = 0.0
            self._origin = at
        self.open[trial.trial_id] = trial
        self._rate += usd_per_hour
        self._shift += usd_per_hour * (at - self._origin)

    def close(self, trial: Trial, at: float) -> bool:
        """End what a trial holds; returns whether that changed what is known of its cost."""
        rate = trial.usd_per_hour
        if rate is None:
            return False
        cost = rate * max(0.0, at - trial.priced_at) / HOUR_S
        self.open.pop(trial.trial_id, None)
        self._rate -= rate
        self._shift -= rate * (trial.priced_at - self._origin)
        self._ended_usd += cost
        trial.cost_usd, trial.usd_per_hour = (trial.cost_usd or 0.0) + cost, None
        return True

    def leave_unknown(self, trial: Trial) -> bool:
        """An attempt ended whose price nobody knew; returns whether that is news."""
        is_news = self.is_used and not trial.is_unpriced
        trial.is_unpriced |= self.is_used
        return is_news

    def load(self, trials: Iterable[Trial]) -> None:
        """Take over trials of a snapshot, with what they hold."""
        kept = list(trials)
        self._ended_usd = fsum(trial.cost_usd or 0.0 for trial in kept)
        self.is_used = any(
            trial.cost_usd is not None or trial.usd_per_hour is not None or trial.is_unpriced
            for trial in kept
        )
        for trial in kept:
            if (rate := trial.usd_per_hour) is not None:
                trial.usd_per_hour = None
                self.price(trial, trial.priced_at, rate)
