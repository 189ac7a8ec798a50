"""The story of a rack with real Ray: up, a tuning job on a worker, up again, down, and nothing is left."""

from __future__ import annotations

import json
import tempfile

import pytest
from tests.hosts import ROOT
from tests.rack import BIN, RackCluster, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray]
HOSTS = 2
JOB = """
import socket, sys
from muster import tune

def objective(config):
    tune.report({"score": config["x"], "host": socket.gethostname()})

run = tune.RunConfig(name="job", storage_path=sys.argv[1], engine="ray", verbose=0)
results = tune.Tuner(objective, param_space={"x": tune.grid_search([1, 2])}, run_config=run).fit()
assert not results.errors, results.errors
print(sorted((result.metrics["score"], result.metrics["host"]) for result in results))
"""


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path)
    ray = f"{BIN}/ray start --object-store-memory=80000000 --disable-usage-stats"
    head = f"{ray} --head --port=6379 --num-cpus=0 --include-dashboard=false --node-ip-address={hosts[0].ip}"
    worker = f"{ray} --address=$RAY_HEAD_IP:6379 --num-cpus=2 --node-ip-address={hosts[1].ip}"
    made.write(
        f"worker_start_ray_commands: ['{worker}']\nmin_workers: 0\nidle_timeout_minutes: 5\n"
        "muster: {monitor: {interval_s: 0.5}}\n",
        start=head,
    )
    yield made
    made.run("down", "FILE", "-y")


@pytest.fixture
def shared():
    """A directory that all hosts see, as one that a rack mounts; its name must reach the script as it is."""
    with tempfile.TemporaryDirectory(prefix=".rack & job ", dir=ROOT) as made:
        yield made


@pytest.mark.timeout(480)
def test_a_rack_comes_up_tunes_and_goes_away_without_a_trace(rack, tmp_path, shared):
    up = rack.run("up", "FILE", "-y")
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith(f"rack is up: head at {rack.hosts[0].ip}:6379\n")

    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    done = rack.run("submit", "FILE", str(job), shared)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.strip().splitlines()[-1] == "[(1, 'h2'), (2, 'h2')]"
    assert rack.run("get-worker-ips", "rack").stdout.split() == [rack.hosts[1].ip]

    status = rack.run("status", "rack", "--json")
    assert json.loads(status.stdout)["cluster"] == "rack", status.stderr

    again = rack.run("up", "FILE", "-y")
    assert again.stdout.startswith("rack is up already, as "), again.stderr
    rack.file.write_text(rack.file.read_text().replace("minutes: 5", "minutes: 6"))
    edited = rack.run("up", "FILE", "-y")
    assert "note: the monitor on the head applies what you changed in the file\n" in edited.stderr
    assert "starting Ray" not in edited.stderr

    assert rack.run("kill-random-node", "rack", "-y").stdout.split() == [rack.hosts[1].ip]
    wait_until(lambda: not rack.lock(1).exists(), "the monitor gives a dead node's host back")

    down = rack.run("down", "FILE", "-y")
    assert down.returncode == 0, down.stderr
    assert down.stdout.startswith(f"rack is down: ended the head at {rack.hosts[0].ip}\n")
    assert rack.left() == {}
