"""Trials that are several processes: they meet, rank 0 reports, they end together, nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.contracts.engine_contract.misbehaving import ends, is_gone
from tests.series import SEED, length
from tests.tune.trainable import ranks_driver
from tests.tune.trainable.ranks_driver import STEPS, WORKERS, notes, train, trainable

from muster import tune
from muster.engines.worker.ranks import RankTask, run_ranks
from muster.errors import RankFailed
from muster.session.session import TrialStopped
from muster.trials.placement_group import PlacementGroupFactory

KILLS = length(10, 100)
LINUX = sys.platform.startswith("linux")


def fit(folder, how=None, *, x=(1,), tune_config=None, **more):
    space = {"x": tune.grid_search(list(x)), "folder": str(folder), "how": how or {}, **more}
    run = tune.RunConfig(name="e", storage_path=str(folder), verbose=0)
    return tune.Tuner(trainable(), param_space=space, run_config=run, tune_config=tune_config).fit()


def pids(folder):
    return [int(words[1]) for words in notes(folder) if words[0] == "pid"]


def test_a_trial_reserves_what_all_ranks_need():
    four = tune.with_workers(train, workers=4, resources_per_worker={"cpu": 0.5, "gpu": 1})
    assert four._resources == PlacementGroupFactory([{"CPU": 2, "GPU": 4}])
    assert tune.with_workers(train, 2)._resources == PlacementGroupFactory([{"CPU": 2}])
    assert four.__name__ == "train"


@pytest.mark.slow
def test_ranks_meet_and_rank_0_reports(tmp_path):
    first, second = fit(tmp_path, x=(1, 2))  # at the same time: each has its own port
    for result, x in ((first, 1), (second, 2)):
        assert result.error is None
        table = result.metrics_dataframe
        assert [*table["step"]] == [*range(STEPS)]
        assert {*table["loss"]} == {x}  # of rank 0
        assert {*table["ranks"]} == {WORKERS}
        assert json.loads((tmp_path / result.checkpoint.path / "state").read_text()) == {"step": STEPS - 1}
    ended = sorted(words[1] for words in notes(tmp_path) if words[0] == "end")
    assert ended == sorted([*"012"] * 2)


def shows(config):
    """Write what this rank finds in its environment and its context."""
    context = tune.get_context()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    seen = {name: os.environ[name] for name in names}
    seen["context"] = [context.get_world_rank(), context.get_world_size(), context.get_node_rank()]
    seen["dir"] = context.get_trial_dir() == os.getcwd()
    seen["cpus"] = context.get_trial_resources().required_resources
    seen["config"] = config["x"]
    path = os.path.join(config["folder"], os.environ["RANK"])
    with open(path, "w", encoding="utf-8") as stream:
        json.dump({**seen, "MASTER_PORT": os.environ["MASTER_PORT"]}, stream)
    return {"rank": int(os.environ["RANK"])}


@pytest.mark.slow
def test_each_rank_finds_torchs_variables_its_config_and_its_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")  # the driver itself may be a rank of something else
    made = tune.with_workers(shows, workers=2, resources_per_worker={"CPU": 1})
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    space = {"x": 7, "folder": str(tmp_path)}
    (result,) = tune.Tuner(made, param_space=space, run_config=run).fit()
    assert (result.error, result.metrics["rank"]) == (None, 0)
    shown = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    (port,) = {each.pop("MASTER_PORT") for each in shown}
    assert int(port) > 1023
    assert shown == [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "context": [rank, 2, 0],
            "dir": True,
            "cpus": {"CPU": 2.0},
            "config": 7,
        }
        for rank in range(2)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rank", "exit_code", "line"),
    [
        ("raises", 1, 1, "ValueError: an error of the rank"),
        ("killed", 2, -signal.SIGKILL, "rank 2 is about to end"),
        ("exits", 0, 3, "rank 0 is about to end"),
    ],
)
def test_a_failed_rank_ends_the_others_and_is_named(tmp_path, how, rank, exit_code, line):
    (result,) = fit(tmp_path, {rank: (how, 2)})
    error = result.error
    assert isinstance(error, RankFailed)
    assert (error.rank, error.exit_code) == (rank, exit_code)
    assert line in str(error).splitlines()
    assert len(pids(tmp_path)) == WORKERS
    assert all(map(is_gone, pids(tmp_path)))


@pytest.mark.slow
def test_a_rank_that_ignores_sigterm_and_what_ranks_left_end_with_a_failed_rank(tmp_path):
    (result,) = fit(tmp_path, {0: ("leaves", 0), 1: ("ignores", 1), 2: ("raises", 0)})
    assert (result.error.rank, len(pids(tmp_path))) == (2, WORKERS + 2)
    assert all(ends(pid, within_s=5.0) for pid in pids(tmp_path)) or not LINUX


@pytest.mark.slow
def test_a_stop_ends_all_ranks(tmp_path):
    scheduler = tune.schedulers.ASHAScheduler(grace_period=2, max_t=100, reduction_factor=2)
    settings = tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=1)
    how = {0: ("leaves", 0), 1: ("ignores", 1)}
    good, bad = fit(tmp_path, how, x=(1, 2), bad=2, tune_config=settings)
    assert (good.error, bad.error) == (None, None)
    assert (good.metrics["step"], bad.metrics["step"]) == (STEPS - 1, 1)
    assert all(ends(pid, within_s=5.0) for pid in pids(tmp_path)) or not LINUX


@pytest.mark.slow
def test_ranks_that_do_not_report_end_after_the_grace_of_a_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_FORCE_TRIAL_CLEANUP_S", "0.5")
    settings = tune.TuneConfig(time_budget_s=4.0)  # the first report, on a busy machine too
    began = time.monotonic()
    (result,) = fit(tmp_path, {0: ("sleeps", 2), 1: ("ignores", 2)}, tune_config=settings)
    assert (result.error, result.metrics["step"]) == (None, 1)
    assert time.monotonic() - began < 60
    assert all(ends(pid, within_s=5.0) for pid in pids(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * KILLS)
def test_a_rank_killed_at_any_moment_fails_its_trial_and_leaves_nothing(tmp_path, kills):
    chance, took_s = random.Random(f"ranks{SEED}"), []
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        killer = Killer(folder, chance.randrange(WORKERS), chance.random() * 0.3)
        killer.start()
        (result,) = fit(folder, x=(number,), steps=1000, pause_s=0.01)
        killer.join(timeout=60)
        took_s.append(time.monotonic() - killer.killed_at)
        kills.append(f"rank: {killer.victim} after {killer.delay_s:.2f} s")
        assert isinstance(result.error, RankFailed)
        assert result.error.exit_code == -signal.SIGKILL  # not that of a rank that missed the killed one
        assert all(map(is_gone, pids(folder)))
    assert max(took_s) < 30  # 2 on a quiet machine


class Killer(threading.Thread):
    """Kills one rank, some time after it began."""

    def __init__(self, folder, victim, delay_s):
        super().__init__(daemon=True)
        self.folder, self.victim, self.delay_s, self.killed_at = folder, victim, delay_s, 0.0

    def run(self):
        while len(pids(self.folder)) <= self.victim:
            time.sleep(0.005)
        time.sleep(self.delay_s)
        self.killed_at = time.monotonic()
        os.kill(pids(self.folder)[self.victim], signal.SIGKILL)


@pytest.mark.slow
def test_after_a_kill_of_the_driver_nothing_runs_and_all_ranks_resume_from_the_checkpoint(tmp_path, kills):
    command = [sys.executable, ranks_driver.__file__, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not [*tmp_path.glob("e/train*/checkpoint_000001")]:
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    kills.append("driver: with ranks")
    assert all(ends(pid, within_s=5.0) for pid in pids(tmp_path))
    before = len(notes(tmp_path))
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(second.stdout.splitlines()[-1]) == [STEPS - 1] * 2
    begun = {words[1]: int(words[2]) for words in notes(tmp_path)[before:] if words[0] == "begin"}
    assert sorted(begun) == [*"012"]
    assert max(begun.values()) > 0


def writes(config, path):
    """Meet the other ranks, and note that this process is a new interpreter."""
    total = ranks_driver.Meeting().sum(int(os.environ["RANK"]))
    with open(f"{path}{os.environ['RANK']}", "w", encoding="utf-8") as stream:
        stream.write(f"{total} {config['x']} {threading.active_count()}")
    sys.stdout.write("written\n")


@pytest.mark.slow
def test_ranks_are_interpreters_where_a_fork_is_not_safe(tmp_path, capsys):
    run_ranks(RankTask(writes, {"x": 5}, {"path": str(tmp_path / "r")}), 3)
    assert [(tmp_path / f"r{rank}").read_text() for rank in range(3)] == ["3 5 1"] * 3
    assert sorted(capsys.readouterr().out.splitlines()) == [f"(rank {rank}) written" for rank in range(3)]
    with pytest.raises(RankFailed):
        run_ranks(RankTask(writes, {}, {"path": str(tmp_path / "r")}), 2)


GROUP_DRIVER = """
import os, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from tests.tune.trainable.ranks_driver import WORKERS, train
from muster.engines.worker.ranks import RankTask, run_ranks
config = {"folder": sys.argv[1], "x": 1, "how": {0: ("leaves", 9)}, "pause_s": 600.0}
run_ranks(RankTask(train, config), WORKERS)
"""


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="a rank has a guard only on Linux")
def test_a_kill_of_the_whole_process_group_leaves_nothing_of_the_ranks(tmp_path, kills):
    """Since 2.60, Ray sends SIGTERM, then SIGKILL to the group of an actor that died."""
    command = [sys.executable, "-c", GROUP_DRIVER, str(tmp_path), os.pathsep.join(sys.path)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    while len(pids(tmp_path)) < WORKERS + 2:
        assert process.poll() is None
        time.sleep(0.02)
    kills.append("group: with ranks")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert all(map(ends, pids(tmp_path)))


class Results:
    """A session beside that of a trial, as a trainer has one."""

    def __init__(self):
        self.seen, self.stopped = [], False

    def describe(self):
        return {"trial_name": "nested", "checkpoint": None}

    def report(self, metrics, checkpoint=None):
        self.seen.append(dict(metrics))
        if metrics.get("last"):
            self.stopped = True
            raise TrialStopped


def reports_twice(config):
    name, meeting = tune.get_context().get_trial_name(), ranks_driver.Meeting()
    for last in (False, True):
        meeting.sum(1)
        tune.report({"rank": int(os.environ["RANK"]), "name": name, "last": last})
    time.sleep(600)


@pytest.mark.slow
def test_another_session_can_take_the_reports(tmp_path):
    session, before = Results(), threading.enumerate()
    with pytest.raises(TrialStopped):
        run_ranks(RankTask(reports_twice, {}), 2, session=session)
    assert session.seen == [{"rank": 0, "name": "nested", "last": last} for last in (False, True)]
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(timeout=10)
            assert not thread.is_alive()
