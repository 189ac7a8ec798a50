from __future__ import annotations

import pickle

from tests.tune.logger.harness import LoggerHarness, make_trial

from muster.trials.model import CheckpointRef
from muster.tune.logger.tracker import TrackerCallback


class Diary:
    """A tracker that records its calls."""

    name, advice = "Diary", ""

    def __init__(self):
        self.told = []

    def start(self, trial):
        self.told.append(("start", trial.trial_id, trial.name, trial.config, trial.experiment_name))

    def write(self, trial_id, rows):
        self.told += [("row", trial_id, result["loss"]) for result, _ in rows]

    def end(self, trial_id, failed):
        self.told.append(("end", trial_id, failed))

    def checkpoint(self, trial_id, path):
        self.told.append(("checkpoint", trial_id, path))

    def files(self, trial):
        with open(f"{trial.directory}/result.json", encoding="utf-8") as lines:
            self.told.append(("files", trial.trial_id, len(lines.readlines())))

    def close(self):
        self.told.append("close")

    def is_passing(self, error):
        return False


class DiaryCallback(TrackerCallback):
    _secrets = ("key",)
    key = None

    def __init__(self, key=None):
        self.key, self.diary = key, Diary()

    def _make_tracker(self):
        return self.diary


def run(tmp_path, callback):
    """Two trials, of which one saves a checkpoint and one fails; what the tracker received."""
    harness = LoggerHarness(tmp_path / "exp", [callback])
    good = make_trial("good", experiment_dir=f"{tmp_path}/exp")
    bad = make_trial("bad", experiment_dir=f"{tmp_path}/exp")
    for trial in (good, bad):
        harness.start(trial)
        harness.report(trial, 1, loss=1.0)
    harness.fire("on_checkpoint", good, checkpoint=CheckpointRef(path="/c", index=0))
    harness.report(good, 2, loss=2.0)
    harness.complete(good)
    harness.fire("on_trial_error", bad)
    harness.hooks.fire("on_step_end", iteration=0, trials=[good, bad])
    harness.hooks.fire("on_experiment_end", iteration=0, trials=[good, bad])
    harness.writer.close(30)
    return callback.diary.told


def of(trial_id, told):
    return [(each[0], *each[2:]) for each in told if each[1] == trial_id]


def test_a_tracker_hears_of_starts_results_and_ends_in_order(tmp_path):
    told = run(tmp_path, DiaryCallback())
    assert of("good", told) == [
        ("start", "f_good", {"x": 1}, "exp"),
        ("row", 1.0),
        ("row", 2.0),
        ("end", False),
    ]
    assert of("bad", told) == [("start", "f_bad", {"x": 1}, "exp"), ("row", 1.0), ("end", True)]
    assert told[-1] == "close"


def test_checkpoints_and_complete_files_go_to_those_who_want_them(tmp_path):
    callback = DiaryCallback()
    callback.wants_checkpoints = callback.wants_files = True
    told = run(tmp_path, callback)
    assert of("good", told)[1:] == [
        ("row", 1.0),
        ("checkpoint", "/c"),
        ("row", 2.0),
        ("files", 2),
        ("end", False),
    ]
    assert of("bad", told)[1:] == [("row", 1.0), ("files", 1), ("end", True)]


def test_it_is_saved_with_the_experiment_without_thread_and_key(tmp_path):
    callback = DiaryCallback(key="secret")
    run(tmp_path, callback)
    saved = pickle.dumps(callback)
    assert b"secret" not in saved
    assert pickle.loads(saved).key is None


def test_a_hook_costs_the_control_thread_no_answer_of_the_tracker(tmp_path):
    callback = DiaryCallback()
    callback.diary.start = callback.diary.write = callback.diary.end = _raise
    assert run(tmp_path, callback) == ["close"]


def _raise(*_):
    raise RuntimeError("the tracker is broken")
