"""Offers of the cluster file and of the price file, and every mistake in either with file, line and fix."""

from __future__ import annotations

import errno
import os

import pytest
from tests.config.test_source import KEPT
from tests.mistakes.views import assert_line

from muster.cluster.budget_policy import Budget
from muster.cluster.model import Offer
from muster.config.document import Document
from muster.config.prices import parse_prices
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kind import load_config, load_spec, parse_config, watch_file

CLUSTER = """cluster_name: demo
max_workers: 8
provider: {type: aws, region: us-east-1}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 2}
    node_config: {InstanceType: m5.large}
  gpu:
    resources: {CPU: 4, GPU: 1}
    node_config: {InstanceType: g5.xlarge}
    price_per_hour: 9.0
    max_workers: 4
muster:
  prices: prices.csv
"""
LISTED = CLUSTER.replace(
    "    max_workers: 4\n",
    """    max_workers: 4
    offers:
      - {zone: az1, market: spot, max_workers: 2, billing_minimum_s: 60}
      - {zone: az9, market: reserved, price_per_hour: 0.0, billing_granularity_s: 3600}
      - {zone: az9}
""",
)
PRICES = """type,region,zone,cpus,memory_gib,gpu,gpus,on_demand,spot
g5.xlarge,us-east-1,az1,4,16,A10G,1,1.006,0.31
g5.xlarge,us-east-1,az2,4,16,A10G,1,1.006,
g5.xlarge,us-west-2,az7,4,16,A10G,1,1.006,0.2
c6i.large,us-east-1,az1,2,4,,,0.085,0.04
"""


@pytest.fixture
def files(tmp_path):
    """Write the two files and return the path of the cluster file."""

    def write(cluster=CLUSTER, prices=PRICES):
        path = tmp_path / "c.yaml"
        path.write_text(cluster)
        if prices is not None:
            (tmp_path / "prices.csv").write_text(prices)
        return path

    return write


def offers(path, name="gpu"):
    return load_spec(path).node_type(name).offers


def on_demand(zone, price):
    return Offer(zone=zone, market="on-demand", price_per_hour=price)


EVERY = (
    on_demand("az1", 1.006),
    Offer(zone="az1", market="spot", price_per_hour=0.31),
    on_demand("az2", 1.006),
)


def test_every_price_of_the_machine_type_in_the_region_is_an_offer(files):
    path = files()
    assert offers(path) == EVERY
    assert offers(path, "head") == ()


def test_zones_of_the_provider_are_the_only_ones(files):
    zones = CLUSTER.replace("region: us-east-1", "region: us-east-1, availability_zone: 'az2,az3'")
    assert offers(files(zones)) == (on_demand("az2", 1.006),)


def test_a_type_without_a_machine_name_is_found_by_its_own_name(files):
    plain = CLUSTER.replace("    node_config: {InstanceType: g5.xlarge}\n", "")
    assert offers(files(plain, PRICES.replace("g5.xlarge", "gpu"))) == EVERY


def test_offers_of_the_cluster_file_are_the_only_ones_and_get_missing_prices(files):
    assert offers(files(LISTED)) == (
        Offer(zone="az1", market="spot", price_per_hour=0.31, max_nodes=2, billing_minimum_s=60.0),
        Offer(zone="az9", market="reserved", price_per_hour=0.0, billing_granularity_s=3600.0),
        on_demand("az9", 9.0),
    )


def test_without_offers_and_prices_a_type_has_none():
    text = CLUSTER.replace("muster:\n  prices: prices.csv\n", "")
    spec = to_spec(parse_config(Document(text, "c.yaml")))
    assert [node_type.offers for node_type in spec.node_types] == [(), ()]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "market: spot,",
            "market: spt,",
            "c.yaml:15: available_node_types.gpu.offers[0].market: 'spt' is not one",
        ),
        (
            "price_per_hour: 0.0",
            "price_per_hour: -1",
            "c.yaml:16: available_node_types.gpu.offers[1].price_per",
        ),
        (
            "price_per_hour: 0.0",
            "price_per_hour: .nan",
            "c.yaml:16: available_node_types.gpu.offers[1].price",
        ),
        (
            "max_workers: 2",
            "max_workers: 1.5",
            "c.yaml:15: available_node_types.gpu.offers[0].max_workers: must",
        ),
        (
            "{zone: az9}",
            "{zone: a z}",
            "c.yaml:17: available_node_types.gpu.offers[2].zone: 'a z' cannot be used",
        ),
        (
            "{zone: az9}",
            "{zone: a/z}",
            "c.yaml:17: available_node_types.gpu.offers[2].zone: 'a/z' cannot be used",
        ),
        (
            "{zone: az9}",
            "{zones: a}",
            "c.yaml:17: available_node_types.gpu.offers[2].zones: unknown key; did you",
        ),
        (
            "{zone: az9}",
            "{zone: az1, market: spot}",
            "c.yaml:17: available_node_types.gpu.offers[2]: zone 'az1' and market spot are those of "
            "available_node_types.gpu.offers[0]; keep one",
        ),
        ("prices.csv", "7", "c.yaml:19: muster.prices: must be text, not 7; put it in quotes"),
    ],
)
def test_a_mistake_in_the_cluster_file_is_named_with_line_key_and_fix(old, new, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(Document(LISTED.replace(old, new, 1), "c.yaml"))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            ",spot\n",
            ",price\n",
            "p.csv:1: has no column 'spot'; the first line names the columns, type, zone, ",
        ),
        (",spot\n", ",on_demand\n", "p.csv:1: names a column twice"),
        ("1.006,0.2", "1.006,-0.2", "p.csv:4: spot '-0.2' is not a price; write $ per hour, or nothing"),
        ("1.006,0.2", "nan,0.2", "p.csv:4: on_demand 'nan' is not a price"),
        ("1.006,0.2", "inf,0.2", "p.csv:4: on_demand 'inf' is not a price"),
        ("1.006,0.2", "1e9,0.2", "p.csv:4: on_demand '1e9' is not a price"),
        ("1.006,0.2", "cheap,0.2", "p.csv:4: on_demand 'cheap' is not a price"),
        ("1.006,0.2", "1.006", "p.csv:4: has 8 values, but there are 9 columns; write one for each"),
        (",az7,", ",,", "p.csv:4: the column 'zone' is empty; fill it in"),
        (",az7,", ",a/7,", "p.csv:4: zone 'a/7' cannot be used; write it without spaces and '/'"),
        (
            "us-west-2,az7",
            "us-east-1,az2",
            "p.csv:4: g5.xlarge in zone az2 is there twice; keep one of the rows",
        ),
        ("A10G,1,1.006,0.2\n", '"A10G,1,1.006,0.2\n', "p.csv:6: is not CSV: unexpected end of data"),
        (PRICES, "", "p.csv:1: has no column 'type'"),
    ],
)
def test_a_mistake_in_the_price_file_is_named_with_file_and_line(old, new, message):
    with pytest.raises(ConfigError) as caught:
        parse_prices(PRICES.replace(old, new, 1), "p.csv")
    assert str(caught.value).startswith(message)


