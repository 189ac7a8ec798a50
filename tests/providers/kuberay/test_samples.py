"""KubeRay's samples, reduced: each becomes the types that muster launches, or the error names its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from muster.base.resources import Resources
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kuberay.effects import idle_options
from muster.providers.kuberay.ray_cluster import HEAD_GROUP, cluster_config
from muster.providers.kuberay.scaling import worker_groups


def documents(name):
    return list(yaml.safe_load_all((Path(__file__).parent / name).read_text()))


def members(family):
    """Return the samples of a family; a member's own fields replace those of the family's spec."""
    expected = {key: value for key, value in family.items() if key not in ("files", "spec", "metadata")}
    for file, fields in family["files"].items():
        spec = {**family["spec"], **fields}
        metadata = spec.pop("metadata", family.get("metadata", {}))
        manifest = {"kind": "RayCluster", "metadata": metadata, "spec": spec}
        yield {"file": file, "manifest": manifest, **expected}


FAMILIES = [sample for family in documents("sample_families.yaml") for sample in members(family)]
SAMPLES = documents("samples.yaml") + FAMILIES
CLUSTER_OF = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}


def cluster_of(sample):
    """Return the RayCluster that is applied, or that KubeRay makes of a RayJob or RayService."""
    manifest = sample["manifest"]
    key = CLUSTER_OF.get(manifest["kind"])
    metadata = {"name": "sample", **manifest.get("metadata", {})}
    return {
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": manifest["spec"][key] if key else manifest["spec"],
    }


def samples(key):
    found = [one for one in SAMPLES if key in one]
    return pytest.mark.parametrize("sample", found, ids=[one["file"] for one in found])


def test_every_sample_is_here_once_and_expects_something():
    """All 133 samples with a RayCluster that were found are here, and 13 files of KubeRay's tests."""
    names = [sample["file"] for sample in SAMPLES]
    files = {name.partition(" (")[0] for name in names}
    others = {file for file in files if file.startswith(("benchmark/", "clients/", "ray-operator/"))}
    assert len(names) == len({*names})
    assert (len(files - others), len(others)) == (133, 13)
    assert all(("types" in sample) != ("refused" in sample) for sample in SAMPLES)


@samples("types")
def test_a_sample_becomes_the_types_that_muster_launches(sample):
    cluster, warnings = cluster_of(sample), []
    spec = to_spec(cluster_config(cluster, warn=warnings.append))
    types = {one.name: [one.min_nodes, one.max_nodes, one.resources] for one in spec.node_types}
    expected = {name: [low, high, Resources.of(size)] for name, (low, high, size) in sample["types"].items()}
    assert types == expected
    assert {*worker_groups(cluster), HEAD_GROUP} == {*types}
    assert spec.idle_timeout_s == sample.get("idle_timeout_s", 60)
    assert warnings == []


@samples("labels")
def test_labels_of_groups_are_labels_of_types(sample):
    types = cluster_config(cluster_of(sample)).available_node_types
    assert {name: types[name].labels for name in sample["labels"]} == sample["labels"]


@samples("idle_cluster")
def test_an_unused_cluster_ends_as_its_sample_asks(sample):
    found = idle_options(cluster_of(sample))
    assert found is not None
    assert [found.timeout_s, found.policy.value] == sample["idle_cluster"]


@samples("refused")
def test_a_broken_sample_is_refused_with_its_line(sample):
    with pytest.raises(ConfigError) as error:
        cluster_config(cluster_of(sample))
    assert error.value.path == sample["refused"]


def test_rays_own_autoscaler_agrees_where_it_can_read_a_sample():
    peer = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config")
    unread, agreed = [], 0
    for sample in SAMPLES:
        cluster = cluster_of(sample)
        cluster["metadata"].setdefault("namespace", "default")
        try:
            ours = cluster_config(cluster).available_node_types
            theirs = peer._derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
        except (
            ConfigError,
            KeyError,
        ):  # a RayCluster without groups, or a group without limits, is a KeyError
            unread.append(sample["file"])
            continue
        head = {key: value for key, value in theirs[HEAD_GROUP]["resources"].items() if value or key == "CPU"}
        assert ours[HEAD_GROUP].resources == head, sample["file"]  # Ray keeps `num-gpus: "0"` as 0 GPUs
        for group in cluster["spec"]["workerGroupSpecs"]:
            if group.get("suspend"):  # Ray counts on a group that the operator does not fill
                continue
            mine, other = ours[group["groupName"]], theirs[group["groupName"]]
            limits = (mine.min_workers, mine.max_workers) == (other["min_workers"], other["max_workers"])
            assert (mine.resources, limits) == (other["resources"], True), sample["file"]
            agreed += 1
    assert (len(unread), agreed) == (32, 119)
