"""Read the price file (`muster.prices`) and turn it, with `offers` of the cluster file, into offers.

Called by `to_spec` and `FileSpecSource`. The file is CSV: a row per machine type and zone, a column per
market.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from muster.cluster.model import Offer
from muster.config.check import nearest, shortened
from muster.config.document import Document, dotted, printable
from muster.config.schema import ClusterConfig, Market, NodeTypeConfig, OfferConfig
from muster.errors import ConfigError

MARKET_COLUMNS = {"on_demand": "on-demand", "spot": "spot", "reserved": "reserved"}
NEEDED_COLUMNS = ("type", "zone", "on_demand", "spot")
MAX_PRICE = 1_000_000.0


class PriceRow(Struct, frozen=True, kw_only=True):
    """What machines of one type cost in one zone, by market; one without a price is absent."""

    region: str
    zone: str
    prices: Mapping[str, float]


class PriceTable(Struct, frozen=True):
    """A price file: the rows of each machine type, in the order of the file."""

    file: str
    rows: Mapping[str, tuple[PriceRow, ...]]


def load_prices(config: ClusterConfig, cluster_file: Path) -> PriceTable | None:
    """Return the price file of a cluster file; None when it has none."""
    path = price_file(config, cluster_file)
    return None if path is None else parse_prices(Document.text_of(path), str(path))


def price_file(config: ClusterConfig, cluster_file: Path) -> Path | None:
    """Return the path of the price file; a relative one starts where the cluster file is."""
    written = config.muster.prices
    return None if written is None else cluster_file.parent / Path(written).expanduser()


def parse_prices(text: str, file: str) -> PriceTable:
    """Return the table of a CSV text; ConfigError names file and line of what cannot be used."""
    lines = csv.reader(text.removeprefix("\ufeff").split("\n"), strict=True)
    found: dict[str, dict[str, PriceRow]] = {}
    try:
        columns = _columns(next(lines, []), file)
        for cells in lines:
            if any(cell.strip() for cell in cells):
                name, row = _row(columns, cells, file, lines.line_num)
                if row.zone in found.setdefault(name, {}):
                    said = f"{name} in zone {row.zone} is there twice; keep one of the rows"
                    raise ConfigError(said, file=file, line=lines.line_num)
                found[name][row.zone] = row
    except csv.Error as problem:
        message = f"is not CSV: {problem}; write values without quotes, between commas"
        raise ConfigError(message, file=file, line=lines.line_num) from None
    return PriceTable(file, {name: tuple(rows.values()) for name, rows in found.items()})


def _columns(names: list[str], file: str) -> dict[str, int]:
    columns = {name.strip().lower(): position for position, name in enumerate(names)}
    if len(columns) != len(names):
        raise ConfigError("names a column twice", file=file, line=1, fix="keep one of them")
    for name in NEEDED_COLUMNS:
        if name not in columns:
            needed = ", ".join(NEEDED_COLUMNS)
            message = f"has no column {name!r}; the first line names the columns, {needed} among them"
            raise ConfigError(message, file=file, line=1)
    return columns


def _row(columns: Mapping[str, int], cells: list[str], file: str, line: int) -> tuple[str, PriceRow]:
    if len(cells) != len(columns):
        message = f"has {len(cells)} values, but there are {len(columns)} columns; write one for each"
        raise ConfigError(message, file=file, line=line)
    values = {name: cells[position].strip() for name, position in columns.items()}
    for name in ("type", "zone"):
        if not values[name]:
            raise ConfigError(f"the column {name!r} is empty", file=file, line=line, fix="fill it in")
    fault = zone_fault(values["zone"])
    if fault:
        raise ConfigError(f"zone {fault}", file=file, line=line)
    prices = {
        market: _price(values[column], column, file, line)
        for column, market in MARKET_COLUMNS.items()
        if values.get(column)
    }
    return values["type"], PriceRow(region=values.get("region", ""), zone=values["zone"], prices=prices)


def _price(text: str, column: str, file: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_PRICE:  # NaN fails every comparison
        message = (
            f"{column} {shortened(text)} is not a price; write $ per hour, or nothing where there is none"
        )
        raise ConfigError(message, file=file, line=line)
    return value


def zone_fault(zone: str) -> str:
    """Return what is wrong with the name of a zone: it is part of the offer's name."""
    if "/" in zone or not zone.isprintable() or any(letter.isspace() for letter in zone):
        return f"{shortened(zone)} cannot be used; write it without spaces and '/'"
    return ""


