"""SlurmConfig holds what a user says about pilot jobs, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from muster.errors import public
from muster.slurm.jobs import limit_s, memory_bytes

# Options that muster sets itself.
OURS = (
    *("--array", "-a", "--comment", "--output", "-o", "--job-name", "-J", "--signal", "--nodes", "-N"),
    *("--ntasks", "-n", "--parsable", "--test-only", "--wait", "-W", "--wrap"),
)
_PLACE = ("partition", "account", "qos", "time", "constraint")


@public
@dataclass(kw_only=True)
class SlurmConfig:
    """Pilot jobs of an experiment on Slurm, for `RunConfig(engine=SlurmConfig(...))`.

    Args:
        partition: Partition of the pilots. Default: the site's.
        account: Account that the pilots are charged to. Default: yours.
        qos: Quality of service. Default: the site's.
        time: Time limit of one pilot as `sbatch --time` reads it ("2:00:00", "90" minutes), or a timedelta.
            Default: the partition's.
        gres: Generic resources of one pilot, e.g. "gpu:a100:2". Default: the GPUs of one trial.
        constraint: Features that the nodes must have.
        pilot_cpus: CPUs of one pilot. Default: those of one trial.
        pilot_memory: Memory of one pilot, e.g. "16G". Default: that of one trial, else the site's.
        max_pilots: Pilots at a time, at most.
        setup: Shell lines that run in the job before Python, e.g. ["module load cuda"].
        extra: Further options of `sbatch`, e.g. ["--exclude=n7"].
        python: Command that runs Python in the job. Default: the interpreter of the driver.
        reconnect_s: Seconds that a pilot waits for its driver to come back before it leaves.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | int | timedelta | None = None
    gres: str | None = None
    constraint: str | None = None
    pilot_cpus: int | None = None
    pilot_memory: str | None = None
    max_pilots: int = 8
    setup: Sequence[str] = field(default_factory=list)
    extra: Sequence[str] = field(default_factory=list)
    python: str | None = None
    reconnect_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("partition", "account", "qos", "gres", "constraint", "pilot_memory", "python"):
            self._check(name, getattr(self, name) is None or isinstance(getattr(self, name), str), "a string")
        for name in ("setup", "extra"):
            given = getattr(self, name)
            is_list = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
            self._check(name, is_list, "a list of strings")
        if isinstance(self.time, timedelta):
            self.time = _slurm_time(self.time.total_seconds())
        self._check(
            "time", self.time is None or bool(self.time_s), 'a time limit such as "2:00:00", or "90" minutes'
        )
        for name, kind, least in (("pilot_cpus", int, 1), ("max_pilots", int, 1), ("reconnect_s", float, 0)):
            given, words = getattr(self, name), "a whole number" if kind is int else "a number"
            is_number = isinstance(given, kind | int) and not isinstance(given, bool) and given >= least
            self._check(name, is_number or given == getattr(type(self), name), f"{words}, {least} or more")
        self._check(
            "pilot_memory",
            self.pilot_memory is None or bool(memory_bytes(self.pilot_memory)),
            'a size such as "16G"',
        )
        for name in map(option_name, self.extra):
            self._check("extra", name not in OURS, f"options that muster does not set itself ({name})")

    def _check(self, name: str, is_right: bool, wanted: str) -> None:
        if not is_right:
            raise ValueError(f"SlurmConfig({name}={getattr(self, name)!r}): must be {wanted}")

    @property
    def time_s(self) -> float | None:
        """The time limit of a pilot in seconds, where one is given."""
        return None if self.time is None else limit_s(str(self.time))


def job_options(
    config: object, *, cpus: float, memory: str | None = None, gres: str | None = None
) -> list[str]:
    """Return the options of `sbatch` that say where a job runs, for how long and with what.

    Example:
        >>> job_options(SlurmConfig(partition="gpu", time="2:00:00"), cpus=4)
        ['--nodes=1', '--ntasks=1', '--cpus-per-task=4', '--partition=gpu', '--time=2:00:00']
    """
    given = {name: getattr(config, name) for name in _PLACE} | {"mem": memory, "gres": gres}
    options = [f"--{name}={value}" for name, value in given.items() if value]
    return ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus:g}", *options]


def option_name(option: str) -> str:
    """Return the name of an option of `sbatch`.

    Example:
        >>> option_name("--nodes=2"), option_name("-N2")
        ('--nodes', '-N')
    """
    return re.split("[= ]", option)[0] if option.startswith("--") else option[:2]


def gpus_in(gres: str) -> int:
    """Return how many GPUs a list of generic resources names.

    Example:
        >>> gpus_in("gpu:a100:2"), gpus_in("gpu"), gpus_in("shard:4,gpu:1"), gpus_in("license:3")
        (2, 1, 1, 0)
    """
    total = 0
    for entry in gres.split(","):
        name, *rest = entry.removeprefix("gres/").removeprefix("gres:").split("(")[0].split(":")
        if name == "gpu":
            total += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return total


def _slurm_time(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
