from __future__ import annotations

import itertools
import json
import logging
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.base.ids import CountingIds
from muster.errors import RestoreError
from muster.trials.template import TrialTemplate
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.space import choice, grid_search, sample_from, uniform


def template(space, num_samples=1, name="t"):
    return TrialTemplate(trainable_name=name, param_space=space, num_samples=num_samples)


def generator(space, num_samples=1, **options):
    made = BasicVariantGenerator(id_prefix="abcde", **options)
    made.add_configurations(template(space, num_samples))
    return made


def rest(made):
    """Every trial that is left, as comparable values."""
    trials = iter(made.next_trial, None)
    return [(t.trial_id, t.config, t.evaluated_params, t.experiment_tag) for t in trials]


def tags(made):
    return [tag for *_, tag in rest(made)]


def test_samples_without_domains_are_numbered():
    assert tags(generator({}, 2)) == ["0", "1"]


def test_an_expression_is_in_the_tag():
    assert rest(generator({"foo": {"eval": "2 + 2"}})) == [("abcde_00000", {"foo": 4}, {"foo": 4}, "0_foo=4")]


def test_grids_are_gone_through_first_by_name_fastest():
    made = generator({"foo": grid_search([1, 2, 3]), "bar": grid_search([True, False])})
    assert made.total_samples == 6
    assert tags(made) == [
        "0_bar=True,foo=1",
        "1_bar=False,foo=1",
        "2_bar=True,foo=2",
        "3_bar=False,foo=2",
        "4_bar=True,foo=3",
        "5_bar=False,foo=3",
    ]


def test_a_grid_may_hold_whole_configs():
    assert rest(generator(grid_search([{"a": 1}, {"a": 2}]))) == [
        ("abcde_00000", {"a": 1}, {"": {"a": 1}}, "0_config=a_1"),
        ("abcde_00001", {"a": 2}, {"": {"a": 2}}, "1_config=a_2"),
    ]


def test_samples_are_outside_and_grids_inside():
    assert [c["a"] for _, c, _, _ in rest(generator({"a": grid_search([1, 2])}, 2))] == [1, 2, 1, 2]


def test_env_is_not_dropped_from_the_tag():
    assert tags(generator({"env": grid_search(["x"]), "run": grid_search([1])})) == ["0_env=x,run=1"]


def test_objects_and_functions_are_real_in_the_config_and_short_elsewhere():
    thing = object()
    made = generator({"c": grid_search([thing, 5]), "f": sample_from(lambda config: config["c"]), "o": thing})
    first, second = rest(made)
    assert first[1:] == (
        {"c": thing, "f": thing, "o": thing},
        {"c": ("__ref_ph", "359bf6a3")},
        "0_c=ref_ph_359bf6a3",
    )
    assert second[1:] == ({"c": 5, "f": 5, "o": thing}, {"c": 5}, "1_c=5")  # Ray: mixed options can raise


def test_several_experiments_are_chained_and_numbers_never_repeat():
    # Ray counts only outer grids before the next experiment, so its ids can repeat.
    made = BasicVariantGenerator(id_prefix="abcde", random_state=1)
    nested = {"a": choice([{"x": grid_search([1, 2, 3])}])}
    made.add_configurations({"one": template(nested, name="one"), "two": template({"b": 1}, 2, name="two")})
    assert made.total_samples == 1 + 2
    trials = list(iter(made.next_trial, None))
    assert [str(t) for t in trials] == [
        "one_abcde_00000",
        "one_abcde_00001",
        "one_abcde_00002",
        "two_abcde_00003",
        "two_abcde_00004",
    ]
    assert made.total_samples == 5


def test_it_is_finished_once_it_was_asked_in_vain():
    made = generator({})
    assert made.next_trial() is not None
    assert not made.is_finished()
    assert made.next_trial() is None
    assert made.is_finished()


def test_it_can_be_told_to_finish():
    made = generator({}, 5)
    made.set_finished()
    assert (made.is_finished(), made.next_trial()) == (True, None)


@pytest.mark.conformance("C-128")
def test_unfinished_trials_are_limited():
    made = generator({}, 5, max_concurrent=2)
    first, second = made.next_trial(), made.next_trial()
    assert made.next_trial() is None
    assert not made.is_finished()
    made.on_trial_complete(first.trial_id)
    assert made.next_trial().trial_id == "abcde_00002"
    assert second.trial_id == "abcde_00001"


