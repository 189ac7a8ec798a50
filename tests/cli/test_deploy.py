"""The files of `deploy` for Kubernetes: muster reads the RayClusters of RayJob, RayService and Helm chart."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from muster.providers.kuberay.ray_cluster import SETTINGS, cluster_config

DEPLOY = Path(__file__).parents[2] / "deploy"


def made_by_the_operator(owner, key):
    """The RayCluster that KubeRay makes of a RayJob or RayService: its own name, the same annotations."""
    return {
        "kind": "RayCluster",
        "metadata": {
            "name": f"{owner['metadata']['name']}-x7k2p",
            "annotations": owner["metadata"]["annotations"],
            "ownerReferences": [{"kind": owner["kind"], "name": owner["metadata"]["name"]}],
        },
        "spec": owner["spec"][key],
    }


@pytest.mark.parametrize(("name", "key"), [("rayjob", "rayClusterSpec"), ("rayservice", "rayClusterConfig")])
def test_the_cluster_of_a_job_or_a_service_is_read(name, key):
    owner = yaml.safe_load((DEPLOY / "kuberay" / f"{name}.yaml").read_text())
    found = cluster_config(made_by_the_operator(owner, key))
    small = found.available_node_types["small"]
    assert (found.cluster_name, small.max_workers, small.price_per_hour) == ("demo-x7k2p", 50, 0.2)
    assert owner["spec"][key]["autoscalerOptions"]["command"] == ["muster", "kuberay-autoscaler"]


@pytest.mark.parametrize("has_command", [True, False])
def test_the_chart_renders_a_cluster_and_a_role(has_command):
    if shutil.which("helm") is None:
        pytest.skip("the Helm chart was not rendered: helm is missing")
    price = "settings.available_node_types.small.price_per_hour=0.5"
    chart = str(DEPLOY / "helm" / "muster-raycluster")
    command = [
        "helm",
        "template",
        "demo",
        chart,
        "--set",
        price,
        "--set",
        f"hasCommand={str(has_command).lower()}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    objects = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
    cluster, role = objects["RayCluster"], objects["Role"]
    assert cluster_config(cluster).available_node_types["small"].price_per_hour == 0.5
    assert (
        "command" in cluster["spec"]["autoscalerOptions"],
        SETTINGS in cluster["metadata"]["annotations"],
    ) == (
        has_command,
        True,
    )
    fixed = next(yaml.safe_load_all((DEPLOY / "kuberay" / "role.yaml").read_text()))
    assert role["rules"] == fixed["rules"]
