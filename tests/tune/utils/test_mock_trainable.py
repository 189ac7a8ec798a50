"""Ray's trainable without a model."""

from __future__ import annotations

import math

import pytest

from muster import tune
from muster.tune.utils.mock_trainable import (
    MOCK_ERROR_KEY,
    MOCK_TRAINABLE_NAME,
    MyTrainableClass,
    register_mock_trainable,
)


def test_its_reward_follows_width_and_height_and_is_saved():
    first = MyTrainableClass({"width": 2, "height": 3})
    rewards = [first.train()["episode_reward_mean"] for _ in range(3)]
    assert rewards == pytest.approx([3 * math.tanh(step / 2) for step in (1, 2, 3)])
    second = MyTrainableClass({"width": 2, "height": 3})
    second.restore(first.save())
    assert second.train()["episode_reward_mean"] == pytest.approx(3 * math.tanh(4 / 2))


def test_it_fails_on_request_after_its_first_step():
    made = MyTrainableClass({MOCK_ERROR_KEY: True})
    made.train()
    with pytest.raises(RuntimeError, match=r"timestep=1$"):
        made.train()


@pytest.mark.slow
def test_it_is_run_by_its_registered_name(tmp_path):
    register_mock_trainable()
    found = tune.run(
        MOCK_TRAINABLE_NAME, stop={"training_iteration": 2}, storage_path=str(tmp_path), verbose=0
    )
    assert found.trials[0].last_result["episode_reward_mean"] == pytest.approx(math.tanh(2))
