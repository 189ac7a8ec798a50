"""Shows what `muster up` would start, and what that costs; nothing is asked of any provider."""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text

from muster.base.text import money
from muster.cli.console import HEADING, QUIET, show
from muster.config.schema import ClusterConfig


class PlannedType(NamedTuple):
    """A PlannedType is one line of the plan: a node type, its counts and its price."""

    name: str
    role: str
    least: int
    most: int
    price_per_hour: float | None


def planned_types(config: ClusterConfig) -> list[PlannedType]:
    """Returns the head and the workers, in the order of the file."""
    types = config.available_node_types
    head = types[config.head_type]
    lines = [PlannedType(config.head_type, "head", 1, 1, head.price_per_hour)]
    for name, entry in types.items():
        most = min(config.type_max_workers(name), config.max_workers)
        if most:
            lines.append(PlannedType(name, "workers", entry.min_workers, most, entry.price_per_hour))
    return lines


def price_range(config: ClusterConfig) -> tuple[float, float] | None:
    """Returns dollars per hour, at first and at most; None where a type has no price."""
    lines = planned_types(config)
    if any(line.price_per_hour is None for line in lines):
        return None
    least = sum(line.least * (line.price_per_hour or 0.0) for line in lines)
    head, room = lines[0].price_per_hour or 0.0, config.max_workers
    most = head
    for line in sorted(lines[1:], key=lambda one: -(one.price_per_hour or 0.0)):
        count = min(line.most, room)
        most, room = most + count * (line.price_per_hour or 0.0), room - count
    return least, most


def show_plan(config: ClusterConfig) -> None:
    """Prints the plan of `--dry-run`."""
    where = {"process": "this computer", "local": "your hosts"}.get(
        config.provider.type, config.provider.type
    )
    show(Text(f"{config.cluster_name}: would be started on {where}", style=HEADING))
    for line in planned_types(config):
        count = str(line.least) if line.least == line.most else f"{line.least} to {line.most}"
        price = "no price given" if line.price_per_hour is None else f"{money(line.price_per_hour)}/h each"
        show(Text(f"  {count:>9} {line.role:<7} {line.name}   {price}"))
    prices = price_range(config)
    if prices is None:
        show(Text("  the price is not known: price_per_hour of every type would say it", style=QUIET))
    else:
        show(Text(f"  {money(prices[0])}/h at first, at most {money(prices[1])}/h"))
