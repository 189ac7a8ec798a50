"""Directories of trials: dated, and never the same twice."""

from __future__ import annotations

import re

from muster.base.clock import ManualClock
from muster.trials.model import Trial
from muster.tune.execution.paths import dated, dated_name, directory_namer

AT = 1_700_000_000.0


def trial(number=1, **changes):
    return Trial("train", trial_id=f"abc_{number:05d}", experiment_tag=f"{number}_x=1", **changes)


def test_a_directory_is_named_after_the_trial_and_the_moment(tmp_path):
    clock = ManualClock(AT)
    name = directory_namer(tmp_path, clock)
    assert name(trial()) == f"train_abc_00001_1_x=1_{dated(AT)}"
    clock.advance(61.5)
    assert name(trial(2)) == f"train_abc_00002_2_x=1_{dated(AT + 61)}"
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_was_given_or_was_on_disk_before_gets_four_digits(tmp_path):
    (tmp_path / "mine").mkdir()
    name = directory_namer(tmp_path, ManualClock(AT))
    found = [name(trial(n, custom_dirname="mine")) for n in range(3)]
    assert all(re.fullmatch(r"mine(_[0-9a-f]{4})+", each) for each in found)
    assert len({"mine", *found}) == 4


def test_an_experiment_without_a_directory_yet_has_every_name_free(tmp_path):
    name = directory_namer(tmp_path / "later", ManualClock(AT))
    assert name(trial(custom_dirname="mine")) == "mine"


def test_an_experiment_is_dated_unless_the_environment_says_no():
    names = {dated_name("train", AT, {}) for _ in range(20)}
    assert len(names) == 20  # within one second, in one process or in several
    assert all(re.fullmatch(f"train_{dated(AT)}_[0-9a-f]{{6}}", name) for name in names)
    assert dated_name("train", AT, {"TUNE_DISABLE_DATED_SUBDIR": "1"}) == "train"


def test_no_name_leads_out_of_the_experiment(tmp_path):
    name = directory_namer(tmp_path, ManualClock(AT))
    made = [
        name(trial(n, custom_dirname=given)) for n, given in enumerate(["..", ".", "../../x", "a/b", "..."])
    ]
    assert made == ["__", "_", ".._.._x", "a_b", "___"]
