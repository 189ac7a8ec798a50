"""validate_save_restore and diagnose_serialization on trainables that are sound and that are not."""

from __future__ import annotations

import threading

import pytest

from muster.tune.registry import register_trainable
from muster.tune.trainable.trainable import Trainable
from muster.tune.utils import diagnose_serialization, validate_save_restore

LOCK = threading.Lock()


class Sound(Trainable):
    def setup(self, config):
        self.at = config.get("from", 0)

    def step(self):
        self.at += 1
        return {"at": self.at}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


class Forgetful(Sound):
    def restore(self, checkpoint_path):
        """Load nothing."""


class Unsaved(Sound):
    save_checkpoint = Trainable.save_checkpoint


def test_a_trainable_that_can_be_restored_is_fine():
    assert validate_save_restore(Sound) is True
    assert validate_save_restore(Sound, config={"from": 5}, num_gpus=1) is True
    register_trainable("sound", Sound)
    assert validate_save_restore("sound") is True


def test_a_trainable_that_forgets_is_not():
    with pytest.raises(
        AssertionError, match=r"^Forgetful: .*'training_iteration': 0.*'training_iteration': 3"
    ):
        validate_save_restore(Forgetful)


def test_a_trainable_without_checkpoints_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="save_checkpoint"):
        validate_save_restore(Unsaved)


def test_a_function_has_nothing_to_validate():
    with pytest.raises(ValueError, match=r"^validate_save_restore: .*tune\.Trainable$"):
        validate_save_restore(lambda config: None)


def test_what_cannot_be_pickled_is_named():
    def uses_lock(config):
        return LOCK

    assert diagnose_serialization(uses_lock) == {"LOCK"}
    assert diagnose_serialization(lambda config: 1) is True
