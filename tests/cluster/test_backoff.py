"""Back-off after failures, and Ray's availability scores."""

from __future__ import annotations

import pytest
from tests.mistakes.views import assert_line

from muster.cluster.backoff import (
    after_failure,
    after_success,
    as_requested,
    availabilities,
    decayed_failures,
    is_blocked,
    recoverable,
)
from muster.cluster.model import Backoff, FailureKind
from muster.cluster.snapshot import TypeHealth

POLICY = Backoff(base_s=5.0, max_s=600.0, user_action_base_s=60.0, decay_s=300.0)


def fail_again_and_again(kind, times, start=0.0):
    """Each failure comes right when the pause of the one before is over."""
    health, now, pauses = TypeHealth(), start, []
    for _ in range(times):
        health = after_failure(health, kind, "no", now, POLICY)
        pauses.append(health.blocked_until - now)
        now = health.blocked_until
    return pauses


def test_the_first_failure_blocks_for_the_base_and_says_why():
    health = after_failure(TypeHealth(timed_out_at=3.0), FailureKind.CAPACITY, "sold out", 100.0, POLICY)
    assert health == TypeHealth(
        failures=1.0,
        failed_at=100.0,
        blocked_until=105.0,
        kind=FailureKind.CAPACITY,
        message="sold out",
        timed_out_at=3.0,
    )
    assert [is_blocked(health, at) for at in (100.0, 104.9, 105.0)] == [True, True, False]


@pytest.mark.parametrize("kind", [FailureKind.CAPACITY, FailureKind.THROTTLED, FailureKind.UNKNOWN])
def test_pauses_double_up_to_the_maximum(kind):
    assert fail_again_and_again(kind, 10) == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]


@pytest.mark.parametrize("kind", [FailureKind.QUOTA, FailureKind.PERMISSION, FailureKind.CONFIG])
def test_what_needs_a_person_is_asked_less_often(kind):
    assert fail_again_and_again(kind, 6) == [60, 120, 240, 480, 600, 600]


def test_a_lesser_failure_does_not_end_the_pause_of_a_graver_one():
    """Found by seed 150300004 (ec2): a time-out let a type whose set-up had failed be launched again."""
    health = after_failure(TypeHealth(), FailureKind.SETUP, "exit 7", 0.0, POLICY)
    health = after_failure(health, FailureKind.UNKNOWN, "no node came", 8.0, POLICY)
    assert (health.blocked_until, health.is_on_trial) == (60.0, True)


@pytest.mark.parametrize("takes_s", [10.0, 300.0, 3600.0])
def test_a_machine_that_takes_long_to_fail_does_not_shorten_the_pauses(takes_s):
    health, now, pauses = TypeHealth(), 0.0, []
    for _ in range(5):
        asked_at, now = now, now + takes_s
        before = as_requested(health, asked_at, now, POLICY)
        health = after_failure(before, FailureKind.SETUP, "no", now, POLICY)
        pauses.append(health.blocked_until - now)
        now = health.blocked_until
    assert pauses == [60, 120, 240, 480, 600]


def test_machines_requested_before_a_failure_was_known_add_nothing_to_it():
    health = after_failure(TypeHealth(), FailureKind.SETUP, "no", 100.0, POLICY)
    second = after_failure(as_requested(health, 90.0, 130.0, POLICY), FailureKind.SETUP, "no", 130.0, POLICY)
    assert (second.failures, second.blocked_until) == (1.0, 190.0)


def test_a_machine_that_came_does_not_clear_failed_set_ups():
    health = after_failure(TypeHealth(), FailureKind.SETUP, "no", 100.0, POLICY)
    assert after_success(health, 10_000.0, POLICY) == health


def sold_out(times, start=0.0, policy=POLICY):
    health, now, told = TypeHealth(), start, []
    for _ in range(times):
        health = after_failure(health, FailureKind.CAPACITY, "none", now, policy, 180.0)
        told.append((round(health.blocked_until - now), health.message))
        now = health.blocked_until
    return told


