"""An elastic Ray cluster on a real Slurm: tasks wait, jobs start, nodes join, idle nodes leave, `down`."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from bench.live_cluster import LiveCluster
from tests.series import IS_WHOLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(not IS_WHOLE, reason="long: make series"),
]
CONFIG = """
cluster_name: slurm
provider: {type: slurm, head_ip: 127.0.0.1}
max_workers: 4
idle_timeout_minutes: 0.05
upscaling_speed: 10
setup_commands: [export FROM_SETUP=yes]
muster: {monitor: {interval_s: 0.5, max_interval_s: 1.0}}
head_node_type: head
available_node_types:
  head: {}
  node: {node_config: {cpus: 2, memory: 400M, time: "10"}, price_per_hour: 1}
"""
DRIVER = """
import os, sys, time, ray
ray.init(logging_level="ERROR", log_to_driver=False)
@ray.remote(num_cpus=2)
def where(until):
    open(f"{until}.{os.getpid()}", "w").close()
    while not os.path.exists(until):
        time.sleep(0.05)
    return os.environ["SLURM_JOB_ID"], os.environ["FROM_SETUP"]
import json
print(json.dumps(ray.get([where.remote(sys.argv[2]) for _ in range(int(sys.argv[1]))])))
"""
PATIENCE_S = 60.0


def wait(done, cluster):
    give_up = time.monotonic() + PATIENCE_S
    while not (found := done()):
        assert time.monotonic() < give_up, cluster.log_tail()
        time.sleep(0.2)
    return found


@pytest.fixture
def cluster(slurm_site, tmp_path):
    made = LiveCluster(tmp_path, CONFIG, name="slurm")
    made.up()
    yield made
    made.down()
    slurm_site.wire.scancel([job.job_id for job in slurm_site.alive()])


def jobs_of(site):
    """The jobs that run or wait: a completing one runs nothing more, and is listed for a while."""
    return [job for job in site.alive() if job.state != "COMPLETING"]


def nodes_of(site):
    return [job for job in jobs_of(site) if job.name == "muster-slurm"]


def queued(cluster):
    """The machine that `muster status` shows as waiting."""
    nodes = cluster.muster_json("status", "slurm")["nodes"]
    return next((one for one in nodes if one["reason"] == "waiting-in-queue"), None)


def start(cluster, tasks, gate):
    command = [sys.executable, "-c", DRIVER, str(tasks), str(gate)]
    return subprocess.Popen(command, env=cluster.environment(), stdout=subprocess.PIPE, text=True)


def occupy(site, nodes):
    """Take nodes of the site away, as another user does."""
    options = [f"--nodes={nodes}", "--exclusive", "--time=5", "--output=/dev/null"]
    return site.wire.sbatch(options, "#!/bin/sh\nsleep 300\n")


def test_jobs_follow_the_demand_and_down_leaves_none(cluster, slurm_site, tmp_path):
    taken, gate = occupy(slurm_site, 2), tmp_path / "gate"
    driver = start(cluster, 3, gate)
    waiting = wait(lambda: [job for job in nodes_of(slurm_site) if job.is_waiting and job.reason], cluster)
    assert len(waiting) == 1  # two nodes of the site are free
    shown = wait(lambda: queued(cluster), cluster)
    assert (shown["cloud_id"], waiting[0].reason in shown["detail"]) == (waiting[0].job_id, True)

    slurm_site.wire.scancel([taken])
    wait(lambda: len(list(tmp_path.glob("gate.*"))) == 3, cluster)
    gate.touch()
    printed, _ = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, driver.returncode
    jobs, setup = zip(*json.loads(printed), strict=True)
    assert (len(set(jobs)), set(setup)) == (3, {"yes"})
    wait(lambda: not nodes_of(slurm_site), cluster)  # idle nodes leave

    taken = occupy(slurm_site, 3)
    driver = start(cluster, 2, tmp_path / "never")
    wait(lambda: {job.is_running for job in nodes_of(slurm_site)} == {True, False}, cluster)
    driver.kill()
    driver.communicate()
    done = cluster.down()
    assert (done.returncode, nodes_of(slurm_site)) == (0, [])
    assert [job.array_id for job in jobs_of(slurm_site)] == [taken]  # of somebody else
    wait(lambda: not cluster.processes.living(), cluster)
