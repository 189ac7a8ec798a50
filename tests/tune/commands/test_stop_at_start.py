"""A stop that is written before the process of a trial has read its start order."""

from __future__ import annotations

import time

import pytest

from muster import tune
from muster.tune.stopper import Stopper

ENGINE_KILLS_AFTER_S = 10.0


class StopAtOnce(Stopper):
    """Ends the experiment as soon as it has begun."""

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return True


@pytest.mark.slow
def test_a_stop_that_comes_with_the_start_order_is_not_overlooked(tmp_path):
    began = time.monotonic()
    run = tune.RunConfig(storage_path=str(tmp_path), verbose=0, engine="local", stop=StopAtOnce())
    tune.Tuner(tune.command("sleep 30"), run_config=run).fit()
    assert time.monotonic() - began < ENGINE_KILLS_AFTER_S
