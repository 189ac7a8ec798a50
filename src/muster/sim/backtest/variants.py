"""Make variants of a recorded configuration: other files, prices, objectives, markets and idle timeouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
from muster.sim.joint.cloud import SpotSeries
from muster.trials.metrics import is_number

AS_RECORDED = "as recorded"
MANY = 32  # machines of a pool whose series knows only "some" and "none"
Specs = tuple[tuple[float, ClusterSpec], ...]


@dataclass(frozen=True, kw_only=True)
class VariantOptions:
    """What is to be compared; every combination of those given is a variant."""

    clusters: tuple[Path, ...] = ()
    prices: Path | None = None
    spot: Path | None = None
    objectives: tuple[Objective, ...] = ()
    markets: tuple[str, ...] = ()
    idle_timeouts_s: tuple[float, ...] = ()


def variants_of(recorded: Sequence[tuple[float, ClusterSpec]], options: VariantOptions) -> list[Variant]:
    """Return the recorded configuration, then every combination; ConfigError for files that are wrong."""
    table = None
    if options.prices is not None:
        table = parse_prices(Document.text_of(options.prices), str(options.prices))
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
    name: str, specs: Specs, spot: tuple[SpotSeries, ...], options: VariantOptions, own: Specs
) -> Iterator[Variant]:
    if options.spot is not None:
        yield Variant(name=f"{name}, {options.spot.name}", specs=specs, spot=spot)
    elif specs != own:
        yield Variant(name=name, specs=specs)


def _bases(own: Specs, options: VariantOptions, table: PriceTable | None) -> Iterator[tuple[str, Specs]]:
    """Yield the recorded configuration with other prices, and every file, with them as well."""
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
    """Return the configuration with the prices of a table; ConfigError when it has none of the types.

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
    """Return the configuration without what other markets sell; the head stays as it is."""
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


def read_spot(path: Path) -> tuple[SpotSeries, ...]:
    """Read a file of series: {"series": [{"step_s": 60, "runs": [[machines, steps], ...]}, ...]}."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", file=str(path), fix="name a file of spot series"
        ) from None
    except ValueError as error:
        raise ConfigError(f"is not JSON ({error})", file=str(path), fix='write {"series": [...]}') from None
    series = data.get("series") if isinstance(data, Mapping) else None
    if not isinstance(series, list) or not series:
        raise ConfigError('has no "series": a list of {"step_s", "runs"}', file=str(path), fix="add it")
    return tuple(_series(entry, f"series[{position}]", str(path)) for position, entry in enumerate(series))


def _series(entry: object, where: str, file: str) -> SpotSeries:
    step_s = entry.get("step_s") if isinstance(entry, Mapping) else None
    runs = entry.get("runs") if isinstance(entry, Mapping) else None
    if not is_number(step_s) or step_s <= 0:
        raise ConfigError("step_s is not a number of seconds", path=where, file=file, fix="write one above 0")
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise ConfigError(
            "runs is not a list of [machines, steps]",
            path=where,
            file=file,
            fix="write numbers, steps above 0",
        )
    most = max(machines for machines, _ in runs)
    times = MANY if most <= 1 else 2
    return SpotSeries(step_s, tuple((int(machines * times), steps) for machines, steps in runs))


def _is_run(run: object) -> bool:
    return isinstance(run, list) and len(run) == 2 and all(map(is_number, run)) and run[0] >= 0 and run[1] > 0
