"""What `squeue` prints becomes jobs, and pending reasons that never clear are known."""

from __future__ import annotations

import pytest

from muster.slurm.jobs import SlurmJob, describe_jobs, duration_s, fix_of, limit_s, parse_config, parse_jobs
from muster.slurm.wire import SlurmRefused, SlurmUnreachable, failure_of

LINES = """\
1_0|RUNNING|None|59:59|0:01|n1|2026-11-18T15:55:37|2026-11-18T15:55:40|muster-pilot|muster:e1/r1
3|PENDING|PartitionTimeLimit|16:40:00|0:00||2026-11-18T15:55:38|N/A|a|has | bars
5|CANCELLED by 0|None|INVALID|0:00|(null)|N/A|N/A|b|(null)
slurm_load_jobs error: nonsense
"""


def test_lines_of_squeue_become_jobs() -> None:
    running, pending, cancelled = parse_jobs(LINES)
    assert (running.job_id, running.array_id, running.left_s, running.nodes) == ("1_0", "1", 3599.0, "n1")
    assert running.is_running and running.comment == "muster:e1/r1"
    assert (pending.is_waiting, pending.reason, pending.comment) == (True, "PartitionTimeLimit", "has | bars")
    assert pending.nodes == "" and pending.starts_at is None
    assert cancelled == SlurmJob(job_id="5", state="CANCELLED", name="b") and cancelled.has_ended


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:05", 5.0),
        ("1:00:00", 3600.0),
        ("2-01:00:00", 176400.0),
        ("1-12", 129600.0),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds


def test_a_time_limit_of_one_number_is_minutes() -> None:
    assert (limit_s("90"), limit_s("1:30"), limit_s("1-00:00:00"), limit_s("x")) == (
        5400.0,
        90.0,
        86400.0,
        None,
    )


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionConfig",
        "(PartitionTimeLimit)",
        "BadConstraints",
        "InvalidQOS",
        "QOSMaxWallDurationPerJobLimit",
    ],
)
def test_reasons_that_never_clear_have_a_fix(reason: str) -> None:
    assert fix_of(reason)


@pytest.mark.parametrize(
    "reason",
    ["", "Priority", "Resources", "BeginTime", "QOSMaxJobsPerUserLimit", "ReqNodeNotAvail, Reserved"],
)
def test_reasons_that_may_clear_have_none(reason: str) -> None:
    assert not fix_of(reason)


def test_jobs_are_described_by_their_nodes_and_reasons() -> None:
    running = [SlurmJob(job_id=node, state="RUNNING", nodes=node) for node in ("n2", "n1")]
    waiting = [SlurmJob(job_id=reason, state="PENDING", reason=reason) for reason in ("", "Priority")]
    assert (
        describe_jobs([*running, *waiting]) == "1 on n1, 1 on n2, 1 waiting for Priority, 1 waiting for Slurm"
    )
    assert describe_jobs([]) == ""


def test_settings_of_the_site() -> None:
    assert parse_config("Configuration data\nMaxArraySize            = 1001\nX=a=b\n") == {
        "MaxArraySize": "1001",
        "X": "a=b",
    }


def test_what_commands_print_when_they_fail() -> None:
    refused = failure_of(
        "sbatch", "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    assert isinstance(refused, SlurmRefused)
    assert (refused.sentence, refused.is_full) == ("Invalid partition name specified", False)
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    full = failure_of("sbatch", f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: {policy}")
    assert isinstance(full, SlurmRefused) and full.is_full
    never = failure_of("sbatch", f"sbatch: error: QOSMaxCpuPerJobLimit\nsbatch: error: {policy}")
    assert isinstance(never, SlurmRefused) and not never.is_full
    unknown = "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n"
    assert "--bogus" in str(failure_of("sbatch", unknown))


@pytest.mark.parametrize(
    "printed",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_msg_sendto: address:port=127.0.0.1:41641 msg_type=2003: Unexpected missing socket error",
    ],
)
def test_a_controller_that_cannot_be_reached_is_told_from_a_refusal(printed) -> None:
    down = failure_of("squeue", printed)
    assert isinstance(down, SlurmUnreachable) and down.retryable


def test_a_computer_without_the_file_of_a_cluster_is_told_from_a_refusal() -> None:
    lines = (
        "error: fetch_config: DNS SRV lookup failed",
        "fatal: Could not establish a configuration source",
    )
    printed = "".join(f"sbatch: {line}\n" for line in lines)
    refused = failure_of("sbatch", printed)
    assert isinstance(refused, SlurmRefused) and "SLURM_CONF" in refused.fix
    assert "DNS" not in str(refused)
