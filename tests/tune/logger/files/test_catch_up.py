"""After a kill at any moment the files hold each result once, also of trials whose iterations go back."""

from __future__ import annotations

import random

import pytest
from tests.tune.logger.harness import LoggerHarness, make_trial

from muster.trials.checkpoints import adopt, register
from muster.trials.model import CheckpointRef
from muster.tune.logger.files.catch_up import CatchUp
from muster.tune.logger.files.trial_log import CSV, JSON


def life_of_a_trial(stream, length):
    """Return what happens to a trial: it reports, saves, fails, and takes over checkpoints of others."""
    events = ["start"]
    for _ in range(length):
        events += stream.choices([["report"], ["save"], ["start"], ["exploit", "start"]], [8, 2, 1, 1])[0]
    return events


class Life:
    """Repeats events on a trial, as ExperimentState would, and calls the hooks of `fire`."""

    def __init__(self, trial, fire):
        self.trial, self.fire = trial, fire
        self.iteration = self.stamp = self.saves = 0
        self.expected = []

    def handle(self, event):
        trial = self.trial
        if event == "report":
            self.iteration, self.stamp = self.iteration + 1, self.stamp + 1
            row = {"stamp": self.stamp, "training_iteration": self.iteration, "config": trial.config}
            self.fire("on_trial_result", trial=trial, result=row)
            trial.note_result(row, {}, 0.0)
            self.expected.append(self.stamp)
        elif event == "save":
            register(trial, self._checkpoint(f"/exp/{trial.relative_logdir}/checkpoint_{self.saves}"))
            self.saves += 1
        elif event == "exploit":
            self.iteration = max(0, self.iteration - 3)
            adopt(trial, self._checkpoint("/exp/dir_donor/checkpoint_0"))
        else:
            trial.num_rows = trial.newest.rows if trial.newest else 0
            self.iteration = trial.newest.metrics["training_iteration"] if trial.newest else 0
            del self.expected[trial.num_rows :]
            self.fire("on_trial_start", trial=trial)

    def _checkpoint(self, path):
        return CheckpointRef(path=path, index=self.saves, metrics={"training_iteration": self.iteration})


@pytest.mark.parametrize("seed", range(40))
def test_files_of_a_killed_driver_hold_what_the_store_knows(tmp_path, seed):
    stream = random.Random(seed)
    events = life_of_a_trial(stream, 40)
    written = stream.randrange(len(events))  # so far came the files before the kill
    known = stream.randrange(written // 2, len(events))  # so far came the store; either may be ahead
    snapshot = stream.randrange(min(written, known) + 1)  # the files are flushed before a snapshot
    before = LoggerHarness(tmp_path)
    life = Life(make_trial(), before.fire)
    for event in events[:written]:
        life.handle(event)
    assert before.writer.close(10)

    catch_up = CatchUp()
    again = Life(make_trial(), lambda hook, **info: None)
    for count, event in enumerate(events[:known]):
        again.fire = (lambda hook, **info: None) if count < snapshot else catch_up.fire
        again.handle(event)
    after = LoggerHarness(tmp_path)
    catch_up.write_to(after.writer, JSON | CSV, str(tmp_path), 0.0)
    again.fire = after.fire
    again.handle("start")  # no process outlives its driver
    again.handle("report")
    assert after.writer.close(10)
    assert [row["stamp"] for row in after.rows(again.trial)] == again.expected
    assert [int(row["stamp"]) for row in after.table(again.trial)] == again.expected
