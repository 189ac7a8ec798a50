"""Nested dicts: flatten, look up, merge. The expected values were seen in Ray Tune 2.60."""

from __future__ import annotations

import pytest

from muster.tune.utils import deep_update, flatten_dict, merge_dicts, unflattened_lookup
from muster.tune.utils.util import unflatten_dict


@pytest.mark.parametrize(
    ("nested", "options", "flat"),
    [
        ({"a": {"b": 1, "c": {}}, "d": [1, {"e": 2}]}, {}, {"d": [1, {"e": 2}], "a/b": 1}),
        ({"a": {"b": 1}, "d": [1, {"e": 2}]}, {"flatten_list": True}, {"a/b": 1, "d/0": 1, "d/1/e": 2}),
        ({"a": {"b": 1}}, {"delimiter": "."}, {"a.b": 1}),
    ],
)
def test_flatten_joins_keys(nested, options, flat):
    found = flatten_dict(nested, **options)
    assert (found, list(found)) == (flat, list(flat))


def test_a_delimiter_in_a_key_can_be_refused():
    with pytest.raises(ValueError, match="'b/c'"):
        flatten_dict({"a": {"b/c": 1}}, prevent_delimiter=True)


@pytest.mark.parametrize(
    ("key", "lookup", "value"),
    [("a/b", {"a": {"b": 1}}, 1), ("a/0", {"a": [5]}, 5), ("a/b", {"a/b": 3}, 3)],
)
def test_lookup_by_flat_key(key, lookup, value):
    assert unflattened_lookup(key, lookup) == value


def test_lookup_of_what_is_not_there():
    with pytest.raises(KeyError):
        unflattened_lookup("a/x", {"a": {"b": 1}})
    assert unflattened_lookup("a/x", {"a": {"b": 1}}, default=None) is None
    with pytest.raises(TypeError, match="colour"):
        unflattened_lookup("a", {"a": 1}, colour=1)


def test_merge_leaves_both_as_they_were():
    first, second = {"a": {"b": 1}, "c": 1}, {"a": {"d": 2}, "c": {"x": 1}}
    assert merge_dicts(first, second) == {"a": {"b": 1, "d": 2}, "c": {"x": 1}}
    assert (first, second) == ({"a": {"b": 1}, "c": 1}, {"a": {"d": 2}, "c": {"x": 1}})


@pytest.mark.parametrize(
    ("original", "new", "options", "updated"),
    [
        ({"a": {"b": 1}}, {"z": 1}, (True,), {"a": {"b": 1}, "z": 1}),
        ({"a": {"b": 1}}, {"a": {"d": 2}}, (False, ["a"]), {"a": {"b": 1, "d": 2}}),
        (
            {"a": {"type": 1, "q": 2}},
            {"a": {"type": 2, "d": 2}},
            (True, ["a"], ["a"]),
            {"a": {"type": 2, "d": 2}},
        ),
        (
            {"a": {"type": 1, "q": 2}},
            {"a": {"type": 1, "d": 2}},
            (True, ["a"], ["a"]),
            {"a": {"type": 1, "q": 2, "d": 2}},
        ),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, (True, None, None, ["a"]), {"a": {"y": 2}}),
    ],
)
def test_deep_update(original, new, options, updated):
    assert deep_update(original, new, *options) == updated


@pytest.mark.parametrize("new", [{"z": 1}, {"a": {"d": 2}}])
def test_deep_update_refuses_unknown_keys(new):
    with pytest.raises(KeyError, match=r"'z'.*: a|'d'.*: b"):
        deep_update({"a": {"b": 1}}, new)


def test_a_flat_dict_is_unflattened_again():
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert unflatten_dict(flatten_dict(nested)) == nested
    assert unflatten_dict({"a.b": 1}, delimiter=".") == {"a": {"b": 1}}
