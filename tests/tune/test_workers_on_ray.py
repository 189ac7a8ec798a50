"""Trials that are several processes, on a Ray cluster: ranks are children of the trial's actor."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from tests.contracts.engine_contract.misbehaving import ends
from tests.ray_clusters import clear, wait_for
from tests.support.ray_cluster import AUTH
from tests.tune.trainable import ranks_driver
from tests.tune.trainable.ranks_driver import STEPS, WORKERS, notes

from muster import tune
from muster.engines.ray.connect import connect, import_ray
from muster.errors import RankFailed
from muster.host import processes

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster(plain_head):
    os.environ.update(AUTH)
    clear(plain_head)
    ray = import_ray()
    connect(ray, plain_head.address)
    yield plain_head
    ray.shutdown()


def test_ranks_on_ray_meet_report_and_end_together(cluster, tmp_path):
    """The second trial loses a rank, and leaves processes in other sessions that ignore SIGTERM."""
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, trial_time_limit_s=200)
    how = {0: ("leaves", 0), 1: ("ignores", 1), 2: ("killed", 1)}
    space = {"x": tune.grid_search([1, 2]), "folder": str(tmp_path), "bad": 2, "how": how}
    good, bad = tune.Tuner(ranks_driver.trainable(), param_space=space, run_config=run).fit()
    assert good.error is None
    assert [*good.metrics_dataframe["step"]] == [*range(STEPS)]
    assert {*good.metrics_dataframe["ranks"]} == {WORKERS}
    assert isinstance(bad.error, RankFailed)
    assert (bad.error.rank, bad.error.exit_code) == (2, -9)
    assert len(pids(tmp_path)) == 2 * WORKERS + 2
    assert all(map(ends, pids(tmp_path)))


def test_a_killed_actor_leaves_nothing_that_ranks_have_started(cluster, tmp_path, kills):
    """Ray kills actors by SIGKILL, and no process of muster is above them."""
    killer = threading.Thread(target=kill_actor, args=(tmp_path, kills), daemon=True)
    killer.start()
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, trial_time_limit_s=200)
    space = {"x": 1, "folder": str(tmp_path), "pause_s": 1000.0, "how": {0: ("leaves", 0)}}
    (result,) = tune.Tuner(ranks_driver.trainable(), param_space=space, run_config=run).fit()
    killer.join(timeout=60)
    assert (result.error is not None, len(pids(tmp_path))) == (True, WORKERS + 2)
    assert all(map(ends, pids(tmp_path)))


def kill_actor(folder, kills):
    wait_for(lambda: pids(folder), lambda seen: len(seen) == WORKERS + 2)
    process = processes.find(pids(folder)[0])
    while process is not None and not process.name.startswith("ray::"):
        process = processes.find(process.parent)
    kills.append("actor: with ranks")
    os.kill(process.pid, signal.SIGKILL)


def pids(folder):
    return [int(words[1]) for words in notes(folder) if words[0] == "pid"]
