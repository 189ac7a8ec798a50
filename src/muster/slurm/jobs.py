"""Parse what `squeue` and `scontrol` print and what a job sees of itself, and judge pending reasons. Pure.

The text form is parsed, not the JSON one: its layout changes between versions and it ignores filters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

# Free text comes last: a comment may contain the separator.
FIELDS = "%i|%T|%r|%L|%M|%N|%V|%S|%j|%k"
_COUNT = FIELDS.count("|")

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
ENDED = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"),
        *("DEADLINE", "PREEMPTED", "REVOKED"),
    }
)

# Reasons that no passing of time clears, and what to change.
_PARTITION = (
    "change the partition, the time limit or the size of the job to what `sinfo -o '%P %l %D %c %m'` shows"
)
_ACCOUNT = "change account, qos or partition to ones that `sacctmgr show assoc user=$USER` lists"
_LIMIT = "request less per job, or another qos"
_HELD = "release it with `scontrol release`, or ask the site's administrators"
_NEVER: Mapping[str, str] = {
    **dict.fromkeys(("PartitionConfig", "PartitionTimeLimit", "PartitionNodeLimit"), _PARTITION),
    "BadConstraints": "change the constraint or the size of the job to what a node offers",
    **dict.fromkeys(("AccountNotAllowed", "InvalidAccount", "InvalidQOS", "QOSNotAllowed"), _ACCOUNT),
    **dict.fromkeys(("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue"), _HELD),
    "DependencyNeverSatisfied": "submit it without the dependency",
}
_SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_UNITS = {"K": 1 << 10, "": 1 << 20, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}  # a number alone is MiB
_PER_JOB = re.compile(r"^(Assoc|QOS)(Max\w+PerJob(Limit)?|Min\w*)$")


class SlurmJob(Struct, frozen=True, kw_only=True):
    """One job, or one task of an array, as `squeue` lists it."""

    job_id: str  # "17", of an array "17_3"
    state: str
    reason: str = ""  # why it waits or why it ended; "" if Slurm gives none
    left_s: float | None = None  # until its time limit; None: no limit, or not started
    used_s: float = 0.0
    nodes: str = ""  # "n1", "n[1-2]"; "" before it starts
    submitted_at: float | None = None  # since the epoch
    starts_at: float | None = None  # since the epoch; of a pending job Slurm's estimate
    name: str = ""
    comment: str = ""

    @property
    def array_id(self) -> str:
        """The id that `sbatch` printed, which all tasks of an array share."""
        return self.job_id.partition("_")[0]

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def has_ended(self) -> bool:
        """Whether it is over; a COMPLETING job runs nothing more, but may be about to be requeued."""
        return self.state in ENDED


def parse_jobs(text: str) -> list[SlurmJob]:
    """Return the jobs in the output of `squeue -h -r -o FIELDS`; lines that are not jobs are skipped.

    Example:
        >>> [job.job_id for job in parse_jobs("7_1|RUNNING|None|9:30|0:30|n1|N/A|N/A|pilot|muster:a|b")]
        ['7_1']
    """
    jobs = []
    for line in text.splitlines():
        parts = line.strip().split("|", _COUNT)
        if len(parts) == _COUNT + 1 and parts[0][:1].isdigit():
            jobs.append(_job(parts))
    return jobs


def _job(parts: Sequence[str]) -> SlurmJob:
    job_id, state, reason, left, used, nodes, submitted, starts, name, comment = parts
    return SlurmJob(
        job_id=job_id,
        state=state.split(" ")[0],  # "CANCELLED by 1000"
        reason="" if reason in ("None", "(null)") else reason,
        left_s=duration_s(left),
        used_s=duration_s(used) or 0.0,
        nodes="" if nodes in ("(null)", "n/a") else nodes,
        submitted_at=_time(submitted),
        starts_at=_time(starts),
        name=name,
        comment="" if comment == "(null)" else comment,
    )


def duration_s(text: str) -> float | None:
    """Return the seconds of Slurm's `days-hours:minutes:seconds`; None: unlimited, or not known.

    Example:
        >>> duration_s("1-02:00:05"), duration_s("59:30"), duration_s("UNLIMITED")
        (93605.0, 3570.0, None)
    """
    days, dash, clock = text.strip().rpartition("-")
    fields = clock.split(":")
    if not all(field.isdigit() for field in (*fields, *([days] if dash else ()))):
        return None
    if dash:
        fields += ["0"] * (3 - len(fields))  # "1-12": hours come first
    seconds = 0.0
    for field in fields:
        seconds = 60 * seconds + int(field)
    return 86400.0 * int(days or 0) + seconds


def limit_s(text: str) -> float | None:
    """Return the seconds of a time limit as `sbatch --time` reads it: a single number is minutes.

    Example:
        >>> limit_s("30"), limit_s("30:00"), limit_s("2:00:00"), limit_s("later")
        (1800.0, 1800.0, 7200.0, None)
    """
    text = text.strip()
    return 60.0 * int(text) if text.isdigit() else duration_s(text)


def memory_bytes(text: str) -> int | None:
    """Return the bytes of a size as `sbatch --mem` reads it; None for what is not a size.

    Example:
        >>> memory_bytes("2K"), memory_bytes("1"), memory_bytes("5x")
        (2048, 1048576, None)
    """
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2].upper()] if found else None


def job_of(environment: Mapping[str, str]) -> str:
    """Return the id of this job as `squeue` lists it.

    Example:
        >>> job_of({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "1"})
        '8_1'
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def memory_of(environment: Mapping[str, str]) -> int | None:
    """Return the bytes that this job may use; None where Slurm sets no limit."""
    per_node, per_cpu = environment.get("SLURM_MEM_PER_NODE", ""), environment.get("SLURM_MEM_PER_CPU", "")
    count = "1" if per_node else environment.get("SLURM_CPUS_ON_NODE", "1")
    return int(count) * (memory_bytes(per_node or per_cpu) or 0) or None


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None  # N/A


def fix_of(reason: str) -> str:
    """Return what to change when a pending reason never clears by itself; "" when waiting may help.

    Example:
        >>> bool(fix_of("PartitionConfig")), bool(fix_of("AssocMaxCpuPerJobLimit")), fix_of("Priority")
        (True, True, '')
    """
    name = reason.strip("()").partition(",")[0]
    return _NEVER.get(name) or (_LIMIT if _PER_JOB.match(name) else "")


def parse_config(text: str) -> dict[str, str]:
    """Return the settings in the output of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def describe_jobs(jobs: Iterable[SlurmJob]) -> str:
    """Return where jobs run, and what the others wait for.

    Example:
        >>> describe_jobs(SlurmJob(job_id=each, state="PENDING", reason="Priority") for each in "12")
        '2 waiting for Priority'
    """
    places = Counter(f"waiting for {j.reason or 'Slurm'}" if j.is_waiting else f"on {j.nodes}" for j in jobs)
    return ", ".join(f"{count} {place}" for place, count in sorted(places.items()))
