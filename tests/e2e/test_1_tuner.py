"""The tuner on a cluster that grows and shrinks under our autoscaler. One seat per node."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.live_cluster import wait_for

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).with_name("tuning.py")
FIT_S = 240.0


class Experiment:
    """One experiment, in a separate process."""

    def __init__(self, stage, what: str) -> None:
        self.began = time.monotonic()
        self._log = stage.cluster.folder / f"{what}.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), what, str(stage.cluster.folder / "experiments")],
                env=stage.cluster.environment(),
                cwd=stage.cluster.folder,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def outcome(self) -> dict[str, list]:
        said = self._process.communicate(timeout=FIT_S)[0].decode()
        assert self._process.returncode == 0, self._log.read_text(errors="replace")[-3000:]
        return json.loads(said.splitlines()[-1])

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def test_all_trials_are_shown_at_once_nodes_come_for_them_and_go_when_they_are_done(stage):
    before = stage.came_up()
    with Experiment(stage, "wide") as experiment:
        wait_for(stage.watch.now, lambda snapshot: snapshot.report.gangs, "the first gang")
        stage.wait_for_nodes(small=4)
        assert experiment.outcome() == {"scores": [4] * 4, "errors": []}
    snapshots = stage.watch.since(experiment.began)
    first = next(snapshot.at for snapshot in snapshots if snapshot.report.gangs)
    every = next(snapshot.at for snapshot in snapshots if len(snapshot.workers) == 4)
    assert every - first < 10.0  # each trial takes 4 s: one after the other would be 12 s at least
    stage.wait_for_quiet()
    assert stage.came_up() - before == 4


def test_label_selectors_of_trials_choose_the_nodes_that_come_and_fail_fast_where_no_type_has_the_label(
    stage,
):
    with Experiment(stage, "labels") as experiment:
        outcome = experiment.outcome()
    assert outcome["tiers"] == {"gold": "gold", "silver": "silver"}
    assert list(outcome["errors"]) == ["bronze"]
    assert "can never start: infeasible" in outcome["errors"]["bronze"]
    stage.wait_for_quiet()
    snapshots = stage.watch.since(experiment.began)
    assert {node.node_type for snapshot in snapshots for node in snapshot.workers} == {"gold", "silver"}
