"""Provider classes of several styles, unchanged and loaded by name: the kit passes the good ones, finds every
planted bug, and names the lines that Ray's own providers break.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from tests.providers.contract.live import named, run
from tests.providers.v1.planted_bugs import BUGS

from muster.providers.batching import REQUIRED_FLAGS
from muster.providers.contract.run import CHECKS
from muster.testing import ProviderContract

REFUSAL = "a_refusal_is_understood_for_what_it_is"
TAGGED = [
    "tags_given_to_create_are_read_at_once",
    "tags_are_merged_and_read_at_once",
    "a_listing_by_tags_matches_all_of_them",
    "nodes_made_tagged_and_ended_by_many_threads_come_out_right",
    "no_tag_is_lost_when_many_threads_tag_one_node",
    "a_launched_machine_is_listed_with_its_type_request_and_hash",
    "a_launch_repeated_after_a_restart_buys_what_is_missing",
]
FLAGS = dict.fromkeys(REQUIRED_FLAGS, "true")
V1 = "tests.providers.v1"


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        pytest.param(f"{V1}.dict_provider.DictNodeProvider", {}, id="muster's base class"),
        pytest.param(f"{V1}.file_provider.FileNodeProvider", {"state_dir": "HERE"}, id="no base class"),
        pytest.param(f"{V1}.test_reused_ids.Slots", {}, id="ids used again"),
        pytest.param("tests.parity.test_v1_duck.RayStyleProvider", {}, id="Ray's base class"),
    ],
)
def test_a_provider_that_keeps_its_promises_passes_every_line(module, settings, tmp_path):
    if "parity" in module:
        pytest.importorskip("ray.autoscaler.node_provider", reason="Ray's own autoscaler is not installed")
    report = run(module, **{key: str(tmp_path) for key in settings})
    assert (report.kept, named(report, "failed"), named(report, "skipped")) == (True, [], [REFUSAL])


def test_machines_requested_by_number_pass_the_lines_that_are_about_them():
    report = run(f"{V1}.batching_styles.MusterManager", **FLAGS)
    assert (named(report, "failed"), named(report, "skipped")) == ([], [*TAGGED, REFUSAL])
    assert report.kept


def test_rays_base_class_for_them_lacks_two_methods_and_passes_the_other_lines():
    pytest.importorskip("ray.autoscaler.batching_node_provider", reason="Ray's own autoscaler is missing")
    report = run(f"{V1}.batching_styles.RayManager", **FLAGS)
    assert named(report, "failed") == [
        "no_two_living_nodes_have_the_same_address",  # external_ip
        "running_and_terminated_agree_with_the_list",  # is_terminated
    ]
    assert {result.promise for result in report.results if result.status == "failed"} == {
        "every provider defines this method"
    }
    assert named(report, "skipped") == [*TAGGED, REFUSAL]


@pytest.fixture(scope="module")
def reports():
    """Bug -> the report of the kit."""
    return {bug: run(f"{bug.__module__}.{bug.__name__}") for bug in BUGS}


@pytest.mark.slow
def test_every_line_is_broken_by_some_bug(reports):
    """A line that nothing breaks proves nothing; that of refusals has tests of its own."""
    found = {name for report in reports.values() for name in named(report, "failed")}
    assert found == {check.name for check in CHECKS if check.name != REFUSAL}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_every_planted_bug_breaks_its_line_and_nothing_is_left(reports, bug):
    report = reports[bug]
    failed = {result.name: result for result in report.results if result.status == "failed"}
    assert {test.removeprefix("test_") for test in BUGS[bug]} <= failed.keys()
    assert all(result.saw and result.promise for result in failed.values())
    assert report.left == {}


def test_no_line_is_run_where_clusters_are_not_kept_apart():
    report = run(f"{V1}.planted_bugs.OneBigCluster")
    assert named(report, "failed") == ["a_cluster_sees_only_its_own_nodes"]
    assert named(report, "not run") == [check.name for check in CHECKS[1:]]


def test_the_test_class_has_a_test_for_each_line_and_no_other():
    tests = [name for name in vars(ProviderContract) if name.startswith("test_")]
    assert tests == [f"test_{check.name}" for check in CHECKS]


@pytest.fixture
def _rays_files_are_removed():
    """Ray's local provider keeps its state under Ray's directory, by the name of the cluster."""
    before = set(Path("/tmp/ray").glob("cluster-muster-check-*"))
    yield
    for file in set(Path("/tmp/ray").glob("cluster-muster-check-*")) - before:
        file.unlink(missing_ok=True)


@pytest.mark.usefixtures("_rays_files_are_removed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_rays_local_provider_passes_every_line():
    module = "ray.autoscaler._private.local.node_provider"
    _import_quietly(module)
    ips = [f"127.1.{os.getpid() % 200}.{number}" for number in range(1, 10)]
    report = run(
        f"{module}.LocalNodeProvider", node_type="local.cluster.node", head_ip="127.0.0.1", worker_ips=ips
    )
    assert (report.kept, named(report, "failed"), named(report, "skipped")) == (True, [], [REFUSAL])


@pytest.mark.slow
def test_rays_fake_provider_forgets_with_its_object_and_writes_no_tags(monkeypatch):
    """Ray's own class, run as it is; the Ray nodes that it starts are stand-ins without processes."""
    module = "ray.autoscaler._private.fake_multi_node.node_provider"
    _import_quietly(module)
    monkeypatch.setenv("RAY_FAKE_CLUSTER", "1")
    monkeypatch.setattr("ray._private.node.Node", NoProcesses)
    report = run(f"{module}.FakeMultiNodeProvider", gcs_address="127.0.0.1:6379", launch_multiple="true")
    assert named(report, "failed") == [
        "a_second_object_sees_and_ends_the_same_nodes",
        "tags_are_merged_and_read_at_once",
        "nodes_made_tagged_and_ended_by_many_threads_come_out_right",
        "no_tag_is_lost_when_many_threads_tag_one_node",
        "a_launch_repeated_after_a_restart_buys_what_is_missing",
    ]
    assert report.left == {}


class NoProcesses:
    """Stands for a Ray node whose processes are never started."""

    def __init__(self, params, **options):
        pass

    def kill_all_processes(self, **options):
        pass


def _import_quietly(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(module, reason="Ray's own autoscaler is not installed")
