"""A rack whose nodes are containers, with real Ray: up, a job on both hosts, a reboot of the head, down."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from tests.containers import machine_options, make_image
from tests.hosts import ROOT
from tests.rack import RackCluster, wait_until

from muster.autoscaler.status_files import PublishedStatus
from muster.base import codec
from muster.cluster.states import InstanceState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
HOSTS = 2
RAY = f"{Path(sys.prefix) / 'bin' / 'ray'} start --object-store-memory=100000000 --disable-usage-stats"
JOB = """
import json, os, sys, time
import ray
from muster import tune

shared = sys.argv[1]

def train(config):
    open(f"{shared}/trial-{config['number']}", "w").close()
    while len([name for name in os.listdir(shared) if name.startswith("trial-")]) < 2:
        time.sleep(0.05)  # both run at once, so on two nodes of one CPU each
    boxed = os.path.exists("/run/.containerenv")
    tune.report({"ip": ray.util.get_node_ip_address(), "boxed": boxed})

space = {"number": tune.grid_search([1, 2])}
settings = tune.RunConfig(engine="ray", storage_path=shared, verbose=0)
results = tune.Tuner(train, param_space=space, run_config=settings).fit()
print(json.dumps([[result.metrics["ip"], result.metrics["boxed"]] for result in results]))
"""


@pytest.fixture
def shared():
    """A directory that this machine, the hosts and their containers see under one name."""
    (ROOT / "build").mkdir(exist_ok=True)
    made = tempfile.mkdtemp(prefix="shared-", dir=ROOT / "build")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path, "boxes")
    for host in hosts:
        image = make_image(hosts, host)
    head = f"{RAY} --head --port=6379 --num-cpus=1 --include-dashboard=false --node-ip-address={hosts[0].ip}"
    worker = f"{RAY} --address=$RAY_HEAD_IP:6379 --num-cpus=1 --node-ip-address={hosts[1].ip}"
    docker = {
        "image": image,
        "container_name": "ray",
        "use_podman": True,
        "run_options": list(machine_options()),
        "disable_shm_size_detection": True,
    }
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "note.txt").write_text("hello")
    made.write(
        f"docker: {json.dumps(docker)}\nfile_mounts: {{~/notes: {tmp_path}/notes}}\n"
        "file_mounts_sync_continuously: true\n"
        f"worker_start_ray_commands: ['{worker}']\nmin_workers: 1\n"
        "muster: {monitor: {interval_s: 0.5}}\n",
        start=head,
    )
    yield made
    made.run("down", "FILE", "-y")


def nodes(rack, since):
    """Return the kinds of the nodes that run since then, as the monitor in the head's container says."""
    done = rack.run("exec", "FILE", "cat ~/.muster/clusters/boxes/status.json")
    try:
        found = codec.convert(msgspec.json.decode(done.stdout), PublishedStatus)
    except ValueError:  # none yet
        return []
    runs = [one for one in found.instances if one.state is InstanceState.RAY_RUNNING and one.since > since]
    return sorted(one.kind.name for one in runs)


def containers(rack):
    return [rack.hosts.run_on(host, ["podman", "ps", "-aq"]).stdout.split() for host in rack.hosts]


@pytest.mark.timeout(480)
def test_nodes_are_containers_which_are_back_after_a_reboot_and_gone_after_down(rack, tmp_path, shared):
    if shutil.which("crontab") is None:
        pytest.skip("crontab is missing (apt-get install cron)")
    hosts = rack.hosts
    (tmp_path / "job.py").write_text(JOB)
    done = rack.run("submit", "--start", "FILE", str(tmp_path / "job.py"), shared)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert sorted(found) == [[hosts[0].ip, True], [hosts[1].ip, True]]
    look = "cat ~/notes/note.txt; cd ~/.muster/clusters/boxes; ls -d install/*/start.log | wc -l; "
    look += 'grep -rlF "$(cat auth_token)" .'
    assert rack.run("exec", "FILE", look).stdout == "hello1\n./auth_token\n"  # in no log

    (line,) = hosts.run_on(hosts[0], ["crontab", "-l"]).stdout.splitlines()
    hosts.boot(hosts[0])
    booted = time.time()
    done = hosts.run_on(hosts[0], ["sh", "-c", f"{line.removeprefix('@reboot ')}"])  # as cron does
    assert done.returncode == 0, done.stderr
    wait_until(
        lambda: nodes(rack, booted) == ["HEAD", "WORKER"],
        "container, Ray, monitor and worker are back after a reboot",
    )

    assert rack.run("exec", "FILE", "printf changed > ~/notes/note.txt").returncode == 0
    copy = hosts[1].home / ".muster/mounts/ray/up/~/notes/note.txt"  # which the worker's container mounts
    wait_until(lambda: copy.read_text() == "changed", "what was changed on the head comes to the worker")

    down = rack.run("down", "FILE", "-y")
    assert down.returncode == 0, down.stderr
    assert (rack.left(), containers(rack)) == ({}, [[], []])
    assert hosts.run_on(hosts[0], ["crontab", "-l"]).stdout == ""
