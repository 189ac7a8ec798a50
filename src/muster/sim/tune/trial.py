"""Define a simulated trial: what it does (Curve), what else takes time (Costs), how far it is (the process).

Problems and recorded traces are curves; the engine calls them. Curves are pure: equal configs and iterations
give equal answers, so a run can be repeated and resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from muster.session.progress import Progress, Signature, fill_result
from muster.sim.cluster.world import HasTurns
from muster.trials.events import StartTrial, TrialFailure, TrialFailureKind
from muster.trials.model import CheckpointRef

MEMORY_KEY = "sim_memory"  # in a checkpoint's metrics: what a curve with a past resumes from
HOSTNAME, ADDRESS = "simulated", "127.0.0.1"

Config = Mapping[str, Any]
Metrics = Mapping[str, Any]
Report = Callable[[Config, int], Metrics]  # config, iteration (1 is the first) -> metrics


class Curve:
    """Defines `metrics`; one whose past matters also defines `begin` and `advance`."""

    def iterations(self, config: Config) -> int | None:
        """Return after how many reports the trial's code returns; None: never."""
        return None

    def seconds(self, config: Config, iteration: int) -> float:
        """Return how long this iteration takes."""
        return 1.0

    def metrics(self, config: Config, iteration: int) -> Metrics:
        """Return what is reported at the end of the iteration. An exception is the trial's own error."""
        raise NotImplementedError

    def begin(self, config: Config) -> Any:  # noqa: ANN401 - the curve's own; plain data, as it is saved
        """Return the initial memory of a trial without a checkpoint; checkpoints contain the memory."""
        return None

    def advance(self, config: Config, iteration: int, memory: Any) -> tuple[Metrics, Any]:  # noqa: ANN401
        """Return `metrics` for a trial with this memory, and the memory afterwards."""
        return self.metrics(config, iteration), memory


class FunctionCurve(Curve):
    """Calls a function of config and iteration, with a fixed or computed duration."""

    def __init__(
        self,
        report: Report,
        *,
        seconds: float | Callable[[Config, int], float] = 1.0,
        iterations: int | Callable[[Config], int | None] | None = None,
    ) -> None:
        self._report = report
        self._seconds = seconds
        self._iterations = iterations

    def iterations(self, config: Config) -> int | None:
        return self._iterations(config) if callable(self._iterations) else self._iterations

    def seconds(self, config: Config, iteration: int) -> float:
        return self._seconds(config, iteration) if callable(self._seconds) else self._seconds

    def metrics(self, config: Config, iteration: int) -> Metrics:
        return self._report(config, iteration)


def as_curve(given: Curve | Report) -> Curve:
    """Turn a plain function into a curve of one second per iteration that never ends by itself."""
    return given if isinstance(given, Curve) else FunctionCurve(given)


class Costs(Struct, frozen=True, kw_only=True):
    """The seconds that trials spend on something else than iterations."""

    start_s: float = 0.0  # a new process
    first_s: float = 0.0  # more for the first process on a node
    reuse_s: float = 0.0  # a process that served another trial
    restore_s: float = 0.0  # loading a checkpoint, besides the start
    save_s: float = 0.0
    stop_s: float = 0.0
    linger_s: float = 0.0  # a place on a node that no trial takes over is kept for so long
    checkpoint_every: int = 0  # a report carries a checkpoint at so many iterations; 0: only when asked


class CheckpointUnknown(Exception):
    """CheckpointUnknown means a start from a checkpoint that no simulated trial made."""


class SimulatedProcess(HasTurns):
    """Holds how far a trial is, between two events of the engine."""

    def __init__(self, command: StartTrial, curve: Curve, pid: int) -> None:
        self.command, self.curve, self.pid = command, curve, pid
        self.turn = 0
        self.is_waiting = False  # for the answer to a report
        self.is_lost = False
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
        """Load the checkpoint, or begin; raise CheckpointUnknown, or whatever the curve raises."""
        given, config = self.command.checkpoint, self.command.config
        self._who = Signature(trial_id=self.trial_id, config=config)
        self._who.pid, self._who.hostname, self._who.node_ip = self.pid, HOSTNAME, ADDRESS
        if given is None:
            self.memory = self.curve.begin(config)
            return
        if "training_iteration" not in given.metrics:
            raise CheckpointUnknown(
                f"{given.path}: no simulated trial made this checkpoint, so no trial can resume from it"
            )
        self._progress.resume(given.metrics)
        self.memory = given.metrics.get(MEMORY_KEY)
        self.last = dict(given.metrics)

    def is_done(self) -> bool:
        most = self.curve.iterations(self.command.config)
        return most is not None and self.iteration >= most

    def seconds(self) -> float:
        """Return the duration of the next iteration; an invalid one is the trial's error."""
        seconds = self.curve.seconds(self.command.config, self.iteration + 1)
        if not (0.0 <= seconds < math.inf):
            raise ValueError(
                f"iteration {self.iteration + 1} takes {seconds!r} s; Curve.seconds must return 0 or more"
            )
        return seconds

    def report(self, elapsed_s: float, now: float) -> dict[str, Any]:
        """Return one more result, with the keys that every engine adds."""
        reported, self.memory = self.curve.advance(self.command.config, self.iteration + 1, self.memory)
        metrics = dict(reported)
        stamp = self._progress.advance(metrics, elapsed_s=elapsed_s, now=now)
        assert self._who is not None
        self.last = fill_result(metrics, stamp, self._who, now=now)
        return self.last

    def checkpoint(self) -> CheckpointRef:
        """Return a virtual checkpoint: the iteration and the curve's memory."""
        self.checkpoint_index += 1
        metrics = dict(self.last) if self.memory is None else {**self.last, MEMORY_KEY: self.memory}
        metrics.setdefault("training_iteration", self.iteration)
        path = f"{self.command.trial_dir}/checkpoint_{self.checkpoint_index:06d}"
        return CheckpointRef(path=path, index=self.checkpoint_index, metrics=metrics)


def failure_of(error: Exception) -> TrialFailure | None:
    """Return an exception of a curve as an engine with processes would report it."""
    if isinstance(error, CheckpointUnknown):
        return TrialFailure(kind=TrialFailureKind.START, message=str(error))
    from muster.engines.worker.exit_report import failed_exit
    from muster.engines.worker.failures import reported_failure

    return reported_failure(failed_exit(error))
