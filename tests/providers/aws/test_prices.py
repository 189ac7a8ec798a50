"""Prices of AWS become a price file that muster reads."""

from __future__ import annotations

import json

import pytest

from muster.config.prices import parse_prices
from muster.providers.aws.prices import read_products, to_csv


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
