from __future__ import annotations

import re

import pytest

from muster.tune.search.space import choice, grid_search, sample_from, uniform
from muster.tune.search.variant_generator import (
    RecursiveDependencyError,
    flatten_resolved_vars,
    generate_variants,
    has_unresolved_values,
)


def configs(config, **options):
    return [spec["config"] for _, spec in generate_variants({"config": config}, **options)]


def variables(config, **options):
    return [flatten_resolved_vars(found) for found, _ in generate_variants({"config": config}, **options)]


def test_a_specification_without_domains_has_one_variant():
    assert configs({"a": 1, "b": [1, (2, {"c": None})]}) == [{"a": 1, "b": [1, (2, {"c": None})]}]


def test_the_first_grid_by_path_varies_fastest():
    found = configs({"n": {"z": grid_search(["p", "q"])}, "a": grid_search([1, 2])})
    assert [(c["a"], c["n"]["z"]) for c in found] == [(1, "p"), (2, "p"), (1, "q"), (2, "q")]


def test_list_indices_sort_as_numbers():
    space = {"l": [grid_search([0, 1]) if i in (2, 10) else i for i in range(11)]}
    assert [(c["l"][2], c["l"][10]) for c in configs(space)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_keys_of_different_types_can_be_sorted():
    # Ray: TypeError
    found = configs({1: grid_search([0, 1]), "a": grid_search([0, 1])})
    assert [(c[1], c["a"]) for c in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_an_expression_may_use_the_specification_numpy_and_random():
    assert configs({"foo": {"eval": "2 + 2"}}) == [{"foo": 4}]
    assert configs({"x": grid_search([1, 2]), "y": {"eval": "spec.config.x * 10"}}) == [
        {"x": 1, "y": 10},
        {"x": 2, "y": 20},
    ]
    assert configs({"y": {"eval": "np.sum([1, 2])"}}) == [{"y": 3}]
    assert configs({"y": {"eval": "random.randint(5, 5)"}}) == [{"y": 5}]


def test_a_chain_of_functions_is_resolved_in_any_order_and_of_any_length():
    chain = {f"x{i:02d}": sample_from(lambda spec, i=i: spec.config[f"x{i + 1:02d}"] + 1) for i in range(30)}
    assert configs({**chain, "x30": 1})[0]["x00"] == 31
    found = configs(
        {
            "z": sample_from(lambda spec: spec.config.y + 1),
            "y": sample_from(lambda spec: spec["config"]["x"] + 1),
            "x": uniform(0, 1),
        },
        random_state=1,
    )[0]
    assert (found["y"], found["z"]) == (found["x"] + 1, found["x"] + 2)


@pytest.mark.conformance("C-114")
def test_a_function_of_a_grid_value_and_a_grid_in_its_result():
    space = {"x": grid_search([1, 2]), "y": sample_from(lambda spec: grid_search([spec.config.x, 7]))}
    assert configs(space) == [{"x": 1, "y": 1}, {"x": 1, "y": 7}, {"x": 2, "y": 2}, {"x": 2, "y": 7}]


@pytest.mark.conformance("C-114")
def test_functions_may_be_options_of_a_grid():
    options = [sample_from(lambda spec: spec.config.y * 100), sample_from(lambda spec: spec.config.y * 200)]
    assert configs({"x": grid_search(options), "y": grid_search([1])}) == [
        {"x": 100, "y": 1},
        {"x": 200, "y": 1},
    ]


def test_nested_values_are_named_by_their_path():
    assert variables({"x": {"y": {"z": grid_search([1])}}}) == [{"x/y/z": 1}]


def test_a_circle_is_an_error_that_names_it():
    space = {"a": sample_from(lambda spec: spec.config.b), "b": sample_from(lambda spec: spec["config"]["a"])}
    with pytest.raises(RecursiveDependencyError, match="config/a") as caught:
        configs(space)
    assert caught.value.chain == ["config/a", "config/b", "config/a"]
    with pytest.raises(RecursiveDependencyError, match="config/foo -> config/foo"):
        configs({"foo": {"eval": "spec.config.foo"}})


@pytest.mark.parametrize("expression", ["1 / 0", "spec.config.nothing", "1 +", "undefined"])
def test_any_other_failure_names_the_expression(expression):
    with pytest.raises(ValueError, match=re.escape(expression)):
        configs({"x": {"eval": expression}})


def test_options_may_hold_further_domains_and_grids():
    space = {"a": choice([{"x": grid_search([1, 2]), "y": uniform(0, 1)}])}
    found = configs(space, random_state=3)
    assert [c["a"]["x"] for c in found] == [1, 2]
    assert 0 <= found[0]["a"]["y"] != found[1]["a"]["y"]


def test_a_container_has_an_entry_besides_its_inner_ones_with_its_final_value():
    # Ray shows the container of a choice before its inner values are drawn.
    names = variables({"g": grid_search([{"v": 5}]), "a": choice([{"x": choice([1])}])}, random_state=1)[0]
    assert names == {"a": {"x": 1}, "g": {"v": 5}, "a/x": 1}
    assert list(names) == ["a", "g", "a/x"]


def test_an_empty_grid_has_no_variants():
    assert configs({"a": grid_search([]), "b": grid_search([1, 2])}) == []


def test_grid_and_expression_count_only_as_the_sole_key():
    space = {"a": {"grid_search": [1, 2], "other": 3}, "b": {"eval": "1", "c": 2}}
    assert configs(space) == [space]


def test_domains_may_sit_in_tuples_inside_tuples():
    # Ray: TypeError
    assert configs({"t": ((grid_search([1, 2]), "a"), 3)}) == [{"t": ((1, "a"), 3)}, {"t": ((2, "a"), 3)}]


def test_variants_share_no_containers():
    space = {"c": {"l": [1]}, "g": grid_search([{"d": [0]}]), "n": grid_search([1, 2])}
    first, second = configs(space)
    first["c"]["l"].append(2)
    first["g"]["d"].append(2)
    assert second == {"c": {"l": [1]}, "g": {"d": [0]}, "n": 2}
    assert space["g"] == {"grid_search": [{"d": [0]}]}


def test_a_grid_of_something_else_than_values_is_refused():
    with pytest.raises(ValueError, match=r"^grid_search\b.*'a'.*\b5$"):
        configs({"a": {"grid_search": 5}})


def test_what_is_open_is_found_anywhere():
    assert has_unresolved_values({"a": [({"b": uniform(0, 1)},)]})
    assert has_unresolved_values({"a": {"grid_search": []}})
    assert not has_unresolved_values({"a": [({"b": 1},)], "c": object()})
