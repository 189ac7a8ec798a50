"""`muster kuberay-autoscaler` as Kubernetes runs it: what it says, where, and when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.kube.api_server import NAMESPACE, running_api
from tests.kube.operator import worker_group
from tests.kube.world import KubeWorld, until

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "deploy" / "kuberay" / "ray"


@pytest.fixture
def api():
    with running_api() as server:
        yield server


@pytest.fixture
def world(api):
    made = KubeWorld(api)
    yield made
    made.close()


def kubeconfig(api, folder, role="kuberay-1.3"):
    data = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": api.token(role)}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(data))
    return str(folder / "kubeconfig")


def start(folder, *arguments, **environment):
    (folder / "termination-log").touch()
    command = [sys.executable, "-m", "muster.cli.main", "kuberay-autoscaler", *arguments]
    return subprocess.Popen(
        [*command, "--termination-log", str(folder / "termination-log"), "--home", str(folder / "home")],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def names(cluster="demo"):
    return ("--cluster-name", cluster, "--cluster-namespace", NAMESPACE)


def said(folder):
    return (folder / "termination-log").read_text()


@pytest.mark.slow
def test_outside_of_a_cluster_it_ends_with_a_reason_in_the_termination_message(tmp_path):
    sidecar = start(tmp_path, RAY_CLUSTER_NAME="demo", RAY_CLUSTER_NAMESPACE=NAMESPACE)
    output = sidecar.communicate(timeout=120)[0]
    assert (sidecar.returncode, output.count("\n")) == (2, 1)
    assert " Kubernetes " in output
    assert said(tmp_path).strip() in output
    assert " Kubernetes " in said(tmp_path)


@pytest.mark.slow
def test_a_mistake_in_the_cluster_is_said_and_can_be_mended_while_it_waits(world, api, tmp_path):
    world.create(worker_group("small", 0, template={"spec": {"containers": [{"name": "ray"}]}}))
    sidecar = start(tmp_path, *names(), "--kubeconfig", kubeconfig(api, tmp_path), "--address", "127.0.0.1:1")
    try:
        until(lambda: " resources.limits.cpu" in said(tmp_path))
        assert sidecar.poll() is None
        world.admin.edit_group(0, rayStartParams={"num-cpus": "4"})
        until(lambda: said(tmp_path) == "", "the mistake is repaired")
        until((tmp_path / "home" / "ledger.db").exists, "the loop is being built")
        sidecar.send_signal(signal.SIGTERM)
        output = sidecar.communicate(timeout=120)[0]
    finally:
        sidecar.kill()
    assert sidecar.returncode == 0, output
    assert " demo " in output.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "role", "environment", "text"),
    [
        ("gone", "kuberay-1.3", {}, 'rayclusters "gone" not found'),
        ("demo", "nobody", {}, "may not get rayclusters.ray.io: add the verb 'get'"),
        ("demo", "kuberay-1.3", {"KUBERAY_CRD_VER": "v1alpha1"}, "set KUBERAY_CRD_VER to the version"),
    ],
)
def test_what_can_be_mended_outside_is_said_and_waited_for(
    world, api, tmp_path, cluster, role, environment, text
):
    world.create(worker_group("small", 0))
    arguments = (*names(cluster), "--kubeconfig", kubeconfig(api, tmp_path, role))
    sidecar = start(tmp_path, *arguments, **environment)
    try:
        until(lambda: text in said(tmp_path), said(tmp_path))
        assert sidecar.poll() is None
    finally:
        sidecar.send_signal(signal.SIGTERM)
        output = sidecar.communicate(timeout=120)[0]
    assert (sidecar.returncode, text in output) == (0, True)


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh")
def test_the_shim_takes_one_command_over_and_passes_the_others_on(tmp_path):
    for name, folder in (("muster", tmp_path), ("ray", tmp_path / "real")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$#" "$@"\n')
        (folder / name).chmod(0o755)
    path = f"{SHIM.parent}:{tmp_path}:{tmp_path / 'real'}:{os.environ['PATH']}"

    def run(*arguments, path=path):
        command = ["ray", *arguments]
        done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip() or done.stderr.strip()

    taken = "muster 3 kuberay-autoscaler --cluster-name demo"
    assert run("kuberay-autoscaler", "--cluster-name", "demo") == (0, taken)
    assert run("start", "--head", "a b") == (0, "ray 3 start --head a b")
    bare = tmp_path / "bare"
    bare.mkdir()
    for tool in ("sh", "dirname"):
        (bare / tool).symlink_to(shutil.which(tool))
    code, told = run("start", path=f"{SHIM.parent}:{bare}")
    assert (code, told.count("\n"), told.startswith("ray: "), " PATH " in told) == (127, 0, True, True)
