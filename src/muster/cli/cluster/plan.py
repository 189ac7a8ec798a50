"""Show what `muster up` would start, and what that costs; nothing is asked of any provider."""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text

from muster.base.text import money
from muster.cli.console import HEADING, QUIET, show
from muster.config.prices import PriceTable, offers_of_type
from muster.config.schema import ClusterConfig
from muster.providers.kind import kind_of

HOURS_PER_MONTH = 730


class PlannedType(NamedTuple):
    """One line of the plan: a node type, its counts and its price."""

    name: str
    role: str
    least: int
    most: int
    price_per_hour: float | None  # of its cheapest offer, where it has any
    dearest: float | None  # of its dearest offer


def planned_types(config: ClusterConfig, prices: PriceTable | None = None) -> list[PlannedType]:
    """Return the head and the workers, in the order of the file."""
    types = config.available_node_types
    head = types[config.head_type].price_per_hour  # it is launched as its type says, not from an offer
    if head is None:
        head = _prices(config, config.head_type, prices)[0]
    lines = [PlannedType(config.head_type, "head", 1, 1, head, head)]
    for name, entry in types.items():
        most = min(config.type_max_workers(name), config.max_workers)
        if most:
            lines.append(
                PlannedType(name, "workers", entry.min_workers, most, *_prices(config, name, prices))
            )
    return lines


def _prices(config: ClusterConfig, name: str, prices: PriceTable | None) -> tuple[float | None, float | None]:
    """Return the least and the most that a machine of a type costs; None where that is not known."""
    entry = config.available_node_types[name]
    machine = config.rules.machine_type(entry.node_config or {})
    offers = [offer.price_per_hour for offer in offers_of_type(config, name, machine, prices)]
    known = [price for price in offers or [entry.price_per_hour] if price is not None]
    if len(known) < len(offers or [None]):
        return None, None
    return min(known), max(known)


def price_range(config: ClusterConfig, prices: PriceTable | None = None) -> tuple[float, float] | None:
    """Return dollars per hour, at first and at most; None where a type has no price."""
    lines = planned_types(config, prices)
    if any(line.price_per_hour is None for line in lines):
        return None
    least = sum(line.least * (line.price_per_hour or 0.0) for line in lines)
    most, room = lines[0].price_per_hour or 0.0, config.max_workers
    for line in sorted(lines[1:], key=lambda one: -(one.dearest or 0.0)):
        count = min(line.most, room)
        most, room = most + count * (line.dearest or 0.0), room - count
    return least, most


def show_plan(config: ClusterConfig, prices: PriceTable | None = None) -> None:
    """Print the plan of `--dry-run`."""
    where = kind_of(config).place(config)
    show(Text(f"{config.cluster_name}: would be started on {where}", style=HEADING))
    for line in planned_types(config, prices):
        count = str(line.least) if line.least == line.most else f"{line.least} to {line.most}"
        if line.price_per_hour is None or line.dearest is None:
            price_text = "no price given"
        elif line.price_per_hour == line.dearest:
            price_text = f"{money(line.price_per_hour)}/h each"
        else:
            price_text = f"{money(line.price_per_hour)} to {money(line.dearest)}/h each"
        show(Text(f"  {count:>9} {line.role:<7} {line.name}   {price_text}"))
    found = price_range(config, prices)
    if found is None:
        show(Text("  the price is unknown: set price_per_hour for every type", style=QUIET))
        return
    show(Text(f"  {money(found[0])}/h at first, at most {money(found[1])}/h"))
    if found[1]:
        month = [money(one * HOURS_PER_MONTH) for one in found]
        show(Text(f"  a month of that: {month[0]}, at most {month[1]}", style=QUIET))
