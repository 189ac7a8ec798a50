"""What people see on terminals of 60, 80, 120 and 220 columns, as texts that were looked at and kept."""

from __future__ import annotations

import re

import pytest
from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import NOW, finish, move, run_info, start, step, trial
from tests.tune.reporting.test_live_view import Watching, lines

from muster.base.clock import ManualClock
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.tune.reporting.live_view import LiveView

WIDTHS = (60, 80, 120, 220)
PARAMETERS = (
    "learning_rate",
    "momentum",
    "batch_size",
    "optimizer",
    "model/layers",
    "model/width",
    "dropout",
)
PARAMETERS += ("weight_decay", "warmup_steps", "schedule", "augmentation", "label_smoothing", "seed")
TRACEBACK = """Traceback (most recent call last):
  File "/nest/me/project/train.py", line {line}, in train
    loss = step(batch)
ValueError: the loss is not finite after 3 epochs with learning_rate={rate}, try a smaller one
"""


def many_parameters(number, made):
    values = {
        name: number if name in ("batch_size", "seed") else round(0.1 / (number + 1), 6)
        for name in PARAMETERS
    }
    made.config = made.evaluated_params = {**values, "optimizer": "adam", "schedule": "cosine"}
    return made


def experiment(how):
    """Twelve of twenty trials have run. `how` says what is special."""
    clock = ManualClock(NOW)
    reporter = Watching(clock=clock, period_s=0.25)
    changes = {"parameters": PARAMETERS} if how == "many parameters" else {}
    directory = "/nest/me/ray_results/train_2026-11-17_08-11-27_4f2a9c"
    reporter.begin(
        run_info(name="train_2026-11-17_08-11-27_4f2a9c", directory=directory, total=20, **changes)
    )
    trials = [trial(n, "PENDING", loss=1 / (n + 1)) for n in range(12)] + [
        trial(n, "PENDING") for n in range(12, 20)
    ]
    if how == "many parameters":
        trials = [many_parameters(number, each) for number, each in enumerate(trials)]
    step(reporter, trials)
    for each in trials[:12]:
        start(reporter, trials, each)
    for number, each in enumerate(trials[:10]):
        if how == "failures" and number < 8:
            fail(reporter, trials, each, number)
        else:
            finish(reporter, trials, each)
    clock.advance(75)
    step(reporter, trials)
    return reporter.shown, trials, reporter


def fail(reporter, trials, each, number):
    each.num_failures, each.error_filename, each.experiment_dir = 1, "error.txt", "/nest/me/ray_results/train"
    text = TRACEBACK.format(line=41 if number < 6 else 97, rate=number)
    failure = TrialFailure(kind=TrialFailureKind.USER_ERROR, message="boom", traceback=text)
    reporter.on_trial_failure(iteration=0, trials=trials, trial=each, failure=failure)
    reporter.on_trial_error(iteration=0, trials=trials, trial=move(each, "ERROR"))


def shown(how, width):
    """While it runs, and what stays at the end."""
    snapshot, trials, reporter = experiment(how)
    live = lines([LiveView(home="/nest/me").draw(snapshot, (width, 40))], width)
    reporter.end(interrupted=how == "interrupted", trials=trials)
    end = LiveView(home="/nest/me").conclusion(
        reporter.shown, trials, (width, 40), interrupted=how == "interrupted"
    )
    return "\n".join((*live, "=" * width, *lines(end, width), ""))


CASES = [(how, width) for how in ("plain", "many parameters", "failures", "interrupted") for width in WIDTHS]


@pytest.mark.parametrize(("how", "width"), CASES)
def test_the_view_is_the_one_that_was_looked_at(how, width):
    text = shown(how, width)
    assert_view(f"live/{how.replace(' ', '_')}_{width}", text)
    live = text.split("=" * width)[0]
    assert all(len(line) <= width for line in live.splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_error_is_lost_and_no_word_of_it_is_cut(width):
    live, _, end = shown("failures", width).partition("=" * width)
    words = re.sub(r"\s+", " ", end)
    message = TRACEBACK.splitlines()[-1].partition("={rate}")[0]
    assert re.findall(rf"(\d) trials [a-z]+: {message}=(\d)", words) == [("6", "0"), ("2", "6")]
    assert "(train.py:41)" in words
    assert message[:34] in re.sub(r"\s+", " ", live)
    assert "…" not in live + end
