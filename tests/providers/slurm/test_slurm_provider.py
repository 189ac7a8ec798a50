"""What the provider concludes from lists, refusals and silence of a controller."""

from __future__ import annotations

import pytest
from tests.providers.slurm.scripted_wire import Site

from muster.cluster.model import FailureKind, NodeKind
from muster.slurm.wire import SlurmRefused, SlurmUnreachable

SILENT = SlurmUnreachable("no answer")


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_launch_is_one_array_and_its_jobs_are_machines_that_wait(site):
    site.provider.launch("r-1", {"cpu": 3})
    machines = site.listed().values()
    assert [(m.cloud_id, m.node_type, m.request_id, m.launch_hash, m.is_running) for m in machines] == [
        (f"1_{task}", "cpu", "r-1", "h", False) for task in range(3)
    ]
    assert site.wire.calls.count("sbatch") == 1


def test_more_than_an_array_may_have_are_several_submissions(site):
    site.provider.launch("r-1", {"cpu": 7})
    assert len(site.listed()) == 7
    assert site.wire.calls.count("sbatch") == 3


def test_jobs_of_others_and_of_other_clusters_are_not_listed(site):
    site.stranger("8", name="muster-other", comment='muster:{"request_id":"r","node_type":"cpu"}')
    site.stranger("9", name="muster-lab", comment="by hand")
    assert site.listed() == {}


def test_a_list_serves_several_ticks_unless_muster_has_changed_something(site):
    for _ in range(5):
        site.listed(1.0)
    assert site.wire.calls.count("squeue") == 1
    site.provider.launch("r-1", {"cpu": 1})
    assert len(site.listed(0.1)) == 1
    site.provider.terminate("t-1", ["1"])
    assert site.listed(0.1) == {}


def test_a_controller_that_does_not_answer_leaves_the_list_unknown(site):
    site.provider.launch("r-1", {"cpu": 1})
    site.listed()
    site.wire.errors["squeue"] = SILENT
    with pytest.raises(SlurmUnreachable):
        site.listed()
    assert len(site.listed()) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_submission_whose_answer_was_lost_is_found_by_its_comment(site, is_restarted):
    site.wire.loses_reply, site.wire.errors["reply"] = True, SILENT
    site.provider.launch("r-1", {"cpu": 2})
    assert site.provider.under_way("r-1")
    if is_restarted:
        site.restart()
    site.provider.launch("r-1", {"cpu": 2})
    assert (len(site.listed()), site.provider.under_way("r-1")) == (2, False)
    assert site.wire.calls.count("sbatch") == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_submission_without_an_answer_is_repeated_when_it_can_no_longer_arrive(site, is_restarted):
    site.wire.errors["sbatch"] = SILENT
    site.provider.launch("r-1", {"cpu": 2})
    if is_restarted:
        site.restart()
    for _ in range(5):
        site.clock.advance(10.0)
        site.provider.launch("r-1", {"cpu": 2})
        assert site.provider.under_way("r-1")
    assert site.wire.calls.count("sbatch") == 1
    site.clock.advance(60.0)
    site.provider.launch("r-1", {"cpu": 2})
    assert (len(site.listed()), site.provider.under_way("r-1")) == (2, False)


def test_a_launch_that_nobody_waits_for_is_not_repeated(site):
    site.wire.errors["sbatch"] = SILENT
    site.provider.launch("r-1", {"cpu": 2})
    site.provider.withdraw("r-1")
    site.clock.advance(100.0)
    site.provider.launch("r-1", {"cpu": 2})
    assert (site.listed(), site.provider.under_way("r-1")) == ({}, False)


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Invalid partition name specified", FailureKind.CONFIG),
        ("Requested node configuration is not available", FailureKind.CONFIG),
        ("Job violates accounting/QOS policy (job submit limit)", FailureKind.QUOTA),
        ("Slurm temporarily full: too many jobs", FailureKind.QUOTA),
        ("Access/permission denied", FailureKind.PERMISSION),
    ],
)
def test_a_refused_array_fails_each_of_its_machines(site, sentence, kind):
    site.wire.errors["sbatch"] = SlurmRefused(f"sbatch: {sentence}", sentence=sentence)
    site.provider.launch("r-1", {"cpu": 2})
    failures = site.provider.poll_launch_failures()
    assert [(f.request_id, f.node_type, f.kind) for f in failures] == [("r-1", "cpu", kind)] * 2
    assert all(sentence in failure.message for failure in failures)


def test_a_reason_that_clears_keeps_the_place_and_one_that_never_does_is_a_mistake(site):
    site.provider.launch("r-1", {"cpu": 3})
    site.wire.change("1_1", reason="Priority")
    site.wire.change("1_2", reason="PartitionTimeLimit")
    first, second, third = site.listed().values()
    assert first.problem is None
    assert (second.problem.kind, second.problem.has_place) == (FailureKind.CAPACITY, True)
    assert (third.problem.kind, third.problem.has_place) == (FailureKind.CONFIG, False)
    assert "Priority" in second.problem.message
    assert "PartitionTimeLimit" in third.problem.message


