from __future__ import annotations

import pytest
from tests.tune.reporting.examples import NOW, run_info, trial

from muster.base.clock import ManualClock
from muster.tune.reporting.periodic import PeriodicReporter, ReportInterval, Speed


def test_a_cheap_picture_comes_once_per_period():
    pace = ReportInterval(0.25)
    assert pace.due == float("-inf")
    pace.showed(10.0, 10.001)
    assert pace.due == 10.25


def test_expensive_pictures_come_so_rarely_that_they_take_two_percent_of_the_time():
    pace = ReportInterval(0.25)
    for at in (10.0, 20.0, 30.0):
        pace.showed(at, at + 0.1)
    assert pace.due == pytest.approx(35.0)


def test_one_slow_picture_does_not_stop_the_next():
    pace = ReportInterval(0.25)
    pace.showed(10.0, 11.0)
    assert pace.due == 11.0
    pace.showed(11.0, 11.001)
    pace.showed(20.0, 21.0)
    assert pace.due == pytest.approx(21.049)


def test_nothing_finished_means_no_speed_and_no_end():
    speed = Speed(0.0, 0)
    speed.sample(10.0, 0)
    assert (speed.per_second(), speed.eta_s(10, None)) == (None, None)


def test_few_trials_give_the_speed_since_the_start():
    speed = Speed(0.0, 0)
    for at in range(1, 101):
        speed.sample(float(at), 2 if at >= 50 else 0)
    assert speed.per_second() == 2 / 100
    assert speed.eta_s(4, None) == 100.0


def test_many_trials_give_the_speed_of_late():
    speed = Speed(0.0, 0)
    for at in range(1, 101):
        speed.sample(float(at), max(0, (at - 50) * 10))
    assert speed.per_second() == 10.0
    assert speed.eta_s(1000, None) == 50.0


def test_restored_trials_do_not_count_as_fast():
    speed = Speed(100.0, 1000)
    speed.sample(110.0, 1010)
    assert speed.per_second() == 1.0


def test_a_time_budget_that_ends_sooner_is_the_end():
    speed = Speed(0.0, 0)
    speed.sample(10.0, 10)
    assert [speed.eta_s(100, left) for left in (30.0, 300.0, -1.0)] == [30.0, 90.0, 0.0]
    assert speed.eta_s(None, 30.0) == 30.0
    assert speed.eta_s(None, None) is None


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_experiment_that_is_over_has_no_time_left(interrupted):
    ends = []

    class Noting(PeriodicReporter):
        def conclude(self, snapshot, trials, *, interrupted):
            ends.append(snapshot.eta_s)

    reporter = Noting(clock=ManualClock(NOW), period_s=1.0)
    reporter.begin(run_info(total=None, time_budget_s=3600.0))
    reporter.end(interrupted=interrupted, trials=[trial(0, loss=1.0)])
    assert ends == [3600.0 if interrupted else None]
