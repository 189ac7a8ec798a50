"""Imported lazily: asks AWS what machines cost, and writes a price file (`muster.prices`) of the answers.

On-demand prices are those of the Price List, spot prices the newest of the spot history. Called by `muster
provider prices`; a market that may not be asked has no column filled in.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from muster.base.clock import Clock
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError, ProviderError
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.launcher import zones_of
from muster.providers.aws.wire import check_region

logger = logging.getLogger(__name__)

PRICE_REGION = "us-east-1"  # where the Price List of all regions is
_PLAIN_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def price_csv(config: ClusterConfig, clock: Clock) -> str:
    """Return the price file of a cluster. Raises ConfigError for a file without machine types."""
    settings = config.provider.settings()
    region = check_region(config.provider.region)
    entries = config.available_node_types.values()
    names = sorted({config.rules.machine_type(entry.node_config or {}) for entry in entries} - {""})
    if not names:
        raise ConfigError("no node type names an InstanceType", path="available_node_types")
    profile = settings.get("profile")
    calls = AwsCalls(region, clock, profile)
    on_demand = _asked("on-demand", lambda: _on_demand(AwsCalls(PRICE_REGION, clock, profile), names, region))
    spot = _asked("spot", lambda: _spot(calls, names, clock))
    zones = zones_of(settings) or sorted({zone for _, zone in spot})
    if not zones:
        known = calls.ec2("describe_availability_zones").get("AvailabilityZones", ())
        zones = sorted(one["ZoneName"] for one in known)
    return to_csv(region, zones, names, on_demand, spot)


def to_csv(
    region: str,
    zones: Sequence[str],
    names: Sequence[str],
    on_demand: Mapping[str, float],
    spot: Mapping[tuple[str, str], float],
) -> str:
    """Return the file: a row per machine type and zone, with what is known."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["type", "region", "zone", "on_demand", "spot"])
    for name in names:
        for zone in zones:
            prices = on_demand.get(name), spot.get((name, zone))
            if any(price is not None for price in prices):
                rows.writerow(
                    [name, region, zone, *("" if price is None else f"{price:g}" for price in prices)]
                )
    return text.getvalue()


def _asked(market: str, ask: Any) -> Any:  # noqa: ANN401 - one of the two tables
    try:
        return ask()
    except ProviderError as error:
        logger.warning("no %s prices: %s", market, error)
        return {}


def _on_demand(calls: AwsCalls, names: Sequence[str], region: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        wanted = {**_PLAIN_LINUX, "instanceType": name, "regionCode": region}
        filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
        answer = calls.call("pricing", "get_products", {"ServiceCode": "AmazonEC2", "Filters": filters})
        price = read_products(answer.get("PriceList", ()))
        if price is not None:
            found[name] = price
    return found


def read_products(products: Iterable[str | Mapping[str, Any]]) -> float | None:
    """Return the dollars per hour of a Price List answer: the least that is not 0; some are promotions."""
    prices = []
    for product in products:
        known = json.loads(product) if isinstance(product, str) else product
        for term in known.get("terms", {}).get("OnDemand", {}).values():
            for part in term.get("priceDimensions", {}).values():
                if part.get("unit") == "Hrs":
                    prices.append(float(part.get("pricePerUnit", {}).get("USD", 0)))
    return min((price for price in prices if price > 0), default=None)


def _spot(calls: AwsCalls, names: Sequence[str], clock: Clock) -> dict[tuple[str, str], float]:
    now = datetime.fromtimestamp(clock.now(), tz=timezone.utc)
    found: dict[tuple[str, str], tuple[Any, float]] = {}
    for one in calls.pages(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=list(names),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now,
    ):
        key = one["InstanceType"], one["AvailabilityZone"]
        if key not in found or one["Timestamp"] > found[key][0]:
            found[key] = one["Timestamp"], float(one["SpotPrice"])
    return {key: price for key, (_, price) in found.items()}
