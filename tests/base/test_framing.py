from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.base.framing import FrameReader, frame, is_plain, pack, portable, unpack, unpickle

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


@pytest.mark.slow
@given(PLAIN)
def test_plain_values_come_back_as_they_were(value):
    assert is_plain(value)
    assert repr(unpack(pack(value))) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.arange(3),
        {"a": {"b": np.int64(1)}},
        {1, 2},
        OrderedDict(a=1),
        {("a",): 1},
        bytearray(b"x"),
        [object],
    ],
)
def test_what_marshal_would_change_is_pickled(value):
    assert not is_plain(value)
    assert isinstance(portable(value), bytes)
    assert repr(unpickle(portable(value))) == repr(value)


def test_a_value_that_holds_itself_is_pickled():
    loop = {}
    loop["self"] = loop
    assert not is_plain(loop)
    again = unpickle(portable(loop))
    assert again["self"] is again


def test_functions_that_only_we_know_are_pickled_by_value():
    assert unpickle(portable(lambda: math.pi))() == math.pi


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=8), st.integers(1, 13))
def test_frames_survive_any_cutting(frames, size):
    stream = b"".join(frame(kind, payload) for kind, payload in frames)
    reader, found = FrameReader(), []
    for start in range(0, len(stream), size):
        found.extend(reader.feed(stream[start : start + size]))
    assert found == frames
    assert reader.is_between_frames
