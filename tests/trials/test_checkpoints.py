"""Retention of checkpoints: spec 2.8 with the corrections of 13.1.5."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.trials.checkpoints import (
    CheckpointToDelete,
    best_checkpoint,
    best_checkpoints,
    deletable,
    register,
    retained,
)
from muster.trials.model import CheckpointPolicy, CheckpointRef, Trial


def ref(index, metrics=None):
    return CheckpointRef(path=f"/x/t/checkpoint_{index:06d}", index=index, metrics=metrics or {})


def kept_after(values, policy, key="score"):
    """Register checkpoints with these scores one by one; kept indices worst first, dropped in order."""
    trial = Trial("t", trial_id="a", checkpoint_policy=policy)
    dropped = []
    for index, value in enumerate(values):
        metrics = value if isinstance(value, dict) else {key: value}
        dropped += [gone.index for gone in register(trial, ref(index, metrics))]
    return [entry.index for entry in trial.checkpoints], dropped, trial


def by_score(keep, order="max", key="score"):
    return CheckpointPolicy(num_to_keep=keep, score_attribute=key, score_order=order)


def test_the_worst_beyond_num_to_keep_go_but_the_latest_stays():
    kept, dropped, trial = kept_after([0, 2, 4, 1, 3, 0], by_score(2))
    assert (kept, dropped) == ([5, 4, 2], [0, 3, 1])
    assert [r.index for r in best_checkpoints(trial.checkpoints, trial.checkpoint_policy)] == [4, 2]
    assert trial.newest == trial.checkpoints[0]
    assert trial.checkpoint_index == 5


def test_a_protected_latest_goes_with_the_next_registration():
    assert kept_after([5, 9, 1, 2], by_score(2))[:2] == ([3, 0, 1], [2])


def test_min_order_keeps_the_smallest():
    assert kept_after([5, 9, 1, 2, 0], by_score(2, "min"))[:2] == ([2, 4], [1, 0, 3])


def test_without_a_score_attribute_the_newest_are_kept():
    assert kept_after([5, 9, 1], CheckpointPolicy(num_to_keep=1))[:2] == ([2], [0, 1])


def test_without_num_to_keep_all_are_kept_in_the_order_of_their_scores():
    kept, dropped, trial = kept_after([5, 9, 1], by_score(None))
    assert (kept, dropped) == ([2, 0, 1], [])
    assert best_checkpoints(trial.checkpoints, trial.checkpoint_policy) == trial.checkpoints


def test_of_equal_scores_the_later_ranks_higher():
    assert kept_after([1, 1, 1, 1], by_score(2))[:2] == ([2, 3], [0, 1])


def test_a_nested_score_attribute_is_found():
    values = [{"a": {"b": v}} for v in (5, 9, 1, 2, 0)]
    assert kept_after(values, by_score(2, key="a/b"))[0] == [4, 0, 1]


def test_a_flat_key_with_a_slash_wins_over_a_nested_one():
    values = [{"a/b": 1, "a": {"b": 100}}, {"a/b": 2, "a": {"b": 50}}]
    assert kept_after(values, by_score(None, key="a/b"))[0] == [0, 1]


@pytest.mark.parametrize("order", ["max", "min"])
def test_a_missing_key_is_never_best_and_nan_is_lowest(order):
    values = [{"score": 3.0}, {"other": 1}, {"score": math.nan}, {"score": 4.0}, {"a": {"b": 1}}]
    kept, _, _ = kept_after(values, by_score(None, order))
    assert kept == ([2, 1, 4, 0, 3] if order == "max" else [2, 1, 4, 3, 0])


@pytest.mark.parametrize("value", ["high", None, [1.0]])
def test_a_score_that_is_no_number_is_refused_only_when_compared(value):
    trial = Trial("t", trial_id="a", checkpoint_policy=by_score(2))
    assert register(trial, ref(0, {"score": value})) == ()
    before = trial.checkpoints
    with pytest.raises(TypeError, match="score"):
        register(trial, ref(1, {"score": 1.0}))
    assert (trial.checkpoints, trial.checkpoint_index) == (before, 0)


def test_numpy_scalars_and_bools_are_numbers():
    assert kept_after([np.float32(0.5), True, np.int64(-1)], by_score(None))[0] == [2, 0, 1]


def test_the_latest_is_protected_by_its_directory_when_only_the_score_is_stored():
    trial = Trial("t", trial_id="a", checkpoint_policy=replace(by_score(2), only_score=True))
    for index, metrics in enumerate(({"loss": 2}, {"score": 9, "loss": 2}, {"score": 1, "loss": 2})):
        register(trial, ref(index, metrics))
    assert [(r.index, dict(r.metrics)) for r in trial.checkpoints] == [
        (2, {"score": 1, "loss": 2}),
        (1, {"score": 9}),
    ]
    shown = best_checkpoints(trial.checkpoints, trial.checkpoint_policy)
    assert [dict(r.metrics) for r in shown] == [{"score": 1}, {"score": 9}]


def test_a_directory_that_is_registered_again_is_one_checkpoint():
    policy = by_score(2)
    kept, dropped = retained((ref(0, {"score": 1}), ref(1, {"score": 2})), ref(1, {"score": 0}), policy)
    assert ([(r.index, r.metrics["score"]) for r in kept], dropped) == ([(1, 0), (0, 1)], ())


def test_the_best_by_any_metric_ignores_nan_and_absent_ones():
    refs = (ref(0, {"a": {"b": 2}}), ref(1, {"a": {"b": math.nan}}), ref(2), ref(3, {"a": {"b": 2}}))
    assert best_checkpoint(refs, "a/b", "max") == refs[3]
    assert best_checkpoint(refs[1:3], "a/b", "min") is None


def test_a_checkpoint_may_go_once_its_fact_is_durable_and_nobody_uses_it():
    doomed = [CheckpointToDelete(ref=ref(i), after=after) for i, after in enumerate((3, 5, 4, 2))]
    now, later = deletable(doomed, 4, in_use={ref(3).path})
    assert ([r.index for r in now], [d.ref.index for d in later]) == ([0, 2], [1, 3])
    assert deletable(later, 5) == ((ref(1), ref(3)), ())


SCORES = st.lists(st.one_of(st.integers(-3, 3), st.just(math.nan), st.none()), max_size=12)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(SCORES, st.integers(1, 4), st.sampled_from(["max", "min"]))
def test_whatever_the_scores_nothing_is_lost_and_the_best_k_are_there(scores, keep, order):
    values = [{} if value is None else {"score": value} for value in scores]
    kept, dropped, trial = kept_after(values, by_score(keep, order))
    assert sorted(kept + dropped) == list(range(len(scores)))
    assert len(kept) in {min(keep, len(scores)), min(keep + 1, len(scores))}
    best = best_checkpoints(trial.checkpoints, trial.checkpoint_policy)
    assert len(best) == min(keep, len(scores))
    sign = 1 if order == "max" else -1
    keys = [
        (0, 0) if value != value else (1, sign * value if value is not None else -math.inf)
        for value in scores
    ]
    assert [keys[r.index] for r in trial.checkpoints] == sorted(keys[i] for i in kept)
    if all(a <= b for a, b in itertools.pairwise(keys)):  # never a protected one: exactly the best k
        assert [r.index for r in best] == list(range(len(scores)))[-keep:]