def test_an_endless_number_of_samples():
    made = generator({"x": uniform(0, 1)}, -1, random_state=1)
    assert made.total_samples == sys.maxsize
    assert len({made.next_trial().config["x"] for _ in range(20)}) == 20


def test_an_empty_grid_yields_no_trials_however_many_samples():
    assert rest(generator({"a": grid_search([])}, -1)) == []


def test_ids_come_from_the_id_source():
    made = BasicVariantGenerator(ids=CountingIds())
    made.add_configurations(template({}))
    prefix, number = made.next_trial().trial_id.split("_")
    assert (len(prefix), int(prefix, 16) >= 0, number) == (5, True, "00000")
    again = BasicVariantGenerator(ids=CountingIds())
    again.add_configurations(template({}))
    assert again.next_trial().trial_id == f"{prefix}_00000"


# Points.

GRIDS = {"a": grid_search([1, 2, 3, 4]), "b": grid_search([1, 2, 3]), "x": uniform(0, 1)}


@pytest.mark.conformance("C-121")
@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([{"a": 1}], 3 + 60),
        ([{"b": 1}], 4 + 60),
        ([{"a": 1, "b": 1}], 1 + 60),
        ([{"a": 1}, {"b": 2}, {"a": 1, "b": 1}], 3 + 4 + 1 + 36),
    ],
)
def test_a_point_replaces_a_sample_and_goes_through_what_it_leaves_open(points, expected):
    made = generator(GRIDS, 6, points_to_evaluate=points, random_state=1)
    assert made.total_samples == expected
    found = rest(made)
    assert len(found) == expected
    assert all(found[0][1][key] == value for key, value in points[0].items())


def test_more_points_than_samples_all_run():
    made = generator({"a": uniform(0, 1)}, 1, points_to_evaluate=[{"a": 0.1}, {"a": 0.2}, {"a": 0.3}])
    assert rest(made) == [(f"abcde_0000{i}", {"a": v}, {}, str(i)) for i, v in enumerate([0.1, 0.2, 0.3])]


def test_points_apply_to_every_experiment():
    made = BasicVariantGenerator(points_to_evaluate=[{"a": 7}], random_state=1, id_prefix="p")
    made.add_configurations([template({"a": uniform(0, 9)}), template({"a": uniform(0, 9)})])
    assert [c["a"] for _, c, _, _ in rest(made)] == [7, 7]


@pytest.mark.parametrize("point", [{"z": 1}, {"n": {"z": 1}}, {"n/a": 1}, {"l": [1, 2, 3]}])
def test_an_unknown_key_or_index_in_a_point_is_a_key_error(point):
    # A list that is too long: TypeError in Ray.
    with pytest.raises(KeyError, match=r"points_to_evaluate: '(z|n/z|n/a|l/2)'"):
        generator({"a": 1, "n": {"a": 1}, "l": [1, 2]}, points_to_evaluate=[point])


@pytest.mark.parametrize(
    ("space", "point", "words"),
    [
        ({"a": 5}, {"a": 3}, "preset value 3 of parameter 'a' is not its constant 5"),
        ({"a": 0}, {"a": 3}, "preset value 3 of parameter 'a' is not its constant 0"),
        ({"a": uniform(0, 1)}, {"a": 3}, "preset value 3 of parameter 'a' is outside of (0, 1)"),
        ({"a": grid_search([1])}, {"a": 3}, "preset value 3 of parameter 'a' is outside of the grid"),
        ({"l": [uniform(0, 1)]}, {"l": [3]}, "preset value 3 of parameter 'l/0' is outside of (0, 1)"),
        ({"a": choice(["x"])}, {"a": 3}, "preset value 3 of parameter 'a' is outside of ['x']"),
    ],
)
def test_a_value_the_space_does_not_have_is_used_with_a_warning(space, point, words, caplog):
    (found,) = rest(generator(space, points_to_evaluate=[point]))
    assert found[1] == point
    assert [words in message for message in caplog.messages] == [True]


