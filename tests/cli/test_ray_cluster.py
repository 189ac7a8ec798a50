"""`muster up`, `status`, `why` and `down` with a RayCluster of Kubernetes as their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.kube.api_server import NAMESPACE, running_api
from tests.kube.operator import AdminClient, OperatorDouble, ray_cluster, worker_group
from tests.mistakes.views import assert_view

from muster.cli.main import cli
from muster.cli.ray_cluster import manifest_of
from muster.providers.kuberay.ray_cluster import cluster_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def api():
    with running_api() as server:
        yield server


@pytest.fixture
def file(api, tmp_path, monkeypatch):
    """The file of a RayCluster, and a kubeconfig that may do everything."""
    data = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": api.admin_token}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(data))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return write(tmp_path / "demo.yaml", worker_group("small", 1, maxReplicas=3))


def write(path, *groups):
    path.write_text(yaml.safe_dump(ray_cluster("demo", *groups)))
    return path


def muster(*arguments):
    done = CliRunner().invoke(cli, [str(one) for one in arguments])
    return done.exit_code, done.output


@pytest.fixture
def admin(api):
    return AdminClient(api.url, api.admin_token)


def test_up_makes_the_cluster_and_again_changes_it_but_not_what_the_autoscaler_decided(file, admin):
    said = [muster("up", file, "-y"), muster("up", file, "-y")]
    admin.edit_group(0, replicas=3, scaleStrategy={"workersToDelete": ["x"]})
    write(file, worker_group("small", 1, maxReplicas=7), worker_group("other", 2))
    said.append(muster("up", file, "-y"))
    assert [code for code, _ in said] == [0, 0, 0]
    assert_view("cli/up_raycluster", "".join(text for _, text in said).replace(str(file), "FILE"))
    small, other = admin.cluster()["spec"]["workerGroupSpecs"]
    assert (small["replicas"], small["maxReplicas"], small["scaleStrategy"]) == (
        3,
        7,
        {"workersToDelete": ["x"]},
    )
    assert other["replicas"] == 2


def test_what_is_taken_out_of_the_file_goes_and_what_others_wrote_stays(file, admin):
    whole = ray_cluster("demo", worker_group("small", 1), worker_group("other", 0))
    whole["spec"]["autoscalerOptions"] = {"idleTimeoutSeconds": 9, "upscalingMode": "Conservative"}
    whole["metadata"] |= {"annotations": {"mine": "1"}, "labels": {"team": "a"}}
    file.write_text(yaml.safe_dump(whole))
    assert muster("up", file, "-y")[0] == 0
    others = {"scheduling.volcano.sh/queue-name": "q"}
    admin.merge_cluster({"metadata": {"annotations": others}, "spec": {"suspend": False}})
    del whole["spec"]["autoscalerOptions"]["upscalingMode"], whole["spec"]["workerGroupSpecs"][1]
    whole["metadata"] |= {"annotations": {}, "labels": {}}
    file.write_text(yaml.safe_dump(whole))
    assert muster("up", file, "-y")[0] == 0
    left = admin.cluster()
    assert left["spec"]["autoscalerOptions"] == {"idleTimeoutSeconds": 9}
    assert [group["groupName"] for group in left["spec"]["workerGroupSpecs"]] == ["small"]
    assert (left["metadata"]["annotations"], left["metadata"].get("labels") or {}) == (others, {})
    assert left["spec"]["suspend"] is False


def test_a_dry_run_applies_nothing_and_a_mistake_is_named_before_anything_is_applied(file, api):
    assert muster("up", file, "--dry-run")[0] == 0
    write(file, worker_group("small", 1, template={"spec": {"containers": [{"name": "ray"}]}}))
    code, said = muster("up", file, "-y")
    assert (code, "workerGroupSpecs[0] (small): " in said) == (2, True)
    assert (api.count("POST"), api.count("PATCH")) == (0, 0)


def test_what_up_does_not_apply_and_what_overrides_the_start_parameters_is_reported(file):
    group = worker_group("small", 1, resources={"CPU": "2"}, rayStartParams={"num-cpus": "1"})
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}}
    file.write_text(yaml.safe_dump_all([ray_cluster("demo", group), code]))
    code, output = muster("up", file, "--dry-run")
    assert code == 0
    warnings = [line for line in output.splitlines() if line.startswith("warning: ")]
    assert [word in line for word, line in zip(("num-cpus", "ConfigMap"), warnings, strict=True)] == [
        True
    ] * 2


def test_status_shows_groups_and_what_is_wrong_with_pods_and_why_explains_one(file, admin):
    muster("up", file, "-y")
    operator = OperatorDouble(admin)
    operator.starts = False
    operator.step()
    (pod,) = operator.workers("small")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPUs"}
    admin.set_status(pod, {"phase": "Pending", "conditions": [condition]})
    code, said = muster("status", file)
    assert code == 0
    pages = (said, muster("why", pod, file)[1], muster("why", "small", file)[1])
    assert_view("cli/status_raycluster", "----\n".join(pages).replace(pod, "POD").replace(str(file), "FILE"))
    assert json.loads(muster("status", file, "--json")[1])["groups"][0]["states"] == {"stuck": 1}
    code, said = muster("why", "smal", file)
    assert (code, " 'smal'" in said, "'small'" in said) == (2, True, True)


def test_down_deletes_the_cluster_once(file, api):
    muster("up", file, "-y")
    first, again = muster("down", file, "-y"), muster("down", file, "-y")
    assert (first[0], again[0], api.count("DELETE")) == (0, 0, 1)
    assert_view("cli/down_raycluster", first[1] + again[1])
    code, said = muster("status", file)
    assert (code, "RayCluster demo" in said, " research" in said) == (2, True, True)


def test_options_of_other_clusters_are_refused(file):
    code, said = muster("up", file, "-y", "--max-workers", "3")
    assert (code, "--max-workers: " in said) == (2, True)


def test_without_a_kubeconfig_it_says_what_to_give(file, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    code, said = muster("status", file)
    assert (code, str(tmp_path / "gone") in said, " KUBECONFIG " in said) == (2, True, True)


@pytest.mark.parametrize("name", ["raycluster.yaml", "raycluster-1.6.yaml"])
def test_the_files_to_deploy_can_be_used(name):
    manifest = manifest_of(ROOT / "deploy" / "kuberay" / name)
    config = cluster_config(manifest)
    assert config.available_node_types["small"].resources == {"CPU": 8, "memory": 32 * 2**30}
    assert manifest["spec"]["autoscalerOptions"]["image"] == "my-ray-with-muster"


def test_the_optional_role_gives_what_its_text_says_and_nothing_else():
    role, binding = yaml.safe_load_all((ROOT / "deploy" / "kuberay" / "role.yaml").read_text())
    rights = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}
    assert rights == {
        "rayclusters": ["watch", "delete"],
        "rayclusters/status": ["patch"],
        "events": ["create"],
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
