"""Check answers of the planner: necessary conditions, counted from the problem's own numbers.

A benchmark that does not check the answers measures how fast wrong ones are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench.workloads import Bag, DemandData, Workload
from muster.cluster.planner.request import ItemOutcome, Packing

SLACK = 1e-6


def problems(workload: Workload, packing: Packing) -> list[str]:
    """Return everything that is wrong with the answer."""
    available = {node.id: node.available for node in workload.nodes}
    total = {node.id: node.total for node in workload.nodes}
    return [
        *uncounted(workload.demands, packing.demands, "demand"),
        *uncounted(workload.constraints, packing.constraints, "constraint"),
        *uncounted_gangs(workload, packing),
        *overfull(workload.demands, packing.demands, available),
        *overfull(workload.constraints, packing.constraints, total),
        *overbought(workload, packing),
        *beyond_limits(workload, packing.launch),
    ]


def placed_in_all(outcome: ItemOutcome) -> int:
    places = (outcome.placed, outcome.coming, outcome.launched)
    return sum(sum(place.values()) for place in places) + outcome.unplaced


def uncounted(asked: Sequence[DemandData], found: Sequence[ItemOutcome], what: str) -> Iterator[str]:
    """Check that every request is somewhere, exactly once."""
    counts = {outcome.index: placed_in_all(outcome) for outcome in found}
    for index, demand in enumerate(asked):
        if counts.get(index) != demand.count:
            yield f"{what} {index}: {demand.count} asked, {counts.get(index)} accounted for"


def uncounted_gangs(workload: Workload, packing: Packing) -> Iterator[str]:
    """Check that every gang is placed as a whole or not at all."""
    found = {outcome.index: outcome for outcome in packing.gangs}
    for index, gang in enumerate(workload.gangs):
        outcome = found.get(index)
        if outcome is None or placed_in_all(outcome) != len(gang.bundles):
            yield f"gang {gang.id}: its bundles are not accounted for"
        elif outcome.unplaced not in (0, len(gang.bundles)):
            yield f"gang {gang.id}: torn apart"


def overfull(
    asked: Sequence[DemandData], found: Iterable[ItemOutcome], room: Mapping[str, Bag]
) -> Iterator[str]:
    """Check that no existing node holds more than it has."""
    used = sums((key, asked[o.index].shape, count) for o in found for key, count in o.placed.items())
    for key, bag in used.items():
        if any(quantity > room[key].get(name, 0.0) + SLACK for name, quantity in bag.items()):
            yield f"node {key}: {dict(bag)} on {room[key]}"


def overbought(workload: Workload, packing: Packing) -> Iterator[str]:
    """Check that all new machines of one type together hold what was put on them, per kind of demand."""
    sizes = {node_type.name: node_type.resources for node_type in workload.node_types}
    for asked, found in ((workload.demands, packing.demands), (workload.constraints, packing.constraints)):
        used = sums((name, asked[o.index].shape, count) for o in found for name, count in o.launched.items())
        for node_type, bag in used.items():
            launched = packing.launch.get(node_type, 0)
            if any(q > sizes[node_type].get(name, 0.0) * launched + SLACK for name, q in bag.items()):
                yield f"{launched} new {node_type} cannot hold {dict(bag)}"


def beyond_limits(workload: Workload, launch: Mapping[str, int]) -> Iterator[str]:
    """Check that neither a type nor the cluster grows beyond its maximum."""
    after = Counter(node.type for node in workload.nodes) + Counter(launch)
    for node_type in workload.node_types:
        if after[node_type.name] > node_type.max_workers:
            yield f"{after[node_type.name]} {node_type.name}, at most {node_type.max_workers} allowed"
    if workload.max_num_nodes is not None and after.total() > workload.max_num_nodes:
        yield f"{after.total()} nodes, at most {workload.max_num_nodes} allowed"


def sums(entries: Iterable[tuple[str, Bag, int]]) -> dict[str, Counter[str]]:
    """Return what was put where, added up by resource."""
    found: dict[str, Counter[str]] = {}
    for key, shape, count in entries:
        bag = found.setdefault(key, Counter())
        for name, quantity in shape.items():
            bag[name] += quantity * count
    return found
