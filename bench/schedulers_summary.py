"""Summarise the scheduler benchmark over all problems: ours beside Ray's, and promotion beside stopping.

"The same best value within noise" is tested with a rank test per problem: ours is worse where the two-sided
Mann-Whitney U test over the seeds gives p < 0.01 and Ray's has the better ranks. The rule is the same for
every pair. p is not corrected for the number of problems, which would only make the rule milder.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from bench import rank_test, schedulers_plot, table
from bench.schedulers_run import SchedulerRun

SIGNIFICANCE = 0.01
Board = Mapping[str, Mapping[str, list[SchedulerRun]]]  # problem -> candidate -> one run per seed
PAIRS = (
    ("promotion_over_stopping", "asha_promotion", "asha"),
    *((f"over_ray.{name}", name, f"ray:{name}") for name in ("asha", "hyperband", "median", "pbt")),
)


class Verdict(NamedTuple):
    """Compares two candidates on one problem, by the values they end with."""

    label: str
    problem: str
    medians: tuple[float, float]  # ours, the other's
    ranks: rank_test.Ranks  # the chance that ours is better, and p
    is_outside: bool  # our median is beyond the other's quartiles, on the bad side

    @property
    def differs(self) -> int:
        """Return 1: ours is better, -1: worse, 0: no difference that chance could not make."""
        if self.ranks.p >= SIGNIFICANCE:
            return 0
        return 1 if self.ranks.chance > 0.5 else -1


def summary(board: Board) -> dict[str, float]:
    """Print the verdicts; return the figures."""
    figures: dict[str, float] = {}
    verdicts: list[Verdict] = []
    for label, mine, other in PAIRS:
        both = {
            name: (found[mine], found[other]) for name, found in board.items() if {mine, other} <= {*found}
        }
        if both:
            found = [verdict(label, problem, *runs) for problem, runs in both.items()]
            figures |= _figures(label, list(both.values()), found)
            verdicts += found
    if verdicts:
        _show(verdicts)
    return figures


def verdict(label: str, problem: str, mine: list[SchedulerRun], other: list[SchedulerRun]) -> Verdict:
    ends = [[one.values[-1] for one in runs] for runs in (mine, other)]
    _, middle, _ = schedulers_plot.quantiles(mine, "hours", math.inf)
    _, its_middle, its_high = schedulers_plot.quantiles(other, "hours", math.inf)
    return Verdict(label, problem, (middle, its_middle), rank_test.compared(*ends), middle > its_high)


def _figures(
    label: str, both: list[tuple[list[SchedulerRun], list[SchedulerRun]]], found: list[Verdict]
) -> dict[str, float]:
    figures = {
        f"time_ratio.{label}": _mean([_ratio(one, two, "hours") for one, two in both]),
        f"node_h_ratio.{label}": _mean([_ratio(one, two, "node_hours") for one, two in both]),
        f"used_node_h_ratio.{label}": _mean([_used(one) / _used(two) for one, two in both]),
        f"worse_problems.{label}": float(sum(one.differs < 0 for one in found)),
        f"better_problems.{label}": float(sum(one.differs > 0 for one in found)),
        f"outside_quartiles.{label}": float(sum(one.is_outside for one in found)),
    }
    for one in found:
        figures[f"chance_better.{label}.{one.problem}"] = one.ranks.chance
        figures[f"p_value.{label}.{one.problem}"] = one.ranks.p
    return figures


def _show(verdicts: list[Verdict]) -> None:
    words = {1: "better", 0: "the same", -1: "WORSE"}
    rows = [
        (
            one.label,
            one.problem,
            f"{one.medians[0]:.4f}",
            f"{one.medians[1]:.4f}",
            f"{one.ranks.chance:.2f}",
            f"{one.ranks.p:.3f}",
            words[one.differs],
            "beyond" if one.is_outside else "within",
        )
        for one in verdicts
    ]
    columns = ("", "problem", "ours", "other", "P(ours better)", "p", "ours is", "other's quartiles")
    title = f"the value in the end: Mann-Whitney U test over the seeds, two-sided, p < {SIGNIFICANCE}"
    table.show(title, columns, rows)


def _ratio(mine: list[SchedulerRun], other: list[SchedulerRun], axis: str) -> float:
    """Return what ours needs to be as good as both get in the end, over what the other needs."""
    ratios = []
    for one, two in zip(mine, other, strict=True):
        target = max(one.values[-1], two.values[-1])
        ratios.append(one.reach(axis, target) / two.reach(axis, target))
    return statistics.median(ratios)


def _used(runs: list[SchedulerRun]) -> float:
    return statistics.median(one.used_node_h for one in runs)


def _mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
