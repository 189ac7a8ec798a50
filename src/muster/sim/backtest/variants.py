"""Makes variants of a recorded configuration: other files, prices, objectives, markets and idle timeouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from muster.base.text import short_duration
from muster.cluster.model import ClusterSpec, NodeType, Objective, Offer
from muster.config.document import Document
from muster.config.prices import PriceRow, PriceTable, parse_prices
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kind import load_config, load_spec
from muster.sim.backtest.replay import Variant
from muster.sim.backtest.spot import PoolSeries, read_spot

AS_RECORDED = "as recorded"
Specs = tuple[tuple[float, ClusterSpec], ...]


@dataclass(frozen=True, kw_only=True)
class VariantOptions:
    """VariantOptions are what is to be compared; every combination of those given is a variant."""

    clusters: tuple[Path, ...] = ()
    prices: Path | None = None
    spot: Path | None = None
    objectives: tuple[Objective, ...] = ()
    markets: tuple[str, ...] = ()
    idle_timeouts_s: tuple[float, ...] = ()


def variants_of(recorded: Sequence[tuple[float, ClusterSpec]], options: VariantOptions) -> list[Variant]:
    """Returns the recorded configuration, then every combination; ConfigError for files that are wrong."""
    table = (
        None
        if options.prices is None
        else parse_prices(Document.text_of(options.prices), str(options.prices))
    )
    spot = () if options.spot is None else read_spot(options.spot)
    own: Specs = tuple(recorded)
    found = [Variant(name=AS_RECORDED, specs=own)]
    for base, specs in _bases(own, options, table):
        changes = product(
            options.objectives or (None,), options.markets or (None,), options.idle_timeouts_s or (None,)
        )
        for objective, market, idle_s in changes:
            words, changed = [base], specs
            if objective is not None:
                words.append(f"objective {objective.value}")
                changed = tuple((at, replace(spec, objective=objective)) for at, spec in changed)
            if market is not None:
                words.append(market)
                changed = tuple((at, only_market(spec, market)) for at, spec in changed)
            if idle_s is not None:
                words.append(f"idle {short_duration(idle_s)}")
                changed = tuple((at, _with_idle(spec, idle_s)) for at, spec in changed)
            found += _named(", ".join(words), changed, spot, options, own)
    return found


def _named(
    name: str, specs: Specs, spot: tuple[PoolSeries, ...], options: VariantOptions, own: Specs
) -> Iterator[Variant]:
    if options.spot is not None:
        yield Variant(name=f"{name}, {options.spot.name}", specs=specs, spot=spot)
    elif specs != own:
        yield Variant(name=name, specs=specs)


def _bases(own: Specs, options: VariantOptions, table: PriceTable | None) -> Iterator[tuple[str, Specs]]:
    """Yields the recorded configuration with other prices, and every file, with them as well."""
    if not options.clusters:
        if table is None:
            yield AS_RECORDED, own
        else:
            priced = tuple((at, with_prices(spec, table, options.markets)) for at, spec in own)
            yield table_name(table), priced
    for path in options.clusters:
        if table is None:
            yield path.name, ((own[0][0], load_spec(path)),)
        else:
            yield f"{path.name}, {table_name(table)}", ((own[0][0], to_spec(load_config(path), table)),)


def table_name(table: PriceTable) -> str:
    return Path(table.file).name


def with_prices(spec: ClusterSpec, table: PriceTable, markets: Sequence[str] = ()) -> ClusterSpec:
    """Returns the configuration with the prices of a table; ConfigError when it has none of the types.

    Types without offers get all of the table, the others those of `markets` that they lack.
    """
    types = tuple(_priced(known, table, markets) for known in spec.node_types)
    if types == spec.node_types and not any(_rows(known, table) for known in spec.node_types):
        names = ", ".join(known.machine_type or known.name for known in spec.node_types[:5])
        message = f"has no row for any node type of the recording ({names}); name them in the column 'type'"
        raise ConfigError(message, file=table.file)
    return replace(spec, node_types=types)


def _priced(known: NodeType, table: PriceTable, markets: Sequence[str]) -> NodeType:
    rows = _rows(known, table)
    prices = {(row.zone, market): price for row in rows for market, price in row.prices.items()}
    if not prices:
        return known
    offers = [
        replace(offer, price_per_hour=prices.get((offer.zone, offer.market), offer.price_per_hour))
        for offer in known.offers
    ]
    there = {(offer.zone, offer.market) for offer in offers}
    for (zone, market), price in prices.items():
        if not known.offers or (market in markets and (zone, market) not in there):
            offers.append(Offer(zone=zone, market=market, price_per_hour=price))
    return replace(known, offers=tuple(offers), price_per_hour=min(prices.values()))


def _rows(known: NodeType, table: PriceTable) -> tuple[PriceRow, ...]:
    return table.rows.get(known.machine_type) or table.rows.get(known.name, ())


def only_market(spec: ClusterSpec, market: str) -> ClusterSpec:
    """Returns the configuration without what other markets sell; the head stays as it is."""
    types = tuple(
        known if known.name == spec.head_node_type else _of_market(known, market) for known in spec.node_types
    )
    if not any(known.max_nodes for known in types if known.name != spec.head_node_type):
        raise ConfigError(
            f"--market {market}: no node type is available there", fix="add offers of it, or --prices"
        )
    return replace(spec, node_types=types)


def _of_market(known: NodeType, market: str) -> NodeType:
    if known.offers:
        offers = tuple(offer for offer in known.offers if offer.market == market)
        return replace(known, offers=offers) if offers else replace(known, min_nodes=0, max_nodes=0)
    return known if known.market == market else replace(known, min_nodes=0, max_nodes=0)


def _with_idle(spec: ClusterSpec, idle_s: float) -> ClusterSpec:
    types = tuple(replace(known, idle_timeout_s=None) for known in spec.node_types)
    return replace(spec, idle_timeout_s=idle_s, node_types=types)
