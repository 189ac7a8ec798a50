"""SlurmWire sends single calls to Slurm through its commands; the simulator sends them elsewhere.

Every call has a time limit, and fails with one of three errors. No state, no retries: callers decide that.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from muster.errors import EngineError, EngineMissing, EngineUnreachable
from muster.host import machine
from muster.slurm.jobs import FIELDS, SlurmJob, duration_s, parse_config, parse_jobs

CALL_S = 20.0  # a controller that is down keeps commands waiting for longer
_DOWN = (
    *("unable to contact slurm controller", "socket timed out", "connection refused", "connect failure"),
    *("zero bytes were transmitted", "communication connection failure", "transport endpoint"),
    *("unexpected missing socket", "message send failure", "message receive failure"),
    *("unable to establish", "temporarily unable to accept", "backup controller", "unable to load"),
)
# Limits on how many jobs there are: they end when earlier jobs do.
_FULL = ("maxsubmitjob", "maximum number of jobs", "max job count", "too many jobs")
_CANCELLED_BEFORE = ("invalid job id", "already completing", "already completed")
# Variables that change what commands print, and those of a job in which this process may itself run.
_DROPPED = ("SQUEUE_", "SLURM_", "MUSTER_CHAIN")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")


class SlurmMissing(EngineMissing):
    """Slurm's commands are not installed on this computer."""


class SlurmUnreachable(EngineUnreachable):
    """The controller does not answer. What was sent may have worked: look for its comment before a repeat."""


class SlurmRefused(EngineError):
    """Slurm refused a call; `sentence` is what it wrote."""

    def __init__(self, message: str, *, sentence: str = "", fix: str = "") -> None:
        self.sentence = sentence or message
        super().__init__(message, fix=fix)

    @property
    def is_full(self) -> bool:
        """Whether the site's limit on the number of jobs is reached, which ends by itself."""
        return any(words in self.sentence.lower() for words in _FULL)


class SlurmWire:
    """The wire to one Slurm: each method is one attempt at one command; threads may share it.

    Raises SlurmRefused for an error answer, SlurmUnreachable where there is none, SlurmMissing where the
    command does not exist. The simulator and tests replace the methods.
    """

    def __init__(self, timeout_s: float = CALL_S) -> None:
        self._timeout_s = timeout_s

    def sbatch(self, options: Sequence[str], script: str) -> str:
        """Submit a batch script; return the id of the job or the array."""
        printed = self._call(["sbatch", "--parsable", *options], script)
        job_id = printed.strip().splitlines()[-1].partition(";")[0] if printed.strip() else ""
        if not job_id.isdigit():
            raise SlurmUnreachable(f"sbatch printed {printed.strip()!r} instead of a job id")
        return job_id

    def check(self, options: Sequence[str]) -> None:
        """Ask whether a job with these options would be accepted; submit nothing."""
        self._call(["sbatch", "--test-only", *options], "#!/bin/sh\n")

    def time_limits(self) -> Mapping[str, float | None]:
        """Return the longest time limit of each partition in seconds; None: unlimited."""
        lines = (line.split() for line in self._call(["sinfo", "-h", "-a", "-o", "%R %l"]).splitlines())
        return {words[0]: duration_s(words[1]) for words in lines if len(words) == 2}

    def squeue(self) -> list[SlurmJob]:
        """Return all jobs of this user that Slurm remembers, one per array task, ended ones included."""
        return parse_jobs(self._call(["squeue", "-h", "-r", "--me", "-t", "all", "-o", FIELDS]))

    def scancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; those that have ended, or never existed, are ignored."""
        if not job_ids:
            return
        try:
            self._call(["scancel", *job_ids])
        except SlurmRefused as error:
            if not any(words in error.sentence.lower() for words in _CANCELLED_BEFORE):
                raise

    def config(self) -> Mapping[str, str]:
        """Return the settings of the site (`scontrol show config`)."""
        return parse_config(self._call(["scontrol", "show", "config"]))

    def _call(self, command: Sequence[str], text: str = "") -> str:
        name = command[0]
        try:
            done = subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                env=_environment(),
                check=False,
            )
        except FileNotFoundError as error:
            raise _missing(name) from error
        except subprocess.TimeoutExpired as error:
            raise SlurmUnreachable(
                f"{name}: the Slurm controller did not answer within {self._timeout_s:g} s",
                fix="check it with `scontrol ping`",
            ) from error
        if done.returncode == 0:
            return done.stdout
        raise failure_of(name, done.stderr or done.stdout)


def failure_of(name: str, printed: str) -> SlurmRefused | SlurmUnreachable:
    """Return the error for what a failed command printed.

    Example:
        >>> str(failure_of("sbatch", "sbatch: error: Batch job submission failed: Invalid account"))
        'sbatch: Invalid account'
    """
    if "configuration source" in printed:
        fix = "run on a login node of the cluster, or set SLURM_CONF to its slurm.conf"
        return SlurmRefused(f"{name}: this computer has Slurm's commands, but no configuration", fix=fix)
    lines = [line.strip() for line in printed.splitlines() if line.strip() and line[:4] != "Try "]
    errors = [line for line in lines if "error:" in line] or lines[-1:] or ["it failed without a message"]
    bare = [line.removeprefix(f"{name}: ").removeprefix("error: ") for line in errors]
    sentence = ": ".join(line.removeprefix("Batch job submission failed: ") for line in bare)
    if any(words in printed.lower() for words in _DOWN):
        return SlurmUnreachable(f"{name}: {sentence}", fix="check the controller with `scontrol ping`")
    return SlurmRefused(f"{name}: {sentence}", sentence=sentence)


def require_commands() -> None:
    """Raise SlurmMissing when this computer lacks one of Slurm's commands."""
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        if shutil.which(name, path=machine.environment().get("PATH")) is None:
            raise _missing(name)


def _missing(name: str) -> SlurmMissing:
    return SlurmMissing(
        f"slurm: the command {name} is not on this computer",
        fix="run on a login node of the Slurm cluster, or install slurm-client there and load its module",
    )


def _environment() -> dict[str, str]:
    given = machine.environment().items()
    kept = {name: value for name, value in given if name in _KEPT or not name.startswith(_DROPPED)}
    return {**kept, "SLURM_TIME_FORMAT": "standard"}
