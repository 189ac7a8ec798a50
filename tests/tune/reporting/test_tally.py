from __future__ import annotations

import pytest
from tests.tune.reporting.examples import move, trial

from muster.tune.reporting.tally import KEPT_BEST, KEPT_FAILURES, ExperimentTally, error_line, lookup

NAN = float("nan")


def finished(tally, *trials):
    for each in trials:
        tally.started(each)
        tally.completed(each)


def test_counts_follow_the_events():
    tally = ExperimentTally("loss", "min")
    trials = [trial(n, "PENDING") for n in range(6)]
    for each in trials[:4]:
        tally.started(move(each, "RUNNING"))
    tally.completed(move(trials[0], "TERMINATED"))
    tally.failed(move(trials[1], "ERROR"))
    tally.recovered(move(trials[2], "PENDING"))
    tally.move_paused()
    assert tally.counts(len(trials)) == {
        "RUNNING": 1,
        "TERMINATED": 1,
        "PAUSED": 0,
        "PENDING": 3,
        "ERROR": 1,
    }


def test_a_pause_of_which_nobody_told_is_seen_and_ends_with_the_next_start():
    tally = ExperimentTally("loss", "min")
    each = trial(0, "RUNNING", loss=1.0)
    tally.started(each)
    move(each, "PAUSED")
    tally.move_paused()
    assert (list(tally.running), list(tally.paused)) == ([], [each.trial_id])
    assert [scored.trial for scored in tally.ranked(5)] == [each]
    tally.started(move(each, "RUNNING"))
    assert (list(tally.running), list(tally.paused)) == ([each.trial_id], [])
    assert [scored.trial for scored in tally.ranked(5)] == [each]
    tally.completed(move(each, "TERMINATED"))
    assert [scored.trial for scored in tally.ranked(5)] == [each]
    assert tally.counts(1)["TERMINATED"] == 1


def test_a_paused_trial_that_is_stopped_counts_once():
    tally = ExperimentTally("loss", "min")
    each = trial(0, "PAUSED", loss=1.0)
    tally.reset([each])
    tally.completed(move(each, "TERMINATED"))
    assert [scored.trial for scored in tally.ranked(5)] == [each]
    assert tally.counts(1) == {"RUNNING": 0, "TERMINATED": 1, "PAUSED": 0, "PENDING": 0, "ERROR": 0}


@pytest.mark.parametrize("before", ["PAUSED", "RUNNING", "PENDING"])
def test_a_trial_that_fails_keeps_its_rank_once(before):
    tally = ExperimentTally("loss", "min")
    each = trial(0, before, loss=1.0)
    tally.reset([each])
    tally.failed(move(each, "ERROR"))
    assert [scored.trial for scored in tally.ranked(5)] == [each]


@pytest.mark.parametrize("is_retried", [True, False])
def test_a_trial_that_waits_keeps_its_rank_until_it_starts_again(is_retried):
    tally = ExperimentTally("loss", "min")
    each = trial(0, "RUNNING", loss=1.0)
    tally.started(each)
    move(each, "PENDING")
    if is_retried:
        tally.recovered(each)
    else:  # suspended, because the budget is used up
        tally.move_paused()
    assert [scored.trial for scored in tally.ranked(5)] == [each]
    each.last_result = {"loss": 3.0}
    tally.started(move(each, "RUNNING"))
    assert [tally.value(scored) for scored in tally.ranked(5)] == [3.0]


@pytest.mark.conformance("C-207")
@pytest.mark.parametrize(("mode", "best"), [("min", [2, 0, 3]), ("max", [3, 0, 2])])
def test_nan_is_never_the_best_and_zero_may_be(mode, best):
    tally = ExperimentTally("loss", mode)
    trials = [trial(n, loss=loss) for n, loss in enumerate([0.5, NAN, 0.0, 3])] + [trial(4)]
    finished(tally, *trials)
    assert [scored.trial for scored in tally.ranked(5)] == [trials[n] for n in best]


def test_only_nan_means_no_best():
    tally = ExperimentTally("loss", "min")
    finished(tally, trial(0, loss=NAN))
    assert tally.ranked(5) == []


def test_without_a_mode_no_trial_is_best():
    tally = ExperimentTally("accuracy")
    finished(tally, trial(0, accuracy=0.1), trial(1, accuracy=0.9))
    assert tally.ranked(5) == []


def test_of_equal_trials_the_one_that_was_created_first_is_best_whoever_ends_first():
    tally = ExperimentTally("loss", "min")
    trials = [trial(n, loss=1.0) for n in range(3)]
    for number, each in enumerate(trials):
        each.number = number
    tally.started(trials[1])
    finished(tally, trials[2], trials[0])
    assert [scored.trial for scored in tally.ranked(2)] == trials[:2]


def test_an_infinite_value_is_never_the_best():
    tally = ExperimentTally("loss", "min")
    finished(tally, trial(0, loss=float("-inf")), trial(1, loss=5.0))
    assert [tally.value(scored) for scored in tally.ranked(5)] == [5.0]


def test_a_running_trial_can_be_the_best_and_lose_that_again():
    tally = ExperimentTally("loss", "min")
    done, running = trial(0, loss=1.0), trial(1, "RUNNING", loss=0.5)
    finished(tally, done)
    tally.started(running)
    assert [scored.trial for scored in tally.ranked(1)] == [running]
    running.last_result = {"loss": 2.0}
    assert [scored.trial for scored in tally.ranked(1)] == [done]
    assert tally.value(tally.ranked(1)[0]) == 1.0