def test_empty_lines_a_mark_at_the_start_and_a_missing_last_newline_do_no_harm():
    assert parse_prices("\ufeff" + PRICES.replace("\n", "\n\n").rstrip(), "p.csv") == parse_prices(
        PRICES, "p.csv"
    )


def test_a_price_file_for_other_machines_is_a_mistake(files):
    path = files(prices=PRICES.replace("g5.xlarge", "g5.xlagre"))
    with pytest.raises(ConfigError, match=r"prices\.csv.*muster\.prices.*m5\.large.*g5"):
        load_spec(path)


def test_a_price_file_for_another_region_is_a_mistake(files):
    path = files(CLUSTER.replace("us-east-1", "us-east1"))
    with pytest.raises(ConfigError, match=r"az1.*az2.*az7"):
        load_spec(path)


def test_a_budget_can_be_held_with_the_prices_of_a_price_file_and_not_where_one_is_missing(files, tmp_path):
    """`muster up` plans without prices, and must not refuse what the price file has."""
    limited = CLUSTER.replace("    price_per_hour: 9.0\n", "") + "  budget: {total: 40, period: day}\n"
    path = files(limited, PRICES.replace("c6i.large", "m5.large"))
    assert load_spec(path).budget == Budget(total=40.0, period_s=86_400.0)
    assert to_spec(load_config(path)).budget == Budget(total=40.0, period_s=86_400.0)
    with pytest.raises(ConfigError) as caught:
        load_spec(files(limited))
    assert caught.value.path == "muster.budget"
    assert_line("config", "budget without a price", str(caught.value).replace(str(tmp_path), "TMP"))


def test_a_price_file_that_is_not_there_is_a_mistake_at_the_start(files):
    path = files(prices=None)
    with pytest.raises(ConfigError, match=os.strerror(errno.ENOENT)) as missing:
        watch_file(path)
    assert missing.value.file == str(path.parent / "prices.csv")
    load_config(path)  # the cluster file itself is right


def prices_of(source):
    spec, problem = source.current()
    return [offer.price_per_hour for offer in spec.node_type("gpu").offers], problem


def test_an_edit_of_the_price_file_counts_at_the_next_read(files):
    source = watch_file(files())
    assert prices_of(source) == ([1.006, 0.31, 1.006], "")
    files(prices=PRICES.replace("0.31", "0.55"))
    assert prices_of(source) == ([1.006, 0.55, 1.006], "")


def test_a_price_file_whose_last_line_is_cut_off_counts_when_it_stays_so(files):
    source = watch_file(files())
    files(prices=PRICES.replace("0.31", "0.55").rstrip())
    assert [prices_of(source)[0][1] for _ in range(2)] == [0.31, 0.55]


@pytest.mark.parametrize("broken", [PRICES.replace("0.31", "x"), "", "type\n", PRICES.replace("g5", "g9")])
def test_a_price_file_that_breaks_keeps_the_last_good_prices_and_is_reported_until_it_is_mended(
    files, broken
):
    source = watch_file(files())
    path = files(prices=broken)
    for _ in range(3):
        prices, problem = prices_of(source)
    assert prices == [1.006, 0.31, 1.006]
    assert problem.startswith(str(path.parent / "prices.csv")) and problem.endswith(KEPT)
    files(prices=PRICES.replace("0.31", "0.4"))
    assert prices_of(source) == ([1.006, 0.4, 1.006], "")


def test_a_price_file_that_vanishes_keeps_the_last_good_prices(files, tmp_path):
    source = watch_file(files())
    (tmp_path / "prices.csv").unlink()
    prices, problem = prices_of(source)
    assert (prices, os.strerror(errno.ENOENT) in problem) == ([1.006, 0.31, 1.006], True)
    files()
    assert prices_of(source) == ([1.006, 0.31, 1.006], "")


def test_a_bad_edit_of_the_cluster_file_does_not_stop_new_prices(files):
    source = watch_file(files())
    files(CLUSTER.replace("max_workers: 8", "max_workers: x"), PRICES.replace("0.31", "0.4"))
    prices_of(source)
    prices, problem = prices_of(source)
    assert (prices, "max_workers" in problem) == ([1.006, 0.4, 1.006], True)