def check_offers(document: Document, config: ClusterConfig) -> None:
    """Check what the offers of node types mean; their types were checked before."""
    for name, entry in config.available_node_types.items():
        seen: dict[tuple[str, Market], int] = {}
        for position, offer in enumerate(entry.offers):
            path = ("available_node_types", name, "offers", position)
            fault = zone_fault(offer.zone)
            if fault:
                raise document.error((*path, "zone"), fault)
            first = seen.setdefault((offer.zone, offer.market), position)
            if first != position:
                what = f"zone {shortened(offer.zone)} and market {offer.market.value} are those of"
                raise document.error(path, f"{what} {dotted((*path[:-1], first))}; keep one")


def check_budget(document: Document, config: ClusterConfig) -> None:
    """Check that a budget limits something and can be held; types that a price file has are checked later.

    One that launches nothing is allowed: it is a way to stop.
    """
    budget, path = config.muster.budget, ("muster", "budget")
    if budget is None:
        return
    if budget.per_hour is None and budget.total is None:
        raise document.error(path, "limits nothing; give per_hour, total or both")
    if budget.period is not None and budget.total is None:
        raise document.error((*path, "period"), "has no total to spend in it; add total")
    names = config.available_node_types if config.muster.prices is None else ()
    used = [name for name in names if config.type_max_workers(name) or name == config.head_type]
    unpriced = [name for name in used if not _is_priced(config.available_node_types[name])]
    if unpriced:
        raise document.error(path, unheld(unpriced))


def unheld(unpriced: Sequence[str]) -> str:
    """Return why a budget cannot be held: nobody knows what machines of these types cost."""
    more = f" and {len(unpriced) - 5} more" if len(unpriced) > 5 else ""
    names = ", ".join(map(printable, unpriced[:5]))
    return f"cannot be held without the price of {names}{more}; give price_per_hour there, or muster.prices"


def _is_priced(entry: NodeTypeConfig) -> bool:
    if entry.price_per_hour is not None:
        return True
    is_free = (each.price_per_hour is not None or each.market is Market.RESERVED for each in entry.offers)
    return bool(entry.offers) and all(is_free)


def offers_of_type(
    config: ClusterConfig, name: str, machine_type: str, prices: PriceTable | None
) -> tuple[Offer, ...]:
    """Return the offers of a node type: those of the cluster file, else all that the price file has."""
    entry = config.available_node_types[name]
    rows = () if prices is None else _rows_of(prices, name, machine_type)
    if entry.offers:
        known = {(row.zone, market): price for row in rows for market, price in row.prices.items()}
        return tuple(_written(entry, offer, known) for offer in entry.offers)
    return tuple(
        Offer(zone=row.zone, market=market, price_per_hour=price)
        for row in rows
        if _is_here(config, row)
        for market, price in row.prices.items()
    )


def _written(entry: NodeTypeConfig, offer: OfferConfig, known: Mapping[tuple[str, str], float]) -> Offer:
    """An offer without a price costs what the price file says, else what its type costs."""
    price = offer.price_per_hour
    if price is None:  # what is reserved is paid for anyway
        otherwise = 0.0 if offer.market is Market.RESERVED else entry.price_per_hour
        price = known.get((offer.zone, offer.market.value), otherwise)
    return Offer(
        zone=offer.zone,
        market=offer.market.value,
        price_per_hour=price,
        max_nodes=offer.max_workers,
        billing_minimum_s=offer.billing_minimum_s,
        billing_granularity_s=offer.billing_granularity_s,
    )


def _is_here(config: ClusterConfig, row: PriceRow) -> bool:
    """A cluster is in one region, and in the zones that its provider is given, where it is given any."""
    provider = config.provider
    if provider.region and row.region and provider.region != row.region:
        return False
    zones = [zone.strip() for zone in (provider.availability_zone or "").split(",") if zone.strip()]
    return not zones or row.zone in zones


def check_prices(config: ClusterConfig, prices: PriceTable, machine_types: Mapping[str, str]) -> None:
    """Raise ConfigError when no node type has a row here: then the file, or a name in it, is wrong."""
    rows = [row for name, machine in machine_types.items() for row in _rows_of(prices, name, machine)]
    if any(_is_here(config, row) for row in rows):
        return
    names = [machine or name for name, machine in machine_types.items()]
    if rows:
        places = sorted({place for row in rows for place in (row.region, row.zone) if place})
        more = f" and {len(places) - 8} more" if len(places) > 8 else ""
        known = f"it knows {', '.join(places[:8])}{more}"
        message = f"has rows for node types, but none in the region and zones of `provider`; {known}"
    else:
        hint = nearest(names[0], prices.rows) if names else "describe node types first"
        message = f"has no row for any node type ({', '.join(names[:5])}); {hint}"
    raise ConfigError(message, path="muster.prices", file=prices.file)


def _rows_of(prices: PriceTable, name: str, machine_type: str) -> tuple[PriceRow, ...]:
    return prices.rows.get(machine_type) or prices.rows.get(name, ())