@pytest.mark.parametrize(
    "state", ["COMPLETED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "COMPLETING"]
)
def test_a_job_that_has_ended_is_gone(site, state):
    site.provider.launch("r-1", {"cpu": 1})
    site.wire.change("1", state=state)
    assert site.listed() == {}


def test_a_job_that_was_queued_again_is_gone(site):
    site.provider.launch("r-1", {"cpu": 1})
    site.wire.change("1", state="RUNNING")
    assert list(site.listed()) == ["1"]
    site.wire.change("1", state="PENDING", reason="BeginTime")
    assert site.listed() == {}
    site.restart()
    assert list(site.listed()) == ["1"]  # `muster down` must find and end it


def test_a_job_that_failed_before_its_node_came_up_is_shown_with_its_last_line_until_it_is_ended(site):
    site.log_line = "ModuleNotFoundError: No module named 'muster'"
    site.provider.launch("r-1", {"cpu": 1})
    site.wire.change("1", state="FAILED", starts_at=site.clock.now(), used_s=1.0)
    (machine,) = site.listed().values()
    assert (machine.is_running, machine.problem.kind) == (False, FailureKind.CONFIG)
    assert site.log_line in machine.problem.message
    assert site.listed(300.0) == {}
    site.wire.change("1", starts_at=site.clock.now())
    assert len(site.listed()) == 1
    site.provider.terminate("t-1", ["1"])
    site.wire.change("1", state="FAILED")
    assert site.listed() == {}


def test_a_job_that_failed_before_this_monitor_says_nothing_about_the_cluster_file_of_now(site):
    site.provider.launch("r-1", {"cpu": 1})
    site.wire.change("1", state="FAILED")
    assert len(site.listed()) == 1
    site.restart()
    site.wire.errors["squeue"] = SILENT
    with pytest.raises(SlurmUnreachable):
        site.listed()
    assert site.listed() == {}
    site.provider.launch("r-2", {"cpu": 1})
    site.wire.change("2", state="FAILED")
    assert list(site.listed()) == ["2"]


def test_a_cancellation_that_slurm_has_lost_leaves_the_machine_listed(site):
    site.provider.launch("r-1", {"cpu": 1})
    site.provider.terminate("t-1", ["1"])
    site.wire.change("1", state="RUNNING")
    assert list(site.listed()) == ["1"]


def test_a_cancellation_without_an_answer_is_reported(site):
    site.provider.launch("r-1", {"cpu": 1})
    site.wire.errors["scancel"] = SILENT
    site.provider.terminate("t-1", ["1"])
    (failure,) = site.provider.poll_terminate_failures()
    assert failure.cloud_id == "1"


def test_running_jobs_have_a_notice_in_the_last_part_of_their_time(site):
    site.provider.launch("r-1", {"cpu": 3})
    site.wire.change("1_0", state="RUNNING", left_s=500.0, used_s=9500.0)
    site.wire.change("1_1", state="RUNNING", left_s=700.0, used_s=9300.0)
    site.wire.change("1_2", state="RUNNING", left_s=300.0, used_s=300.0)  # a short limit: it has just begun
    site.listed(0.0)
    (notice,) = site.provider.read().notices
    assert (notice.cloud_id, notice.deadline) == ("1_0", site.clock.now() + 500.0)
    site.wire.change("1_0", left_s=489.0)
    site.listed(10.0)
    (again,) = site.provider.read().notices
    assert again.deadline == notice.deadline  # Slurm counts in whole seconds


def ends(site, left_s, used_s=9000.0, pass_s=10.0):
    site.wire.change("1", state="RUNNING", left_s=left_s, used_s=used_s)
    site.listed(pass_s)
    return [round(notice.deadline - site.clock.now()) for notice in site.provider.read().notices]


def test_a_preemption_with_grace_comes_nearer_and_an_outdated_list_takes_nothing_back(site):
    site.provider.launch("r-1", {"cpu": 1})
    assert ends(site, left_s=5000.0) == []
    assert ends(site, left_s=100.0) == [100]
    assert ends(site, left_s=5000.0) == [90]
    assert ends(site, left_s=70.0) == [70]  # preempted a second time


def test_an_end_that_was_put_off_counts_once_lists_show_it_for_a_while(site):
    site.provider.launch("r-1", {"cpu": 1})
    assert ends(site, left_s=100.0) == [100]
    assert ends(site, left_s=5000.0) == [90]
    assert ends(site, left_s=4960.0, pass_s=40.0) == [50]
    assert ends(site, left_s=4920.0, pass_s=40.0) == []


@pytest.mark.parametrize(("text", "jobs"), [(None, []), ("", []), ("77", ["77"])])
def test_down_ends_the_job_of_a_head_before_its_workers(site, tmp_path, text, jobs):
    if text is not None:
        (tmp_path / "head_job").write_text(text)
    assert site.provider.left_to_tear_down(NodeKind.WORKER) == jobs
    assert site.provider.left_to_tear_down(NodeKind.HEAD) == []
    site.provider.clean_up()
    assert not (tmp_path / "head_job").exists()


def test_commands_see_the_workers(site):
    site.provider.launch("r-1", {"cpu": 1})
    (machine,) = site.provider.machines(NodeKind.WORKER)
    assert (machine.node_id, machine.node_type) == ("1", "cpu")
    assert site.provider.machines(NodeKind.HEAD) == []
    assert not site.provider.is_gone("1")
