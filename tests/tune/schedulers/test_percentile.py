"""RunningPercentile equals numpy.nanpercentile, whatever arrives in whatever order."""

import math
import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster.tune.schedulers.async_hyperband import RunningPercentile

PERCENTS = [(1 - 1 / factor) * 100 for factor in (1.5, 2, 3, 4, 10)]


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(
    st.sampled_from(PERCENTS),
    st.lists(st.one_of(st.floats(), st.integers(-3, 3).map(float)), min_size=1, max_size=60),
)
def test_every_prefix_has_the_percentile_that_numpy_computes(percent, values):
    kept = RunningPercentile(percent)
    for count, value in enumerate(values, 1):
        kept.add(value)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # all-NaN slices
            expected = float(np.nanpercentile(values[:count], percent))
        assert kept.value is not None
        assert same(kept.value, expected), (kept.value, expected)


def test_nothing_has_no_percentile_and_nan_alone_has_nan():
    kept = RunningPercentile(75.0)
    assert kept.value is None
    kept.add(math.nan)
    assert math.isnan(kept.value)
    kept.add(2.0)
    assert kept.value == 2.0


def test_a_rebuilt_percentile_is_the_same():
    values = [5.0, 1.0, 4.0, math.nan, 2.0, 3.0]
    assert RunningPercentile(75.0, values).value == 4.0
