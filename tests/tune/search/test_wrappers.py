from __future__ import annotations

import math

import pytest
from tests.tune.search.searchers import Recorder, SelfLimiting

from muster.trials.template import TrialTemplate
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.concurrency_limiter import ConcurrencyLimiter
from muster.tune.search.create import create_searcher
from muster.tune.search.optuna import OptunaSearch
from muster.tune.search.repeater import TRIAL_INDEX, Repeater
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.searcher import Searcher


def x(suggestion):
    return suggestion and suggestion["x"]


# ConcurrencyLimiter.


@pytest.mark.conformance("C-124")
def test_the_third_suggestion_waits_until_a_trial_completes():
    limiter = ConcurrencyLimiter(Recorder(), max_concurrent=2)
    assert [x(limiter.suggest(i)) for i in "abc"] == [1, 2, None]
    limiter.on_trial_complete("a", {"loss": 1})
    assert x(limiter.suggest("c")) == 3
    assert limiter.searcher.completed == [("a", {"loss": 1}, False)]


def test_completions_of_unknown_trials_are_ignored_and_results_always_passed_on():
    limiter = ConcurrencyLimiter(Recorder(), max_concurrent=1)
    limiter.on_trial_complete("z", {"loss": 1})
    limiter.on_trial_result("z", {"loss": 1})
    assert (limiter.searcher.completed, limiter.searcher.results) == ([], [("z", {"loss": 1})])


def test_a_second_suggestion_for_one_trial_is_an_assertion():
    limiter = ConcurrencyLimiter(Recorder(), max_concurrent=2)
    limiter.suggest("a")
    with pytest.raises(AssertionError, match=r"\ba\b"):
        limiter.suggest("a")


def test_none_and_finished_take_no_slot():
    limiter = ConcurrencyLimiter(Recorder(last=1), max_concurrent=2)
    assert x(limiter.suggest("a")) == 1
    assert [limiter.suggest(i) for i in "bcd"] == [Searcher.FINISHED] * 3
    assert list(limiter.live_trials) == ["a"]


def test_a_batch_is_withheld_until_all_of_it_is_done():
    limiter = ConcurrencyLimiter(Recorder(), max_concurrent=3, batch=True)
    for trial_id in "abc":
        limiter.suggest(trial_id)
    limiter.on_trial_complete("b", {"loss": 2})
    limiter.on_trial_complete("a", error=True)
    assert (limiter.searcher.completed, limiter.suggest("d")) == ([], None)
    limiter.on_trial_complete("c", {"loss": 3})
    assert limiter.searcher.completed == [
        ("b", {"loss": 2}, False),
        ("a", None, True),
        ("c", {"loss": 3}, False),
    ]
    assert x(limiter.suggest("d")) == 4


@pytest.mark.conformance("C-125")
def test_a_batch_with_fewer_trials_than_slots_ends():
    limiter = ConcurrencyLimiter(Recorder(last=2), max_concurrent=4, batch=True)
    made = SearchGenerator(limiter)
    made.add_configurations(TrialTemplate(trainable_name="t", num_samples=9))
    trials = [made.next_trial(), made.next_trial()]
    for trial in trials:
        made.on_trial_complete(trial.trial_id, {"loss": 1})
    assert len(limiter.searcher.completed) == 2
    assert (made.next_trial(), made.is_finished()) == (None, True)


@pytest.mark.conformance("C-126")
def test_a_searcher_that_limits_itself_is_only_forwarded_to():
    limiter = ConcurrencyLimiter(SelfLimiting(), max_concurrent=1)
    assert limiter.searcher.limit == 1
    assert [x(limiter.suggest(i)) for i in "abc"] == [1, 2, 3]
    limiter.on_trial_complete("unknown", {"loss": 1})
    assert limiter.searcher.completed == [("unknown", {"loss": 1}, False)]


def test_a_limiter_inside_a_limiter_takes_the_outer_limit():
    inner = ConcurrencyLimiter(Recorder(), max_concurrent=5)
    outer = ConcurrencyLimiter(inner, max_concurrent=1)
    assert (inner.max_concurrent, x(outer.suggest("a")), outer.suggest("b")) == (1, 1, None)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
def test_a_limit_is_a_positive_integer(limit):
    with pytest.raises(AssertionError, match=rf"^max_concurrent .*{limit!r}$"):
        ConcurrencyLimiter(Recorder(), max_concurrent=limit)


def test_only_searchers_can_be_wrapped():
    with pytest.raises(RuntimeError, match="wraps a Searcher"):
        ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=1)


@pytest.mark.conformance("C-124")
def test_what_a_limiter_knows_survives_saving():
    limiter = ConcurrencyLimiter(Recorder(), max_concurrent=2, batch=True)
    limiter.suggest("a")
    limiter.suggest("b")
    limiter.on_trial_complete("a", {"loss": 1})
    again = ConcurrencyLimiter(Recorder(), max_concurrent=9)
    again.restore_state(limiter.save_state())
    assert again.suggest("c") is None
    again.on_trial_complete("b", {"loss": 2})
    assert again.searcher.completed == [("a", {"loss": 1}, False), ("b", {"loss": 2}, False)]
    assert x(again.suggest("c")) == 3


def test_pauses_are_passed_on_to_searchers_that_care():
    class Pausing(Recorder):
        def on_pause(self, trial_id):
            self.results.append(trial_id)

    limiter = ConcurrencyLimiter(Pausing(), max_concurrent=1)
    limiter.on_pause("a")
    limiter.on_unpause("a")
    assert limiter.searcher.results == ["a"]


