"""What a run changes in its process while it lasts."""

from __future__ import annotations

import gc

import pytest

from muster.tune.execution.experiment_run import MANY_OBJECTS, rare_collections


@pytest.fixture(autouse=True)
def _thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("given", "inside"),
    [(700, MANY_OBJECTS), (0, 0), (MANY_OBJECTS + 1, MANY_OBJECTS + 1)],
    ids=["the default", "switched off", "a larger one of the user's"],
)
def test_garbage_is_looked_for_rarely_while_trials_run_and_as_before_afterwards(given, inside):
    gc.set_threshold(given, 10, 10)
    with pytest.raises(KeyError), rare_collections():
        assert gc.get_threshold() == (inside, 10, 10)
        raise KeyError
    assert gc.get_threshold() == (given, 10, 10)
