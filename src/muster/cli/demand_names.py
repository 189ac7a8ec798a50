"""What the subject of a verdict asks for, in words: a verdict has the id, the runtime's report the shape."""

from __future__ import annotations

from collections.abc import Sequence

from muster.cluster.model import Demand, Gang, LabelOperator, RuntimeReport, Selector
from muster.cluster.plan import Subject, Verdict


def shape_of(verdict: Verdict, runtime: RuntimeReport | None) -> str:
    """`{CPU: 2}`, `STRICT_SPREAD of 3 x {CPU: 1}`; "" when the report no longer has it."""
    if runtime is None:
        return ""
    if verdict.subject is Subject.GANG:
        gang = next((g for g in runtime.gangs if g.gang_id == verdict.subject_id), None)
        return "" if gang is None else gang_words(gang)
    if verdict.subject is Subject.CONSTRAINT:
        demands: Sequence[Demand] = [d for c in runtime.constraints for d in c.demands if d.count > 0]
    else:
        demands = [demand for demand in runtime.demands if demand.count > 0]
    found = _by_id(verdict.subject_id, demands)
    return "" if found is None else demand_words(found)


def demand_words(demand: Demand) -> str:
    """One request of the demand."""
    words = f"{{{demand.shape.positive()}}}"
    alternatives = [_selector(selector) for selector in demand.selectors if selector]
    if alternatives:
        words += " where " + " or else ".join(alternatives)
    if demand.avoid is not None:
        words += f" away from {demand.avoid[0]}"
    return words


def gang_words(gang: Gang) -> str:
    """The first of its options; the others are named by their number."""
    bundles: dict[str, int] = {}
    for bundle in gang.options[0] if gang.options else ():
        words = demand_words(bundle)
        bundles[words] = bundles.get(words, 0) + bundle.count
    listed = ", ".join(f"{count} x {words}" for words, count in bundles.items())
    others = f" (or {len(gang.options) - 1} other forms)" if len(gang.options) > 1 else ""
    return f"{gang.strategy.value} of {listed}{others}"


def _by_id(subject_id: str, demands: Sequence[Demand]) -> Demand | None:
    """A demand is known by its name, or by its place in the list when it has none."""
    named = next((demand for demand in demands if demand.name == subject_id), None)
    if named is not None or not subject_id.isdigit():
        return named
    index = int(subject_id)
    return demands[index] if index < len(demands) else None


def _selector(selector: Selector) -> str:
    signs = {LabelOperator.IN: "is", LabelOperator.NOT_IN: "is not"}
    return " and ".join(
        f"{match.key} {signs[match.operator]} {' or '.join(match.values)}" for match in selector
    )
