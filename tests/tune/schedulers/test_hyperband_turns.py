"""The order of HyperBand's brackets, found without looking at all of them."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from muster.tune.schedulers.hyperband_bands import Bands
from muster.tune.schedulers.hyperband_bracket import HyperBandParameters

PARAMETERS = HyperBandParameters("training_iteration", 9, 3, stop_last_trials=True)


def by_looking_at_all(bands):
    return sorted((one for one in bands.open.values() if one.unstarted), key=bands.turn)


def in_turn(bands, most=None):
    with closing(iter(bands.with_unstarted)) as brackets:
        return [bracket for _, bracket in zip(range(most or 10_000), brackets, strict=False)]


def change_something(bands, draw, number):
    members = sorted(bands.members())
    what = draw.choice(["place", "place", "report", "forget", "settle", "start", "look"])
    if what == "place" or not members:
        bands.place(f"t{number}")
        return
    name = draw.choice(members)
    bracket = bands.bracket_of(name)
    if what == "report":
        bracket.report(name, bracket.members[name].time + draw.choice([1, 3]), draw.random())
        bracket.park(name)
    elif what == "forget":
        bands.forget(name)
    elif what == "settle" and bracket.has_arrived:
        settled = bracket.halve_if_complete()
        for gone in (*settled.halved, *settled.done):
            bands.forget(gone)
    elif what == "start":
        bracket.unstarted.pop(name, None)
    elif what == "look":
        bands.recheck_waiting()


@pytest.mark.parametrize("largest_first", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_the_order_is_that_of_a_look_at_all_brackets(seed, largest_first):
    draw = random.Random(seed)
    bands = Bands(PARAMETERS, largest_first=largest_first)
    for number in range(400):
        change_something(bands, draw, number)
        expected = by_looking_at_all(bands)
        if draw.random() < 0.5:
            assert in_turn(bands, most=1) == expected[:1]
        else:
            assert in_turn(bands) == expected
    assert len(bands.with_unstarted._heap) <= 64 + 3 * len(bands.brackets)


def test_a_restored_one_has_the_same_order():
    draw, bands, again = random.Random(5), *(Bands(PARAMETERS, largest_first=False) for _ in range(2))
    for number in range(60):
        change_something(bands, draw, number)
    again.from_plain(bands.to_plain())
    assert [one.number for one in in_turn(again)] == [one.number for one in in_turn(bands)] != []
