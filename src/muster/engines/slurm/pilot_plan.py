"""Plan pilots: their size, their number, what `sbatch` gets for them, and which of them leave. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from muster.base.resources import Resources
from muster.engines.process_engine import units_of
from muster.slurm.config import SlurmConfig, gpus_in, job_options
from muster.slurm.jobs import memory_bytes
from muster.trials.placement_group import PlacementGroupFactory

if TYPE_CHECKING:
    from muster.engines.slurm.pilot_pool import PilotHandle

NOTICE_S = 60.0  # so long before the time limit of a pilot its trials are notified
MARGIN_S = 3.0  # a trial must have left a pilot so long before the limit


def shape_of(config: SlurmConfig, request: PlacementGroupFactory) -> dict[str, float]:
    """Return the resources of one pilot: those that the user names, else those of one trial.

    Example:
        >>> shape_of(SlurmConfig(pilot_cpus=4), PlacementGroupFactory([{"CPU": 0.5, "GPU": 1}]))
        {'CPU': 4.0, 'GPU': 1.0}
    """
    needs = request.required_resources
    shape = {"CPU": float(config.pilot_cpus or max(1, math.ceil(needs.get("CPU", 0.0))))}
    gpus = math.ceil(needs.get("GPU", 0.0)) if config.gres is None else gpus_in(config.gres)
    memory = memory_bytes(config.pilot_memory or "") or needs.get("memory", 0.0)
    if gpus:
        shape["GPU"] = float(gpus)
    if memory:
        shape["memory"] = float(memory)
    return shape


def pilots_for(requests: Mapping[PlacementGroupFactory, int], shape: Mapping[str, float]) -> int:
    """Return how many pilots hold so many trials of each kind at once.

    Example:
        >>> half = PlacementGroupFactory([{"CPU": 0.5}])
        >>> pilots_for({half: 16}, {"CPU": 2.0}), pilots_for({half: 0}, {"CPU": 2.0})
        (4, 0)
    """
    whole, total = Resources.of(shape), 0.0
    for request, count in requests.items():
        fits = [whole.units(name) // units for name, units in units_of(request).items() if units]
        total += count / max(1, min(fits, default=1))
    return math.ceil(total - 1e-9)


def notice_s(config: SlurmConfig, slowest_s: float) -> float:
    """Return how long before the time limit of a pilot its trials are notified.

    At least two steps of the slowest trial; of a short limit no more than a quarter.
    """
    return min(max(NOTICE_S, 2 * slowest_s), (config.time_s or math.inf) / 4)


class PilotNeeds(Struct, frozen=True, kw_only=True):
    """What the number of pilots follows from."""

    now: float
    started: int  # pilots that the trials given to the engine fill
    expected: int  # pilots that the experiment will still use, by its forecast
    most: int
    alive: int  # pilots that take trials, or will once Slurm has started them
    queued: Sequence[str] = ()  # jobs of them that wait in Slurm's queue
    unused: Sequence[PilotHandle] = ()  # connected ones without trials
    has_waiting: bool = False  # some trial waits for a pilot
    linger_s: float = 5.0  # an idle pilot is kept so long
    is_complete: bool = False  # the forecast names everything that will come: no need to linger


class PilotPlan(Struct, frozen=True, kw_only=True):
    """What to do about the number of pilots."""

    missing: int = 0
    cancel: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    wake_at: float = math.inf  # when an idle pilot may leave


def plan_pilots(needs: PilotNeeds) -> PilotPlan:
    """Return how many pilots to submit, which queued ones to cancel and which unused ones to release.

    Example:
        >>> plan_pilots(PilotNeeds(now=0, started=4, expected=4, most=3, alive=1)).missing
        2
    """
    missing = min(needs.started, needs.most) - needs.alive
    surplus = needs.alive - max(needs.started, needs.expected)
    if surplus <= 0:
        return PilotPlan(missing=max(0, missing))
    cancel = () if needs.has_waiting else tuple(needs.queued[:surplus])
    release: list[str] = []
    wake_at = math.inf
    for pilot in sorted(needs.unused, key=lambda each: each.ends_at or math.inf)[: surplus - len(cancel)]:
        if needs.is_complete or needs.now >= pilot.idle_since + needs.linger_s:
            release.append(pilot.job_id)
        else:
            wake_at = min(wake_at, pilot.idle_since + needs.linger_s)
    return PilotPlan(cancel=cancel, release=tuple(release), wake_at=wake_at)


def sbatch_options(config: SlurmConfig, shape: Mapping[str, float], folder: Path, cwd: str) -> list[str]:
    """Return the options of `sbatch` for pilots of this size, without the array and the comment.

    Lost pilots are replaced here; one that Slurm requeues would come back minutes later, needed or not.
    """
    gres = config.gres or (f"gpu:{shape['GPU']:g}" if shape.get("GPU") else None)
    memory = f"{math.ceil(shape['memory'] / (1 << 20))}M" if "memory" in shape else None
    return [
        *(f"--job-name=muster-{folder.parent.name}"[:60], f"--output={folder / '%A_%a.out'}"),
        *("--no-requeue", "--export=ALL", "--open-mode=append"),
        *(f"--signal=B:USR2@{NOTICE_S:.0f}", f"--chdir={cwd}"),
        *job_options(config, cpus=shape["CPU"], memory=memory, gres=gres),
        *config.extra,
    ]


def script_of(config: SlurmConfig, folder: Path, python: str) -> str:
    """Return the batch script of a pilot; `exec`, because Slurm signals the process of the script."""
    command = f"exec {config.python or shlex.quote(python)} -m muster.engines.slurm.pilot"
    return "\n".join(["#!/bin/bash", "set -e", *config.setup, f"{command} {shlex.quote(str(folder))}", ""])
