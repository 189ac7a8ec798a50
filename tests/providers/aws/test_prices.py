"""Prices of AWS become a price file that muster reads."""

from __future__ import annotations

import json

import pytest

from muster.base.clock import ManualClock
from muster.config.document import Document
from muster.config.prices import parse_prices
from muster.providers.aws.prices import price_csv, read_products, to_csv
from muster.providers.kind import parse_config


def product(price, unit="Hrs"):
    dimension = {"unit": unit, "pricePerUnit": {"USD": price}}
    return json.dumps({"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}})


@pytest.mark.parametrize(
    ("products", "price"),
    [
        ([product("0.0960000000")], 0.096),
        ([product("0.0000000000"), product("0.096")], 0.096),
        ([product("5", unit="Quantity")], None),
        ([], None),
        ([{}], None),
    ],
)
def test_the_price_of_an_hour_is_read_from_the_price_list(products, price):
    assert read_products(products) == price


def test_the_file_has_a_row_for_each_type_and_zone_that_has_a_price():
    text = to_csv("r", ["z-a", "z-b"], ["m", "n", "x"], {"m": 0.1}, {("m", "z-a"): 0.03, ("n", "z-b"): 0.5})
    assert text.splitlines() == [
        "type,region,zone,on_demand,spot",
        "m,r,z-a,0.1,0.03",
        "m,r,z-b,0.1,",
        "n,r,z-b,,0.5",
    ]
    read = parse_prices(text, "p.csv").rows
    assert read["m"][0].prices == {"on-demand": 0.1, "spot": 0.03}


FILE = """
cluster_name: c1
provider: {type: aws, region: us-east-1}
available_node_types:
  head: {node_config: {InstanceType: m5.large}}
  worker: {node_config: {InstanceType: c5.xlarge}}
head_node_type: head
"""


def asked() -> list[list[str]]:
    config = parse_config(Document(FILE, "c1.yaml"))
    header, *rows = price_csv(config, ManualClock(1_700_000_000.0)).splitlines()
    assert header == "type,region,zone,on_demand,spot"
    return [row.split(",") for row in rows]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_prices_are_those_of_the_price_list_and_of_the_spot_history(ec2):
    ec2.faults.prices = {"m5.large": 0.096, "c5.xlarge": 0.17}
    rows = asked()
    assert {(row[0], *row[3:]) for row in rows} == {
        ("m5.large", "0.096", "1e-05"),
        ("c5.xlarge", "0.17", "1e-05"),
    }
    assert len({row[2] for row in rows}) >= 3  # zones
    calls = ec2.faults.calls
    assert (calls["DescribeSpotPriceHistory"], calls["GetProducts"]) == (1, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("action", "code", "column", "right"),
    [
        ("GetProducts", "AccessDeniedException", 3, "pricing:GetProducts"),
        ("DescribeSpotPriceHistory", "UnauthorizedOperation", 4, "ec2:DescribeSpotPriceHistory"),
    ],
)
def test_a_market_that_may_not_be_asked_has_an_empty_column_and_the_right_is_named(
    ec2, caplog, action, code, column, right
):
    ec2.faults.prices = {"m5.large": 0.096, "c5.xlarge": 0.17}
    ec2.faults.refused[action] = code, "You are not authorized to perform this operation."
    rows = asked()
    assert {row[column] for row in rows} == {""}
    assert all(row[7 - column] for row in rows)
    assert f'"Action": "{right}"' in caplog.text
