"""kill -9 while rows are being written: what is left is whole rows from the first on, once each."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.tune.logger.logging_scene import Scene, checkpoint_at, make_trial

ROOT = Path(__file__).parents[3]


def test_a_killed_writer_leaves_files_that_another_goes_on_with(tmp_path):
    command = [sys.executable, "-m", "tests.tune.logger.killed_child", str(tmp_path)]
    scene, trial = Scene(tmp_path), make_trial()
    table = scene.path(trial, "progress.csv")
    with subprocess.Popen(command, cwd=ROOT) as child:
        while not (table.exists() and table.stat().st_size > 500_000):  # the longest of its files to come
            assert child.poll() is None
            time.sleep(0.002)
        child.kill()
    trial.checkpoints = (checkpoint_at(scene, trial, 500),)
    scene.start(trial)
    scene.report(trial, 501, loss=0.0)
    scene.complete(trial)
    assert scene.writer.close(10)
    assert [row["training_iteration"] for row in scene.rows(trial)] == list(range(1, 502))
    assert [int(row["training_iteration"]) for row in scene.table(trial)] == list(range(1, 502))
    assert scene.writer.take_problems() == ()