def test_a_point_that_fits_gives_no_warning_and_a_domain_in_it_changes_nothing(caplog):
    space = {"a": 1, "b": uniform(0, 1), "c": choice([{"d": 1}, 2])}
    made = generator(space, points_to_evaluate=[{"a": 1, "b": uniform(5, 6), "c": {"d": 1}}], random_state=1)
    (found,) = rest(made)
    assert 0 <= found[1]["b"] <= 1
    assert (found[1]["c"], list(found[2]), caplog.messages) == ({"d": 1}, ["b"], [])


# Random values.


def test_constant_random_values_are_shared_inside_a_sample_and_differ_between_samples():
    space = {"g": grid_search([1, 2, 3]), "x": uniform(0, 1), "e": {"eval": "spec.config.g * 10"}}
    found = rest(generator(space, 2, constant_grid_search=True, random_state=1))
    values = [config["x"] for _, config, _, _ in found]
    assert len(set(values[:3])) == len(set(values[3:])) == 1
    assert values[0] != values[3]
    assert [config["e"] for _, config, _, _ in found] == [10, 20, 30] * 2
    assert [evaluated["g"] for _, _, evaluated, _ in found] == [1, 2, 3] * 2
    fresh = rest(generator(space, 2, random_state=1))
    assert len({config["x"] for _, config, _, _ in fresh}) == 6


def test_constant_random_values_nested_in_a_choice_are_drawn_per_grid_point():
    space = {"g": grid_search([1, 2]), "c": choice([{"x": uniform(0, 1)}])}
    found = rest(generator(space, constant_grid_search=True, random_state=1))
    assert found[0][1]["c"]["x"] != found[1][1]["c"]["x"]


@pytest.mark.parametrize(
    "seed", [lambda: 5, lambda: np.random.default_rng(5), lambda: np.random.RandomState(5)]
)
def test_the_same_seed_makes_the_same_trials(seed):
    space = {"x": uniform(0, 1), "c": choice(["a", "b"]), "g": grid_search([1, 2])}
    assert rest(generator(space, 5, random_state=seed())) == rest(generator(space, 5, random_state=seed()))


def test_numpys_global_seed_decides_when_there_is_none_but_its_stream_is_our_own():
    space = {"x": uniform(0, 1)}
    np.random.seed(11)
    expected = rest(generator(space, 4))
    np.random.seed(11)
    made = generator(space, 4)
    found = []
    while (trial := made.next_trial()) is not None:
        np.random.random()  # somebody else draws
        found.append(trial.config)
    assert found == [config for _, config, _, _ in expected]


# Laziness and resume.


def test_a_huge_grid_is_neither_listed_nor_warned_about(caplog):
    made = generator({"a": grid_search(range(10**9)), "b": grid_search(range(10**9)), "x": uniform(0, 1)})
    with caplog.at_level(logging.WARNING):
        assert made.total_samples == 10**18
        assert [made.next_trial().config["a"] for _ in range(3)] == [0, 1, 2]
    saved = made.save_state()
    assert len(saved) < 1000
    again = generator({"a": grid_search(range(10**9)), "b": grid_search(range(10**9)), "x": uniform(0, 1)})
    again.restore_state(saved)
    assert again.next_trial().config == made.next_trial().config
    assert caplog.messages == []


def test_any_point_of_a_huge_grid_is_reached_at_once():
    space = {"a": grid_search(range(10**6)), "b": grid_search(range(10**6))}
    made = generator(space)
    made.next_trial()
    state = json.loads(made.save_state())
    state["frames"][0][0] = 123456 * 10**6 + 789
    made.restore_state(json.dumps(state).encode())
    assert made.next_trial().config == {"a": 789, "b": 123456}