def test_the_metric_is_the_inner_searchers_also_when_it_learns_it_later():
    class Learns(Recorder):
        def set_search_properties(self, metric, mode, config, **spec):
            self._metric, self._mode = metric, mode
            return True

    limiter = ConcurrencyLimiter(Learns(metric=None, mode=None), max_concurrent=1)
    assert SearchGenerator(limiter).set_search_properties("acc", "max", {})
    assert (limiter.metric, limiter.mode) == ("acc", "max")


# Repeater.


def run(repeat, num_samples, **options):
    searcher = Recorder()
    made = SearchGenerator(Repeater(searcher, repeat=repeat, **options))
    made.set_search_properties(None, None, {}, num_samples=num_samples)
    made.add_configurations(TrialTemplate(trainable_name="t", num_samples=num_samples))
    trials = list(iter(made.next_trial, None))
    for number, trial in enumerate(trials):
        made.on_trial_complete(trial.trial_id, {"loss": float(number)})
    return searcher, trials


def test_repeated_once_it_changes_nothing_but_the_index():
    searcher, trials = run(1, 2)
    assert [t.config["x"] for t in trials] == [1, 2]
    assert [result for _, result, _ in searcher.completed] == [{"loss": 0.0}, {"loss": 1.0}]


def test_repeated_four_times_the_searcher_hears_the_mean_once_per_group():
    searcher, trials = run(4, 12)
    assert [t.config["x"] for t in trials] == [1] * 4 + [2] * 4 + [3] * 4
    assert [t.config[TRIAL_INDEX] for t in trials] == [0, 1, 2, 3] * 3
    assert trials[5].experiment_tag.startswith("6_trial_index=1,r=")
    assert searcher.completed == [
        (trials[0].trial_id, {"loss": 1.5}, False),
        (trials[4].trial_id, {"loss": 5.5}, False),
        (trials[8].trial_id, {"loss": 9.5}, False),
    ]


def test_leftovers_run_but_are_never_reported(caplog):
    searcher, trials = run(5, 11)
    assert ([t.config["x"] for t in trials], len(searcher.completed)) == ([1] * 5 + [2] * 5 + [3], 2)
    (message,) = caplog.messages
    assert all(word in message for word in ("num_samples=11 ", "repeat=5;"))


def test_without_an_index_configs_are_equal():
    _, trials = run(2, 2, set_index=False)
    assert trials[0].config == trials[1].config


def test_a_missing_metric_counts_as_nothing_and_the_last_error_flag_is_told():
    repeater = Repeater(Recorder(), repeat=3)
    for trial_id in "abc":
        repeater.suggest(trial_id)
    repeater.on_trial_complete("b", {"loss": 4.0})
    repeater.on_trial_complete("c", {"loss": math.nan}, error=False)
    repeater.on_trial_complete("a", None, error=True)
    assert repeater.searcher.completed == [("a", {"loss": 4.0}, True)]


def test_a_group_without_any_value_is_nan():
    repeater = Repeater(Recorder(), repeat=1)
    repeater.suggest("a")
    repeater.on_trial_complete("a")
    assert math.isnan(repeater.searcher.completed[0][1]["loss"])


def test_intermediate_results_are_not_passed_on_and_the_end_is():
    repeater = Repeater(Recorder(last=0), repeat=2)
    repeater.on_trial_result("a", {"loss": 1})
    assert (repeater.searcher.results, repeater.suggest("a")) == ([], Searcher.FINISHED)


@pytest.mark.conformance("C-127")
def test_a_half_filled_group_survives_saving():
    repeater = Repeater(Recorder(), repeat=3)
    repeater.suggest("a")
    repeater.suggest("b")
    repeater.on_trial_complete("a", {"loss": 1.0})
    again = Repeater(Recorder(), repeat=3)
    again.restore_state(repeater.save_state())
    last = again.suggest("c")
    assert (last["x"], last[TRIAL_INDEX]) == (1, 2)
    again.on_trial_complete("c", {"loss": 3.0})
    again.on_trial_complete("b", {"loss": 2.0})
    assert again.searcher.completed == [("a", {"loss": 2.0}, False)]


# create_searcher.


@pytest.mark.parametrize("name", ["random", "variant_generator", "Random"])
def test_the_basic_generator_by_name(name):
    made = create_searcher(name, max_concurrent=3, metric="other searchers take it")
    assert (type(made), made.max_concurrent) == (BasicVariantGenerator, 3)


def test_optuna_by_name():
    made = create_searcher("optuna", metric="loss", mode="min")
    assert (type(made), made.metric) == (OptunaSearch, "loss")


@pytest.mark.conformance("C-101")
def test_an_unknown_name_is_a_value_error_with_the_known_ones():
    with pytest.raises(ValueError, match=r"bogus.*variant_generator"):
        create_searcher("bogus")


def test_a_repeater_takes_over_the_settings_and_the_open_group_of_another():
    first = Repeater(Recorder(), repeat=3, set_index=False)
    first.suggest("a")
    second = Repeater(Recorder(), repeat=1)
    second.set_state(first.get_state())
    found = second.suggest("b")
    assert (second.repeat, found["x"], TRIAL_INDEX in found) == (3, 1, False)
    assert second.searcher.completed == []
