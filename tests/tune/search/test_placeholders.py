from __future__ import annotations

import json
import re

import pytest

from muster.tune.search.placeholders import Placeholders, inject_placeholders
from muster.tune.search.sample_functions import RecursiveDependencyError
from muster.tune.search.space import choice, grid_search, sample_from, uniform


def both_ways(space):
    placeholders = Placeholders()
    return placeholders.resolve(inject_placeholders(space, placeholders))


@pytest.mark.conformance("C-134")
def test_primitives_and_number_domains_stay():
    domain = uniform(0, 1)
    space = {"a": 1, "b": [True, None, ("x", 1.5)], "d": domain}
    assert inject_placeholders(space, Placeholders()) == space


def test_objects_become_references_by_their_path():
    space = {"o": object(), "n": {"l": [1, b"x", (int,)]}}
    assert inject_placeholders(space, Placeholders()) == {
        "o": ("__ref_ph", "5525f4f1"),
        "n": {"l": [1, ("__ref_ph", "914fcc48"), (("__ref_ph", "a1455086"),)]},
    }


@pytest.mark.conformance("C-134")
def test_hashes_depend_on_the_path_alone():
    spaces = [{"c": choice([object(), 1]), "f": sample_from(lambda: 1)} for _ in range(2)]
    first, second = (inject_placeholders(space, Placeholders()) for space in spaces)
    assert first["c"].categories == second["c"].categories == [("__ref_ph", "359bf6a3"), 1]
    assert first["f"] == second["f"] == ("__fn_ph", "f450bff8")


@pytest.mark.conformance("C-134")
def test_what_was_set_aside_comes_back_the_same():
    thing = object()
    assert both_ways({"o": thing, "t": (1, [thing], {"d": thing})}) == {
        "o": thing,
        "t": (1, [thing], {"d": thing}),
    }


@pytest.mark.conformance("C-134")
def test_functions_see_objects_and_each_other_in_any_order():
    thing = [1, 2]
    space = {
        "late": sample_from(lambda config: config["early"] + 1),
        "n": {"inner": sample_from(lambda config: config["late"] * 10)},
        "early": sample_from(lambda config: len(config["o"])),
        "o": frozenset(thing),
        "l": [sample_from(lambda: 5), (sample_from(lambda config: config["l"][0] + 1),)],
    }
    assert both_ways(space) == {
        "late": 3,
        "n": {"inner": 30},
        "early": 2,
        "o": frozenset(thing),
        "l": [5, (6,)],
    }


def test_functions_see_values_however_they_read_the_config():
    readers = {
        "get": lambda c: c.get("f"),
        "items": lambda c: dict(c["n"].items())["f"],
        "values": lambda c: next(iter(c["n"].values())),
        "copy": lambda c: dict(c["n"])["f"],
        "unpack": lambda c: {**c["n"]}["f"],
        "json": lambda c: json.loads(json.dumps(c["n"]))["f"],
        "iterate": lambda c: next(iter(c["l"])),
        "slice": lambda c: c["l"][:1][0],
    }
    space = {name: sample_from(reader) for name, reader in readers.items()}
    found = both_ways(
        {
            **space,
            "f": sample_from(lambda: 7),
            "n": {"f": sample_from(lambda: 7)},
            "l": [sample_from(lambda: 7)],
        }
    )
    assert {name: found[name] for name in readers} == dict.fromkeys(readers, 7)
    assert (type(found), type(found["n"]), type(found["l"])) == (dict, dict, list)


def test_each_function_runs_once():
    calls = []
    space = {"a": sample_from(lambda: calls.append(1)), "b": sample_from(lambda config: config["a"])}
    both_ways(space)
    assert calls == [1]


def test_a_circle_is_named():
    space = {
        "a": sample_from(lambda c: c["b"]),
        "b": sample_from(lambda c: c["c"]),
        "c": sample_from(lambda c: c["b"]),
    }
    with pytest.raises(RecursiveDependencyError, match="b -> c -> b"):
        both_ways(space)
    with pytest.raises(RecursiveDependencyError, match=r"`x` .*: x -> x\b"):
        both_ways({"x": sample_from(lambda c: c["x"])})


def test_functions_written_for_the_old_spec_object_still_work_with_a_warning(caplog):
    assert both_ways({"x": {"y": 2}, "f": sample_from(lambda spec: spec.config.x.y + 1)})["f"] == 3
    assert ["deprecated" in message for message in caplog.messages] == [True]


def test_a_functions_own_error_leaves_as_it_is():
    with pytest.raises(KeyError, match="nothing"):
        both_ways({"f": sample_from(lambda config: config["nothing"])})
    with pytest.raises(ZeroDivisionError):
        both_ways({"f": sample_from(lambda: 1 / 0)})


def test_a_domain_that_a_function_returns_stays_with_a_warning(caplog):
    domain = uniform(0, 1)
    assert both_ways({"f": sample_from(lambda: domain)})["f"] is domain
    (message,) = set(caplog.messages)
    assert re.search(r"sample_from\b.*'f'", message)


@pytest.mark.conformance("C-134")
def test_those_that_are_not_in_the_config_are_skipped():
    placeholders = Placeholders()
    inject_placeholders({"f": sample_from(lambda: 1 / 0), "a": 1}, placeholders)
    assert placeholders.resolve({"a": 1}) == {"a": 1}


def test_a_users_own_tuple_that_looks_like_one_is_left_alone():
    assert both_ways({"t": ("__ref_ph", "12345678"), "o": int}) == {"t": ("__ref_ph", "12345678"), "o": int}


def test_two_paths_with_one_hash_keep_their_own_objects(monkeypatch):
    class Digest:
        def __init__(self, text):
            self.text = text

        def hexdigest(self):
            return "0" * 8 + self.text.hex()

    monkeypatch.setattr("muster.tune.search.placeholders.hashlib.sha256", Digest)
    one, other = object(), object()
    assert both_ways({"x": one, "y": other}) == {"x": one, "y": other}


def test_options_of_a_grid_are_looked_at_only_when_they_are_asked_for():
    injected = inject_placeholders({"g": grid_search(range(10**12))}, Placeholders())
    assert (len(injected["g"]["grid_search"]), injected["g"]["grid_search"][10**11]) == (10**12, 10**11)
