"""One process of a simulated trial: how far it is, what it remembers, what it reports. Used by the engine."""

from __future__ import annotations

import math
from typing import Any

from muster.session.progress import Progress, Signature, fill_result
from muster.sim.tune.curve import Curve
from muster.sim.tune.event_queue import HasTurns
from muster.sim.tune.faults import Fate, happens
from muster.trials.commands import StartTrial
from muster.trials.events import FailureKind, TrialFailure
from muster.trials.model import CheckpointRef

MEMORY_KEY = "sim_memory"  # in a checkpoint's metrics: what a curve with a past goes on from
HOSTNAME, ADDRESS = "simulated", "127.0.0.1"


class CheckpointUnknown(Exception):
    """A start from a checkpoint that no simulated trial made."""


class Process(HasTurns):
    """How far a trial is, between two events of the engine."""

    __slots__ = (
        "_progress",
        "_who",
        "checkpoint_index",
        "command",
        "curve",
        "fate",
        "is_lost",
        "is_waiting",
        "last",
        "memory",
        "pid",
        "saves",
    )

    def __init__(self, command: StartTrial, curve: Curve, fate: Fate, pid: int) -> None:
        self.command = command
        self.curve = curve
        self.fate = fate
        self.pid = pid
        self.turn = 0
        self.is_waiting = False  # for the answer to a report
        self.is_lost = False
        self.saves = 0
        self.checkpoint_index = command.checkpoint_index
        self.memory: Any = None
        self.last: dict[str, Any] = {}
        self._progress = Progress()
        self._who: Signature | None = None

    @property
    def trial_id(self) -> str:
        return self.command.trial_id

    @property
    def iteration(self) -> int:
        return self._progress.iteration

    def set_up(self) -> None:
        """Load the checkpoint, or begin; CheckpointUnknown, or whatever the curve raises."""
        given, config = self.command.checkpoint, self.command.config
        self._who = Signature(trial_id=self.trial_id, config=config)
        self._who.pid, self._who.hostname, self._who.node_ip = self.pid, HOSTNAME, ADDRESS
        if given is None:
            self.memory = self.curve.begin(config)
            return
        if "training_iteration" not in given.metrics:
            raise CheckpointUnknown(
                f"{given.path}: no simulated trial made this checkpoint, so nothing can go on from it"
            )
        self._progress.resume(given.metrics)
        self.memory = given.metrics.get(MEMORY_KEY)
        self.last = dict(given.metrics)

    @property
    def location(self) -> dict[str, Any]:
        return {"pid": self.pid, "hostname": HOSTNAME, "node_ip": ADDRESS}

    def is_done(self) -> bool:
        most = self.curve.iterations(self.command.config)
        return most is not None and self.iteration >= most

    def seconds(self) -> float:
        """Of the next iteration; a curve that says nonsense is the trial's error."""
        said = self.curve.seconds(self.command.config, self.iteration + 1)
        if not (0.0 <= said < math.inf):
            raise ValueError(f"iteration {self.iteration + 1} takes {said!r} seconds: must be 0 or more")
        return said * self.fate.pace

    def report(self, elapsed_s: float, now: float) -> dict[str, Any]:
        """One more result, with the keys that every engine adds."""
        told, self.memory = self.curve.advance(self.command.config, self.iteration + 1, self.memory)
        metrics = dict(told)
        if happens(self.fate, "report", self.iteration + 1, self.fate.odd_reports):
            metrics = _odd(metrics, self.iteration)
        stamp = self._progress.advance(metrics, elapsed_s=elapsed_s, now=now)
        assert self._who is not None
        self.last = fill_result(metrics, stamp, self._who, now=now)
        return self.last

    def checkpoint(self) -> CheckpointRef | None:
        """A virtual one: the iteration, and what the curve remembers. None when the save is lost."""
        self.saves += 1
        if happens(self.fate, "save", self.saves, self.fate.lost_saves):
            return None
        self.checkpoint_index += 1
        metrics = dict(self.last) if self.memory is None else {**self.last, MEMORY_KEY: self.memory}
        metrics.setdefault("training_iteration", self.iteration)
        path = f"{self.command.trial_dir}/checkpoint_{self.checkpoint_index:06d}"
        return CheckpointRef(path=path, index=self.checkpoint_index, metrics=metrics)


def _odd(metrics: dict[str, Any], number: int) -> dict[str, Any]:
    odd = math.nan if number % 3 else math.inf
    return {key: odd if isinstance(value, float) else value for key, value in metrics.items()}


def failure_of(error: Exception) -> TrialFailure:
    """An exception of a curve, told as an engine with processes would."""
    if isinstance(error, CheckpointUnknown):
        return TrialFailure(kind=FailureKind.START, message=str(error))
    from muster.engines.worker.exit_report import failed

    _, _, kind, message, traceback, exception = failed(error)
    return TrialFailure(kind=FailureKind(kind), message=message, traceback=traceback, exception=exception)
