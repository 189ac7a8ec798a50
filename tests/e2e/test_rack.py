"""The story of a rack with real Ray: up, a job whose host is cut off, up again, down, and nothing is left."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import psutil
import pytest
from tests.hosts import ROOT
from tests.rack import BIN, PATIENCE_S, RackCluster, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray]
HOSTS = 3
# Two trials that each need a whole host; each leaves a file that says where it runs, and waits to be let go.
JOB = """
import os, socket, sys, time
from muster import tune

shared, name = sys.argv[1:]

def objective(config):
    host, trial = socket.gethostname(), config["x"]
    open(f"{shared}/{name}-{trial}-on-{host}", "w").close()
    while not os.path.exists(f"{shared}/{name}-{trial}-may-end"):
        time.sleep(0.05)
    tune.report({"score": trial, "host": host})

run = tune.RunConfig(
    name=name, storage_path=shared, engine="ray", verbose=0, failure_config=tune.FailureConfig(max_failures=5)
)
trainable = tune.with_resources(objective, {"cpu": 2})
results = tune.Tuner(trainable, param_space={"x": tune.grid_search([1, 2])}, run_config=run).fit()
assert not results.errors, results.errors
print(sorted((result.metrics["score"], result.metrics["host"]) for result in results))
"""
# Ray takes a silent node for dead after a minute; here after about ten seconds.
SOON = "RAY_health_check_period_ms=500 RAY_health_check_timeout_ms=1500 RAY_health_check_failure_threshold=5"


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path)
    ray = f"{BIN}/ray start --object-store-memory=80000000 --disable-usage-stats"
    head = f"{ray} --head --port=6379 --num-cpus=0 --include-dashboard=false --node-ip-address={hosts[0].ip}"
    worker = f"{ray} --address=$RAY_HEAD_IP:6379 --num-cpus=2 --node-ip-address=$(hostname -I)"
    made.write(
        f"worker_start_ray_commands: ['{worker}']\nmin_workers: 0\nidle_timeout_minutes: 5\n"
        # The workers outlast their jobs, however long the commands between them take on a busy machine.
        "muster: {monitor: {interval_s: 0.5}, backoff: {base_s: 1, max_s: 2}, forecasts: {keep_s: 300}}\n",
        start=f"{SOON} {head}",
    )
    yield made
    made.run("down", "FILE", "-y")


@pytest.fixture
def shared():
    """A directory that all hosts see, as one that a rack mounts; its name must reach the script as it is."""
    with tempfile.TemporaryDirectory(prefix=".rack & job ", dir=ROOT) as made:
        yield made


class Job:
    """One run of JOB by `muster submit`."""

    def __init__(self, rack, script, shared, name):
        script.write_text(JOB, encoding="utf-8")
        self.shared, self.name = Path(shared), name
        self.process = rack.start("submit", "FILE", str(script), shared, name)

    def where(self):
        """Return the trials that have started somewhere, each with its hosts."""
        found = [path.name.split("-") for path in self.shared.glob(f"{self.name}-*-on-*")]
        return {(int(trial), host) for _, trial, _, host in found}

    def wait_for(self, number):
        """Return trial by host once so many have started."""
        wait_until(
            lambda: len(self.where()) >= number or self.process.poll() is not None, f"{number} trials run"
        )
        assert self.process.poll() is None, self.process.communicate()
        return {host: trial for trial, host in self.where()}

    def let_go(self, trial):
        (self.shared / f"{self.name}-{trial}-may-end").touch()

    def result(self):
        said, errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, errors + said
        return said.strip().splitlines()[-1]


def nodes(rack, index):
    """Return the ids of the nodes that have processes on a host: ours and Ray's know theirs."""
    found = set()
    for process in rack.hosts.processes(rack.hosts[index]):
        try:
            found.add(process.environ().get("RAY_CLOUD_INSTANCE_ID"))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found - {None}


@pytest.mark.timeout(480)
def test_a_rack_comes_up_outlives_the_loss_of_a_host_and_goes_away_without_a_trace(rack, tmp_path, shared):
    hosts, script = rack.hosts, tmp_path / "job.py"
    up = rack.run("up", "FILE", "-y")
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith(f"rack is up: head at {hosts[0].ip}:6379\n")
    assert "no workers are wanted until work waits; " in up.stderr

    job = Job(rack, script, shared, "lost")
    trials = job.wait_for(2)  # one on each worker
    assert sorted(trials) == ["h2", "h3"]
    (first,) = nodes(rack, 2)
    hosts.cut_off(hosts[2])
    job.let_go(trials["h2"])
    wait_until(lambda: (trials["h3"], "h2") in job.where(), "the work of the lost host continues elsewhere")
    job.let_go(trials["h3"])
    assert job.result() == "[(1, 'h2'), (2, 'h2')]"
    assert rack.run("get-worker-ips", "rack").stdout.split() == [hosts[1].ip]

    hosts.reconnect(hosts[2])
    wait_until(lambda: not rack.lock(2).exists(), "a host that is back is released")
    wait_until(lambda: hosts.commands(hosts[2]) == [], "the release, which ends after the lock, has ended")
    job = Job(rack, script, shared, "again")
    trials = job.wait_for(2)
    assert (sorted(trials), nodes(rack, 2) & {first}) == (["h2", "h3"], set())
    job.let_go(1)
    job.let_go(2)
    assert job.result() == str(sorted((trial, host) for host, trial in trials.items()))
    assert sorted(rack.run("get-worker-ips", "rack").stdout.split()) == [hosts[1].ip, hosts[2].ip]

    status = rack.run("status", "rack", "--json")
    assert json.loads(status.stdout)["cluster"] == "rack", status.stderr

    again = rack.run("up", "FILE", "-y")
    assert again.stdout.startswith("rack is up already, as "), again.stderr
    rack.file.write_text(rack.file.read_text().replace("minutes: 5", "minutes: 6"))
    edited = rack.run("up", "FILE", "-y")
    assert "note: the monitor on the head applies what you changed in the file\n" in edited.stderr
    assert "starting Ray" not in edited.stderr

    kill = rack.run("kill-random-node", "rack", "-y")
    assert kill.returncode == 0, kill.stderr + rack.run("logs", "rack", "-l", "60").stdout
    (killed,) = kill.stdout.split()
    (index,) = [number for number, host in enumerate(hosts) if host.ip == killed]
    wait_until(lambda: not rack.lock(index).exists(), "the monitor gives a dead node's host back")
    down = rack.run("down", "FILE", "-y")
    assert down.returncode == 0, down.stderr
    assert down.stdout.startswith(f"rack is down: stopped 1 worker and the head at {hosts[0].ip}\n")
    (hosts[0].home / script.name).unlink()  # the user's
    assert rack.left() == {}
