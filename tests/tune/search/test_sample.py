from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.tune.search import sample
from muster.tune.search.sample import Categorical, Float, Integer, LogUniform, Normal, Quantized, Uniform
from muster.tune.search.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)


def values(domain, count=2000, seed=1):
    return list(domain.sample(size=count, random_state=seed))


def shares(domain, count=20000):
    drawn = values(domain, count)
    return {value: drawn.count(value) / count for value in sorted(set(drawn))}


def near(expected):
    return pytest.approx(expected, abs=0.012)


def test_integer_multiples_count_the_same_and_the_upper_bound_is_one_of_them():
    assert shares(qrandint(0, 10, 2)) == near(dict.fromkeys([0, 2, 4, 6, 8, 10], 1 / 6))


def test_with_a_step_of_one_the_upper_bound_is_excluded():
    assert set(values(qrandint(0, 10))) == set(range(10))
    assert set(values(qlograndint(1, 4, 1))) == {1, 2, 3}
    assert set(values(randint(3, 5))) == {3, 4}


def test_quantised_floats_include_both_ends_with_half_weight():
    assert shares(quniform(0, 1, 0.25)) == near({0: 0.125, 0.25: 0.25, 0.5: 0.25, 0.75: 0.25, 1: 0.125})


def test_a_float_step_of_one_still_rounds():
    assert set(values(quniform(0, 3, 1))) == {0.0, 1.0, 2.0, 3.0}


def test_log_integers_are_the_floor_of_a_log_uniform_number():
    # P(k) = ln((k + 1) / k) / ln(4)
    assert shares(lograndint(1, 4)) == near({1: 0.5, 2: 0.29, 3: 0.21})


def test_log_multiples_are_drawn_by_index_with_the_upper_bound():
    # indices 1 and 2 on [1, 3): ln 2 / ln 3 and the rest
    assert shares(qlograndint(2, 8, 4)) == near({4: 0.63, 8: 0.37})


@pytest.mark.conformance("C-117")
def test_log_uniform_reaches_both_ends():
    drawn = values(loguniform(1e-4, 1e-1), 5000)
    assert 1e-4 <= min(drawn) < 1.02e-4
    assert 0.98e-1 < max(drawn) <= 1e-1
    assert 0.48 < sum(value < 10**-2.5 for value in drawn) / 5000 < 0.52


def test_normal_numbers_have_their_mean_and_deviation():
    drawn = np.array(values(randn(10, 2), 20000))
    assert (round(drawn.mean(), 1), round(drawn.std(), 1)) == (10.0, 2.0)
    assert {value % 2 for value in values(qrandn(0, 3, 2))} == {0.0}


def test_a_rounded_normal_number_is_never_minus_zero():
    assert all(math.copysign(1, value) == 1 for value in values(qrandn(0, 1, 2)) if value == 0)


def test_one_value_has_the_users_type_and_several_are_an_array_or_a_list():
    assert type(uniform(0, 1).sample(random_state=1)) is float
    assert type(randint(0, 9).sample(random_state=1)) is int
    assert type(qrandint(0, 9, 3).sample(random_state=1)) is int
    assert isinstance(uniform(0, 1).sample(size=3, random_state=1), np.ndarray)
    assert type(quniform(0, 1, 0.5).sample(size=3, random_state=1)) is list
    assert type(choice([1, 2]).sample(size=3, random_state=1)) is list


def test_a_choice_keeps_the_types_of_its_elements():
    options = [1, "1", 1.5, None, (1, 2), {"a": 1}]
    assert {type(value) for value in values(choice(options))} == {int, str, float, type(None), tuple, dict}


def test_the_same_seed_gives_the_same_values_whatever_its_kind():
    domain = uniform(0, 1)
    assert values(domain, 5, 7) == values(domain, 5, 7)
    assert values(domain, 5, np.random.default_rng(7)) == values(domain, 5, 7)
    legacy = [values(choice("abc"), 5, np.random.RandomState(7)) for _ in range(2)]
    assert legacy[0] == legacy[1]


def test_without_a_seed_numpys_global_state_is_used():
    np.random.seed(3)
    first = uniform(0, 1).sample(), randint(0, 100).sample()
    np.random.seed(3)
    assert (uniform(0, 1).sample(), randint(0, 100).sample()) == first