MARKS = [object(), object()]
SPACES = [
    {"a": grid_search([1, 2, 3]), "x": uniform(0, 1)},
    {"x": uniform(0, 1), "c": choice([{"g": grid_search([1, 2]), "y": uniform(0, 1)}, 5, MARKS[0]])},
    {"g": grid_search([{"h": grid_search([1, 2])}, choice([1, 2, 3])]), "z": (uniform(0, 1), [choice("ab")])},
    {"o": grid_search(MARKS), "e": {"eval": "spec.config.x + 1"}, "x": uniform(0, 1)},
    {"k": 1},
]
RANDOM_STATES = [
    lambda: 3,
    lambda: np.random.RandomState(3),
    lambda: np.random.Generator(np.random.MT19937(3)),
]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    spaces=st.lists(st.sampled_from(SPACES), min_size=1, max_size=2),
    num_samples=st.integers(1, 3),
    is_constant=st.booleans(),
    random_state=st.sampled_from(RANDOM_STATES),
    stop=st.integers(0, 30),
    is_early=st.booleans(),
)
def test_restored_anywhere_it_makes_the_trials_that_were_left(
    spaces, num_samples, is_constant, random_state, stop, is_early
):
    templates = [template(space, num_samples) for space in spaces]
    made = BasicVariantGenerator(constant_grid_search=is_constant, random_state=random_state())
    made.add_configurations(templates)
    for _ in range(stop):
        made.next_trial()
    saved = made.save_state()
    again = BasicVariantGenerator(constant_grid_search=is_constant)
    if is_early:
        again.restore_state(saved)
    again.add_configurations(templates)
    if not is_early:
        again.restore_state(saved)
    assert again.save_state() == saved
    assert again.is_finished() == made.is_finished()
    assert rest(again) == rest(made)
    assert again.save_state() == made.save_state()


def test_a_state_saved_before_the_first_draw_fixes_what_will_be_drawn():
    made = generator({"x": uniform(0, 1)}, 3)
    again = generator({"x": uniform(0, 1)}, 3)
    again.restore_state(made.save_state())
    assert rest(again) == rest(made)


def test_points_limits_and_sample_counts_are_restored_too():
    options = {"points_to_evaluate": [{"a": 1}], "max_concurrent": 2, "random_state": 1}
    made = generator(GRIDS, 3, **options)
    made.next_trial()
    made.next_trial()
    again = generator(GRIDS, 1, **options)  # the number of samples is in the state
    again.restore_state(made.save_state())
    assert again.next_trial() is None
    for one in (made, again):
        one.max_concurrent = 0
    assert (again.total_samples, rest(again)) == (3 + 24, rest(made))


@pytest.mark.conformance("C-240")
def test_new_objects_may_be_brought_to_a_restored_generator():
    made = generator({"c": grid_search([object(), object()])})
    made.next_trial()
    new = [object(), object()]
    again = generator({"c": grid_search(new)})
    again.restore_state(made.save_state())
    assert again.next_trial().config["c"] is new[1]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (b"\x80garbage", "not a saved state"),
        (b"{}", "not a saved state"),
        (b'{"version": 2}', "reads version 1"),
    ],
)
def test_a_state_that_is_none_is_refused(state, words):
    with pytest.raises(RestoreError, match=words):
        generator({}).restore_state(state)


def test_another_space_is_refused():
    saved = generator({"a": grid_search([1, 2])}).save_state()
    with pytest.raises(RestoreError, match="param_space"):
        generator({"a": grid_search([1, 2, 3])}).restore_state(saved)


def test_rays_directory_methods_keep_the_newest_state(tmp_path):
    made = generator({"x": uniform(0, 1)}, 4, random_state=1)
    assert not made.has_checkpoint(str(tmp_path))
    with pytest.raises(RestoreError, match=r"basic-variant-state-\*"):
        made.restore_from_dir(str(tmp_path))
    for session in ("2024-01-01", "2024-01-02"):
        made.next_trial()
        made.save_to_dir(str(tmp_path), session)
    again = generator({"x": uniform(0, 1)}, 4)
    again.restore_from_dir(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "basic-variant-state-2024-01-01.json",
        "basic-variant-state-2024-01-02.json",
    ]
    assert made.has_checkpoint(str(tmp_path))
    assert rest(again) == rest(made)


def test_the_metric_is_taken_once():
    made = BasicVariantGenerator()
    assert made.set_search_properties("loss", "min", {})
    assert made.metric == "loss"
    assert not made.set_search_properties("other", "min", {})
    assert made.metric == "loss"


def test_grids_are_mixed_radix_whatever_their_sizes():
    sizes = {"a": 2, "b": 3, "c": 4}
    made = generator({name: grid_search(range(size)) for name, size in sizes.items()})
    found = [(c["c"], c["b"], c["a"]) for _, c, _, _ in rest(made)]
    assert found == list(itertools.product(range(4), range(3), range(2)))
