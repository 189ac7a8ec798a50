from __future__ import annotations

import pickle
import re
import threading
from functools import partial

import pytest

from muster.errors import TuneError
from muster.tune.trainable import Trainable, function_trainable
from muster.tune.trainable.function_trainable import culprits, packed


def test_a_packed_closure_can_be_opened_with_pickle_alone():
    offset = 5
    assert pickle.loads(packed(lambda config: config["x"] + offset))({"x": 1}) == 6


@pytest.mark.conformance("C-098")
def test_what_cannot_be_pickled_is_named_with_its_place():
    lock = threading.Lock()
    holder = {"fine": 1, "inner": [2, lock]}

    def train(config):
        return holder

    assert culprits(train) == [("train > holder > 'inner' > item 1", f"a lock: {lock!r}")]
    with pytest.raises(TypeError) as caught:
        packed(train)
    assert f"train > holder > 'inner' > item 1: a lock: {lock!r}. " in str(caught.value)


def test_every_culprit_is_named_once():
    one, other = threading.Lock(), threading.Lock()

    def train(config, default=one):
        return one, other

    assert [where for where, _ in culprits(train)] == ["train > one", "train > other"]


def test_culprits_hide_in_partials_methods_and_classes():
    lock = threading.Lock()

    class Holds:
        def __init__(self):
            self.lock = lock

        def train(self, config):
            return self.lock

    class Steps(Trainable):
        shared = lock

    assert [where for where, _ in culprits(partial(max, lock))] == ["max > argument 0"]
    assert [where for where, _ in culprits(Holds().train)] == ["train > its object > lock"]
    assert [where for where, _ in culprits(Steps)] == ["Steps > shared"]


@pytest.mark.conformance("C-099")
def test_a_trainable_that_carries_its_data_is_sent_back_with_advice(monkeypatch):
    monkeypatch.setattr(function_trainable, "MAX_BYTES", 2 * 2**20)
    data = b"x" * (3 * 2**20)
    with pytest.raises(TuneError) as caught:
        packed(lambda config: data)
    assert re.search(r"\blambda\b.* 3 MiB .* 2 MiB.*tune\.with_parameters", str(caught.value))