def test_what_is_kept_does_not_grow_with_the_number_of_trials():
    tally = ExperimentTally("loss", "max")
    for number in range(2000):
        each = trial(number, loss=float(number % 997), failures=1)
        tally.started(each)
        tally.noted_failure(each, "boom")
        tally.completed(each)
    assert len(tally.best) == KEPT_BEST
    assert len(tally.failures) == KEPT_FAILURES
    assert tally.running == {}
    assert [tally.value(scored) for scored in tally.ranked(3)] == [996.0, 996.0, 995.0]


def test_restored_trials_are_counted_once():
    tally = ExperimentTally("loss", "min")
    trials = [trial(0, loss=1.0), trial(1, "ERROR"), trial(2, "PAUSED", loss=0.5), trial(3, "PENDING")]
    tally.started(trials[0])
    tally.completed(trials[0])
    tally.reset(trials)
    assert tally.counts(4) == {"RUNNING": 0, "TERMINATED": 1, "PAUSED": 1, "PENDING": 1, "ERROR": 1}
    assert [scored.trial for scored in tally.ranked(5)] == [trials[2], trials[0]]
    assert list(tally.failures) == [trials[1].trial_id]


def test_without_a_metric_nothing_is_best():
    tally = ExperimentTally()
    finished(tally, trial(0, loss=1.0))
    assert tally.ranked(5) == []


def test_values_are_found_by_flat_key():
    values = {"a": {"b": 1, "c": [5, {"d": 6}]}, "x/y": 2}
    keys = ("a/b", "a/c/0", "a/c/1/d", "x/y", "a/z", "a/c/9", "a/b/c", "no")
    assert [lookup(values, key) for key in keys] == [1, 5, 6, 2, None, None, None, None]


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        ("ValueError: boom\n\n", "ValueError: boom"),
        ("ValueError: boom\nsecond line\n", "ValueError: boom"),
        (
            "AssertionError: \nArrays are not equal\n\n(shapes (2,), (3,))",
            "AssertionError: Arrays are not equal",
        ),
        (
            "RuntimeError: loading Net:\n\tsize mismatch for a\n\tfor b",
            "RuntimeError: loading Net: size mismatch for a",
        ),
        (
            "KeyError\n\nDuring handling:\n\nTraceback (most recent call last):\n  File y\nOSError\nx",
            "OSError",
        ),
    ],
)
def test_the_first_line_after_the_frames_says_what_happened(raised, line):
    assert error_line(f"Traceback (most recent call last):\n  File x\n    f()\n{raised}") == line


def test_of_a_text_that_is_no_traceback_the_last_line_is_shown():
    assert error_line("the command failed; its last lines:\nboom\nexit code 3\n") == "exit code 3"
    assert error_line("") == ""


def test_of_several_errors_raised_together_the_last_one_is_shown():
    head = "  + Exception Group Traceback (most recent call last):\n  |   File x\n  | ExceptionGroup: both\n"
    rest = (
        "  +-+----- 1 -----\n    | ValueError: a\n    +----- 2 -----\n    | KeyError: b\n    +-----------\n"
    )
    assert error_line(head + rest) == "KeyError: b"


def test_trials_whose_processes_are_on_their_way_are_starting_and_not_pending():
    tally = ExperimentTally()
    assert tally.counts(5, starting=2) == {
        "STARTING": 2,
        "RUNNING": 0,
        "TERMINATED": 0,
        "PAUSED": 0,
        "PENDING": 3,
        "ERROR": 0,
    }
    assert "STARTING" not in tally.counts(5)
    assert tally.counts(1, starting=2)["PENDING"] == 0


def test_with_several_objectives_the_front_takes_the_place_of_the_best():
    tally = ExperimentTally(None, None, {"loss": "min", "size": "min"}, {"size": 9})
    values = [(1.0, 8), (2.0, 5), (3.0, 6), (0.5, 10), (NAN, 1)]
    trials = [trial(n, "TERMINATED", loss=loss, size=size) for n, (loss, size) in enumerate(values)]
    finished(tally, *trials[1:])
    tally.started(move(trials[0], "RUNNING"))
    assert {each.trial_id for each in tally.front(trials)} == {trials[0].trial_id, trials[1].trial_id}
    tally.completed(move(trials[0], "TERMINATED"))
    assert [each.trial_id for each in tally.front(trials)] == [trials[0].trial_id, trials[1].trial_id]


def test_a_trial_that_continues_and_becomes_worse_leaves_the_front_to_those_it_had_beaten():
    tally = ExperimentTally(None, None, {"loss": "min", "size": "min"})
    one, other = trial(0, "PAUSED", loss=1.0, size=1), trial(1, "TERMINATED", loss=2.0, size=2)
    tally.reset([one, other])
    assert tally.front([one, other]) == [one]
    tally.started(move(one, "RUNNING"))
    one.last_result = {**one.last_result, "loss": 5.0, "size": 5}
    tally.completed(move(one, "TERMINATED"))
    assert tally.front([one, other]) == [other]


def test_a_trial_that_violates_a_constraint_is_ranked_last():
    tally = ExperimentTally("loss", "min", constraints={"size": 5})
    trials = [trial(n, "RUNNING", loss=float(n), size=size) for n, size in enumerate((9, 5, 1))]
    finished(tally, *trials)
    assert [scored.trial for scored in tally.ranked(5)] == [trials[1], trials[2], trials[0]]
    assert [tally.value(scored) for scored in tally.ranked(5)] == [1.0, 2.0, 0.0]
