"""Record which experiments run on this machine, so that another one can notice what is promised twice.

The next driver removes the file of one that was killed: no process has its id and start time. Nothing fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from muster.base.ids import RandomIds
from muster.host.machine import hostname
from muster.host.processes import ProcessIdentity, identify, is_alive
from muster.host.regular_file import read_regular


class RunningExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials of one driver may use of this machine at once."""

    directory: str
    promised: Mapping[str, float]
    mark: ProcessIdentity | None = None


@contextmanager
def recorded(folder: Path, own: RunningExperiment) -> Iterator[list[RunningExperiment]]:
    """Record an experiment while it runs, and yields the others that run here at its start."""
    host, others = f"{hostname()}-", []  # a home may be shared by hosts
    file = folder / f"{host}{os.getpid()}{RandomIds().fresh('')}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(own, mark=identify(os.getpid()))))
        others = [each for path in sorted(folder.glob(f"{host}*")) if path != file for each in _living(path)]
    try:
        yield others
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _living(file: Path) -> Iterator[RunningExperiment]:
    with suppress(OSError, msgspec.MsgspecError):  # it has just ended, or is being written
        found = msgspec.json.decode(read_regular(file, beginning=100_000), type=RunningExperiment)
        if is_alive(found.mark):
            yield found
        else:
            file.unlink(missing_ok=True)


def promised_twice(
    own: RunningExperiment,
    others: Sequence[RunningExperiment],
    capacity: Mapping[str, float],
    each: Mapping[str, float],
) -> str:
    """Return a warning about GPUs or CPUs that several may use at once; `each`: what one trial needs."""
    for name in ("GPU", "CPU"):
        total, mine = capacity.get(name, 0.0), own.promised.get(name, 0.0)
        theirs = [other for other in others if other.mark and other.promised.get(name)]
        taken = sum(other.promised[name] for other in theirs)
        if theirs and mine and mine + taken > total:
            share = max(1, int(total / (len(theirs) + 1) // each[name]))
            return (
                f"warning: {name}s are promised twice: this experiment may use {mine:g} of {total:g}, and "
                f"{', '.join(f'{one.directory} (process {one.mark.pid})' for one in theirs if one.mark)} "
                f"{taken:g}. Their trials will compete: limit each experiment with "
                f"TuneConfig(max_concurrent_trials={share}), or run one after the other"
            )
    return ""
