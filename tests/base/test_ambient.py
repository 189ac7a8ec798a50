"""The one bundle of nondeterminism."""

from __future__ import annotations

import pytest

from muster.base.ambient import Ambient
from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.base.rng import Seed


def test_an_ambient_is_fixed_and_has_no_defaults():
    ambient = Ambient(clock=ManualClock(5.0), ids=CountingIds(), seed=Seed(1))
    assert (ambient.clock.now(), ambient.ids.fresh("t")) == (5.0, "t-0.000001")
    with pytest.raises(AttributeError):
        ambient.seed = Seed(2)
    with pytest.raises(TypeError):
        Ambient()
