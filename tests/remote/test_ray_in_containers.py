"""Ray and trials in containers on two hosts: set up by the updater from a cluster file, with a token."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from tests.containers import machine_options, make_image
from tests.hosts import ROOT
from tests.remote.scripted import Tags

from muster.config.document import Document
from muster.config.load import parse_config
from muster.remote.connect import host_of, runner_for
from muster.remote.steps import head_setup, worker_setup
from muster.remote.updater import Updater

pytestmark = [pytest.mark.ray, pytest.mark.slow]
HOSTS = 2
RAY = Path(sys.prefix) / "bin" / "ray"
SMALL = "--object-store-memory=100000000 --disable-usage-stats"
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


def cluster_file(hosts, job: Path, head_ip: str) -> str:
    settings = {
        "cluster_name": "boxes",
        "provider": {"type": "external", "module": "none.Such", "disable_node_updaters": False},
        "auth": {"ssh_user": "root", "ssh_private_key": str(hosts.key)},
        "docker": {
            "image": make_image(hosts, hosts[0]),
            "container_name": "ray",
            "use_podman": True,
            "run_options": list(machine_options()),
        },
        "max_workers": 1,
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 1}, "node_config": {}},
            "worker": {"resources": {"CPU": 1}, "node_config": {}, "labels": {"place": "box"}},
        },
        "file_mounts": {"~/job": str(job)},
        "head_start_ray_commands": [
            f"{RAY} start --head --port=6379 --node-ip-address={head_ip} --include-dashboard=false {SMALL}"
        ],
        "worker_start_ray_commands": [
            f"{RAY} start --address=$RAY_HEAD_IP:6379 --node-ip-address={hosts[1].ip} {SMALL}"
        ],
    }
    return json.dumps(settings)


def test_trials_run_in_containers_of_two_hosts(hosts, shared, tmp_path):
    make_image(hosts, hosts[1])
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.py").write_text(JOB)
    config = parse_config(Document(cluster_file(hosts, tmp_path / "job", hosts[0].ip), "c.json"))
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    marks = {name: value for name, value in os.environ.items() if name.startswith("MUSTER_TEST_")}

    async def story():
        pins = str(tmp_path / "known_hosts")
        reach = [host_of(config, host.ip, instance_id=host.name, known_hosts=pins) for host in hosts]
        head = runner_for(config, reach[0], node_type="head", is_head=True, login_shell=False)
        worker = runner_for(config, reach[1], node_type="worker", login_shell=False)
        updater = Updater(Tags(None, None), tmp_path / "logs")
        await updater.update("h1", head_setup(config, cloud_id="h1", secrets=token | marks), head)
        as_worker = worker_setup(
            config, node_type="worker", cloud_id="h2", head_ip=hosts[0].ip, secrets=token
        )
        await updater.update("h2", as_worker, worker)
        address = {"RAY_ADDRESS": f"{hosts[0].ip}:6379"}
        line = f"{sys.executable} ~/job/job.py {shared}"
        return await head.run(line, environment=address, secrets=token, timeout_s=200.0)

    with hosts.inside():
        said = asyncio.run(story())
    found = json.loads(said.splitlines()[-1])
    assert sorted(found) == [[hosts[0].ip, True], [hosts[1].ip, True]]
    assert token["RAY_AUTH_TOKEN"] not in "".join(
        path.read_text() for path in (tmp_path / "logs").rglob("*.log")
    )