def test_an_empty_stock_is_left_alone_for_minutes_and_longer_each_time_up_to_half_an_hour():
    assert [pause for pause, _ in sold_out(6)] == [180, 360, 720, 1440, 1800, 1800]
    once, twice, thrice = (said for _, said in sold_out(3))
    assert once == "none"
    assert_line("cluster", "stock empty 2 times", twice)
    assert_line("cluster", "stock empty 3 times", thrice)
    assert sold_out(5, policy=Backoff(sold_out_max_s=400.0))[-1][0] == 600  # never below max_s


def test_a_machine_that_came_halves_the_refusals_until_they_are_forgotten():
    health = TypeHealth(failures=4.0, failed_at=10.0, blocked_until=20.0)
    half = after_success(health, 20.0, POLICY)
    assert half == TypeHealth(failures=2.0, failed_at=10.0, blocked_until=20.0)
    assert after_success(after_success(half, 20.0, POLICY), 20.0, POLICY) is None
    paused = TypeHealth(failures=1.0, failed_at=10.0, blocked_until=90.0)
    assert after_success(paused, 20.0, POLICY).blocked_until == 90.0


def test_quiet_time_halves_the_count():
    health = TypeHealth(failures=8.0, failed_at=0.0, blocked_until=100.0)
    assert decayed_failures(health, 50.0, POLICY) == 8.0  # the pause itself is not quiet time
    assert decayed_failures(health, 100.0, POLICY) == 8.0
    assert decayed_failures(health, 400.0, POLICY) == 4.0
    assert decayed_failures(health, 1_000.0, POLICY) == 1.0
    assert decayed_failures(health, 1e12, POLICY) < 1e-15


def test_after_long_quiet_a_failure_counts_as_the_first():
    health = TypeHealth(failures=8.0, failed_at=0.0, blocked_until=100.0)
    pause = after_failure(health, FailureKind.CAPACITY, "no", 100.0 + 40 * 300.0, POLICY).blocked_until
    assert pause - (100.0 + 40 * 300.0) == pytest.approx(5.0)


def test_hundreds_of_failures_stay_finite():
    health = TypeHealth(failures=1e6, failed_at=0.0, blocked_until=0.0)
    assert after_failure(health, FailureKind.CAPACITY, "no", 0.0, POLICY).blocked_until == 600.0


def test_nobody_knows_of_a_failure_nobody_is_blocked():
    assert not is_blocked(None, 0.0)
    assert not is_blocked(TypeHealth(), 0.0)


@pytest.mark.parametrize(
    ("age", "score"), [(0, 0.0), (9.9, 0.0), (11, 11 / 600), (300, 0.5), (600, 1.0), (9e9, 1.0)]
)
def test_ps1_a_type_whose_machine_never_came_up_recovers_over_time(age, score):
    assert recoverable(TypeHealth(timed_out_at=0.0), float(age), 600.0) == pytest.approx(score)


def test_short_windows_start_recovering_after_a_tenth():
    assert recoverable(TypeHealth(timed_out_at=0.0), 1.9, 20.0) == 0.0
    assert recoverable(TypeHealth(timed_out_at=0.0), 2.0, 20.0) == 0.1


def test_types_without_a_timeout_are_fully_available():
    assert recoverable(None, 0.0, 600.0) == recoverable(TypeHealth(), 0.0, 600.0) == 1.0
    assert recoverable(TypeHealth(timed_out_at=0.0), 0.0, 0.0) == 1.0


def test_the_most_recent_timeout_scores_lowest():
    health = {
        "old": TypeHealth(timed_out_at=1.0),
        "new": TypeHealth(timed_out_at=9.0),
        "middle": TypeHealth(timed_out_at=5.0),
        "never": TypeHealth(failures=3.0),
    }
    scores = availabilities(health)
    assert scores == {"new": 0.0, "middle": pytest.approx(1 / 3), "old": pytest.approx(2 / 3)}
    assert availabilities({}) == {}
