"""Check that the story has what happened, and that its sums are right."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from muster.cli.main import cli
from muster.sim.cluster.story import simulate_day


@pytest.fixture(scope="module")
def story():
    return simulate_day()


def events_of(story, what):
    return [(m.event.who, dict(m.event.machines)) for m in story.moments if m.event.what.startswith(what)]


def test_a_stockout_falls_back_to_the_next_type(story):
    assert events_of(story, "refuses") == [("cloud", {"gpu-1": 2})]
    launched = events_of(story, "buys")
    assert launched[launched.index(("muster", {"gpu-1": 5})) + 1] == ("muster", {"gpu-4": 1})


def test_preempted_machines_are_replaced(story):
    assert events_of(story, "takes back") == [("cloud", {"cpu-16-spot": 2})]
    names = [m.event.what for m in story.moments]
    after = [m for m in story.moments[names.index("takes back") + 1 :] if m.event.what == "buys"]
    assert dict(after[0].event.machines) == {"cpu-16-spot": 2}


def test_what_can_never_run_is_reported_and_nothing_is_bought_for_it(story):
    giant = [m for m in story.moments if m.event.what == "cannot place 1 of “giant”"]
    assert len(giant) == 1
    assert giant[0].event.why.startswith("infeasible: ")


def test_the_day_ends_with_the_head_alone_and_all_work_done(story):
    assert (story.machines_left, story.tasks_finished) == (1, 100 + 6 + 5 + 4 + 160 + 20)
    assert story.moments[-1].nodes == {}


def test_spend_is_the_bill_up_to_late_listings(story):
    late_s = 2 * 30.0 * story.machines_launched  # at most one tick at each end of each machine
    assert abs(story.spent - story.bill) <= late_s * 4.30 / 3600
    assert story.spent < story.at_peak_all_day / 5


@pytest.mark.slow
def test_the_page_fits_eighty_columns():
    result = CliRunner().invoke(cli, ["sim", "day"])
    assert result.exit_code == 0
    assert max(len(line) for line in result.output.splitlines()) <= 80
