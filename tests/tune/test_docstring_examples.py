"""The examples in docstrings of the value classes are run as they stand."""

from __future__ import annotations

import doctest
import importlib

import pytest

COUNTED = {
    "muster.tune.config": 1,
    "muster.tune.tune_config": 2,
    "muster.tune.experiment.experiment": 1,
    "muster.tune.analysis.tables": 1,
    "muster.tune.pareto": 3,
    "muster.tune.logger.logger": 2,
    "muster.tune.execution.restore": 1,
    "muster.tune.registry": 2,
    "muster.tune.trainable.function_trainable": 1,
    "muster.tune.trainable.util": 5,
    "muster.tune.trainable.trainable": 2,
    "muster.tune.utils.util": 5,
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_examples_of_a_module_do_what_they_say(name):
    found = doctest.testmod(importlib.import_module(name))
    assert (found.failed, found.attempted) == (0, COUNTED[name])
