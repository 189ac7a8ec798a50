from __future__ import annotations

import pytest

from muster.trials.model import CheckpointPolicy
from muster.tune.config import CheckpointConfig
from muster.tune.trainable import Trainable
from muster.tune.trainable.util import checkpoint_policy


def train(config): ...


class Plain(Trainable):
    def save_checkpoint(self, checkpoint_dir):
        return {}


class Unsavable(Trainable):
    pass


class HandlesItself(Trainable):
    _handles_checkpoint_freq = True
    _handles_checkpoint_at_end = True


class Cannot(Trainable):
    _handles_checkpoint_freq = False
    _handles_checkpoint_at_end = False


def test_classes_save_at_their_end_unless_told_otherwise_and_functions_do_not():
    assert checkpoint_policy(Plain) == CheckpointPolicy(at_end=True)
    assert checkpoint_policy(Plain, CheckpointConfig(checkpoint_at_end=False)) == CheckpointPolicy()
    assert checkpoint_policy(Unsavable) == CheckpointPolicy()
    assert checkpoint_policy(Unsavable, CheckpointConfig(checkpoint_at_end=True)) == CheckpointPolicy(
        at_end=True
    )
    assert checkpoint_policy(train) == CheckpointPolicy()
    assert checkpoint_policy(train, CheckpointConfig(checkpoint_at_end=False)) == CheckpointPolicy()


def test_the_rest_is_taken_over():
    config = CheckpointConfig(2, "a/b", "min", 5)
    assert checkpoint_policy(Plain, config) == CheckpointPolicy(
        num_to_keep=2, score_attribute="a/b", score_order="min", frequency=5, at_end=True
    )


@pytest.mark.conformance("C-070")
@pytest.mark.parametrize(
    "config", [CheckpointConfig(checkpoint_frequency=1), CheckpointConfig(checkpoint_at_end=True)]
)
def test_a_function_makes_its_checkpoints_itself(config):
    with pytest.raises(
        ValueError, match=r"^CheckpointConfig\(checkpoint_\w+=\w+\) .*\btrain\b.*tune\.report\("
    ):
        checkpoint_policy(train, config)


def test_a_class_may_handle_them_itself_or_refuse():
    asked = CheckpointConfig(checkpoint_frequency=3, checkpoint_at_end=True)
    assert checkpoint_policy(HandlesItself, asked) == CheckpointPolicy()
    assert checkpoint_policy(Cannot) == CheckpointPolicy()
    with pytest.raises(ValueError, match="checkpoint_frequency=3"):
        checkpoint_policy(Cannot, asked)
    with pytest.raises(ValueError, match="checkpoint_at_end=True"):
        checkpoint_policy(Cannot, CheckpointConfig(checkpoint_at_end=True))