@pytest.mark.conformance("C-120")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Float(0, 1).uniform().uniform(), "already has the sampler"),
        (lambda: loguniform(0, 1), "bounds above 0"),
        (lambda: loguniform(-4, -1), "exponents"),
        (lambda: loguniform(1, math.inf), "finite"),
        (lambda: lograndint(0, 5), "bounds above 0"),
        (lambda: uniform(0, math.inf), "finite bounds"),
        (lambda: Float(None, 1).uniform(), "finite bounds"),
        (lambda: quniform(0, 1, 0.3), "the bound 1 is not a multiple"),
        (lambda: qloguniform(0.15, 1, 0.1), "the bound 0.15 is not a multiple"),
        (lambda: quniform(0, 1, 0), "step must be positive"),
        (lambda: sample_from(lambda a, b: 1), "function of nothing or of the config"),
        (lambda: randint(3, 3).sample(random_state=1), "low >= high"),
        (lambda: qrandint(5, 5, 1).sample(random_state=1), "low >= high"),
        (lambda: qrandint(5, 7, 4).sample(random_state=1), "no multiple of 4"),
        (lambda: choice([]).sample(random_state=1), "choice\\(\\) of nothing"),
    ],
)
def test_what_cannot_be_drawn_is_a_value_error(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_normal_domain_needs_a_positive_deviation():
    with pytest.raises(AssertionError, match="sd > 0"):
        randn(0, 0)


def test_bounds_in_the_wrong_order_are_accepted_when_the_domain_is_made():
    assert uniform(2, 1).domain_str == "(2, 1)"


def test_a_bound_that_is_a_multiple_up_to_rounding_counts_as_one():
    assert set(values(quniform(0.1, 0.3, 0.1), 500)) == {0.1, 0.2, 0.3}


def test_a_base_is_accepted_with_a_warning_and_changes_nothing():
    with pytest.warns(DeprecationWarning, match=r"\bbase\b"):
        domain = loguniform(1, 100, base=2)
    assert values(domain, 5) == values(loguniform(1, 100), 5)


def test_validity_is_about_the_range_or_the_options_and_never_raises():
    assert [uniform(0, 1).is_valid(v) for v in (0, 1, 1.1, "a", None)] == [True, True, False, False, False]
    assert [qrandint(0, 10, 2).is_valid(v) for v in (3, 2.5, 10)] == [True, True, True]
    assert [choice([1, "a"]).is_valid(v) for v in (1, "a", 2)] == [True, True, False]
    assert sample_from(lambda: 1).is_valid(object())


def test_searchers_can_read_bounds_and_samplers():
    quantized = qloguniform(0.1, 1, 0.1).get_sampler()
    assert isinstance(quantized, Quantized)
    assert (quantized.q, type(quantized.get_sampler())) == (0.1, LogUniform)
    assert isinstance(randn(1, 2).get_sampler(), Normal)
    assert isinstance(Integer(1, 2).get_sampler(), Uniform)
    assert (Float(None, 3).lower, Categorical("ab").categories) == (-math.inf, ["a", "b"])
    assert [d.domain_str for d in (uniform(0, 1), randint(1, 5), choice(["a"]))] == [
        "(0, 1)",
        "(1, 5)",
        "['a']",
    ]


def test_functions_are_given_the_config_if_they_want_it():
    assert sample_from(lambda: 3).sample() == 3
    assert sample_from(lambda config: config["x"]).sample({"x": 4}) == 4
    assert sample_from(lambda config: config["x"]).sample({"x": 4}, size=2) == [4, 4]


def test_a_grid_keeps_sequences_as_they_are_and_reads_iterators_once():
    values = range(10)
    assert grid_search(values)["grid_search"] is values
    assert grid_search(iter([1, 2])) == {"grid_search": [1, 2]}


def test_rays_module_path_has_the_classes_and_the_functions():
    assert {sample.Domain, sample.Float, sample.Integer, sample.Categorical, sample.Function}
    assert sample.uniform is uniform


finite = st.floats(-1e6, 1e6, allow_nan=False)
seeds = st.integers(0, 2**32 - 1)


@given(lower=finite, width=st.floats(0, 1e6), seed=seeds)
def test_any_float_is_within_its_bounds(lower, width, seed):
    value = uniform(lower, lower + width).sample(random_state=seed)
    assert lower <= value <= lower + width


@given(lower=st.floats(1e-9, 1e6), factor=st.floats(1, 1e9), seed=seeds)
def test_any_log_uniform_float_is_within_its_bounds(lower, factor, seed):
    assert lower <= loguniform(lower, lower * factor).sample(random_state=seed) <= lower * factor


@given(
    low=st.integers(-1000, 1000),
    steps=st.integers(0, 1000),
    q=st.sampled_from([0.1, 0.25, 0.3, 1, 7]),
    seed=seeds,
)
def test_any_quantised_float_is_on_the_grid_and_within_its_bounds(low, steps, q, seed):
    domain = quniform(low * q, (low + steps) * q, q)
    value = domain.sample(random_state=seed)
    assert domain.lower <= value <= domain.upper
    assert abs(value / q - round(value / q)) < 1e-6


@pytest.mark.slow
@given(
    low=st.integers(1, 10**6),
    width=st.integers(0, 10**6),
    q=st.integers(2, 100),
    is_log=st.booleans(),
    seed=seeds,
)
def test_any_quantised_integer_is_a_multiple_within_its_bounds(low, width, q, is_log, seed):
    domain = (qlograndint if is_log else qrandint)(low, low + width, q)
    if (low + width) // q < -(-low // q):
        with pytest.raises(ValueError, match="no multiple"):
            domain.sample(random_state=seed)
    else:
        value = domain.sample(random_state=seed)
        assert low <= value <= low + width
        assert value % q == 0


@given(low=st.integers(1, 10**9), width=st.integers(1, 10**9), seed=seeds)
def test_any_log_integer_is_below_its_upper_bound(low, width, seed):
    assert low <= lograndint(low, low + width).sample(random_state=seed) < low + width


def test_the_samplers_of_domains_are_told_apart_by_class_as_in_ray():
    from muster.tune.search.sample import Categorical, Float, Integer

    kinds = (Categorical, Float, Integer)
    domains = (Categorical([1]).uniform(), Float(0, 1).uniform(), Integer(0, 2).uniform())
    found = [
        [isinstance(domain.get_sampler(), kind.default_sampler_cls) for kind in kinds] for domain in domains
    ]
    assert found == [[True, False, False], [False, True, False], [False, False, True]]
    assert isinstance(Float(1, 2).loguniform().get_sampler(), Float._LogUniform)
