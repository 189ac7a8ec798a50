from __future__ import annotations

import re
from functools import partial

import pytest

from muster.errors import TuneError
from muster.tune import registry as names
from muster.tune.registry import (
    get_env,
    get_trainable,
    is_registered,
    register_env,
    register_trainable,
)
from muster.tune.trainable import Trainable
from muster.tune.trainable.function_trainable import (
    checked_function,
    checked_trainable,
    is_function_trainable,
    trainable_name,
)


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(names, "_trainables", {})
    monkeypatch.setattr(names, "_environments", {})


def train(config):
    return {"x": 1}


class Plain:
    pass


class Calls:
    def __call__(self, config):
        return {"x": 2}

    def method(self, config):
        return {"x": 3}


@pytest.mark.conformance("C-094")
def test_a_later_registration_overwrites():
    register_trainable("mine", train)
    other = partial(train)
    register_trainable("mine", other)
    assert get_trainable("mine") is other
    assert (is_registered("mine"), is_registered("yours")) == (True, False)


@pytest.mark.conformance("C-092")
def test_an_unknown_trainable_is_a_tune_error():
    register_trainable("b", train)
    register_trainable("a", train)
    with pytest.raises(TuneError) as caught:
        get_trainable("c")
    assert re.search(r"\bc\. .*tune\.register_trainable\('c', .*: a, b$", str(caught.value))


@pytest.mark.conformance("C-093")
@pytest.mark.parametrize("wrong", [Plain, Plain(), 3, None, {"run": 1}])
def test_only_functions_and_trainables_can_be_registered(wrong):
    with pytest.raises(TypeError, match=r"\btune\.Trainable$"):
        register_trainable("wrong", wrong)
    assert not is_registered("wrong")


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_is_a_text(name):
    with pytest.raises(TypeError, match=r"^register_trainable: "):
        register_trainable(name, train)


def test_all_kinds_of_callables_are_functions():
    for each in (train, partial(train), Calls(), Calls().method, lambda config: None, dict):
        if each is dict:
            assert not is_function_trainable(each)
        else:
            assert is_function_trainable(each)
            assert checked_trainable(each) is each
    assert checked_trainable(Trainable) is Trainable
    assert not is_function_trainable(Trainable)


@pytest.mark.parametrize(
    "wrong",
    [lambda: None, lambda a, b: None, lambda config, *, data: None, partial(train, {})],
    ids=["none", "two", "keyword-only", "used-up"],
)
def test_a_function_takes_exactly_the_config(wrong):
    with pytest.raises(ValueError, match=r"\bconfig\b.*tune\.with_parameters"):
        checked_function(wrong)


@pytest.mark.parametrize(
    "right",
    [train, lambda config, data=None: None, lambda *all: None, lambda config, **more: None, len],
)
def test_further_parameters_may_have_defaults(right):
    assert checked_function(right) is right


def test_environments_are_registered_by_their_constructors():
    register_env("maze", train)
    assert get_env("maze") is train
    with pytest.raises(TypeError, match=r"register_env.*maze"):
        register_env("maze", 3)
    with pytest.raises(TuneError, match=r"\bpond\..*register_env\(.*: maze$"):
        get_env("pond")


def test_names_of_trainables():
    class Named(Trainable):
        _name = "given"

    def odd(config): ...

    odd.__name__ = "<odd>"
    assert [
        trainable_name(each) for each in (Named, Plain, train, lambda c: c, odd, partial(train), "known")
    ] == [
        "given",
        "Plain",
        "train",
        "lambda",
        "DEFAULT",
        "train",
        "known",
    ]
    assert [trainable_name(each) for each in (partial(partial(train)), Calls(), Calls().method)] == [
        "train",
        "DEFAULT",
        "method",
    ]
