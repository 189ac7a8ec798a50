"""Named streams of randomness: independent of each other, the same on every machine and version."""

from __future__ import annotations

import pytest

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.base.rng import Ambient, Seed


def draws(stream, count=4):
    return [stream.randrange(1_000_000) for _ in range(count)]


def test_a_stream_is_the_same_for_ever():
    assert draws(Seed(7).derive("sim.cloud")) == PINNED_CLOUD
    assert draws(Seed(7).derive("searcher")) == PINNED_SEARCHER


def test_streams_differ_by_name_and_by_seed():
    assert draws(Seed(7).derive("a")) != draws(Seed(7).derive("b"))
    assert draws(Seed(7).derive("a")) != draws(Seed(8).derive("a"))


def test_drawing_from_one_stream_never_shifts_another():
    alone = draws(Seed(3).derive("b"))
    seed = Seed(3)
    draws(seed.derive("a"), 100)
    assert draws(seed.derive("b")) == alone


def test_an_ambient_is_fixed_and_has_no_defaults():
    ambient = Ambient(clock=ManualClock(5.0), ids=CountingIds(), seed=Seed(1))
    assert (ambient.clock.now(), ambient.ids.fresh("t")) == (5.0, "t-0.000001")
    with pytest.raises(AttributeError):
        ambient.seed = Seed(2)
    with pytest.raises(TypeError):
        Ambient()


PINNED_CLOUD = [240679, 661977, 266485, 647101]
PINNED_SEARCHER = [316406, 971122, 808931, 652502]
