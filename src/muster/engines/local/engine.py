"""LocalEngine: trials as processes on this machine. Built by a composition root; driven by the controller."""

from __future__ import annotations

from collections.abc import Mapping

from muster.base.clock import Clock
from muster.engines.local.resources import Budget, Grant
from muster.engines.local.worker_pool import Staff
from muster.engines.process_engine import LockstepEngine, Patience, order_of
from muster.engines.worker import failures
from muster.engines.worker.handle import Desk, Run
from muster.engines.worker.protocol import write_order
from muster.host import machine


class LocalOptions(Patience, frozen=True, kw_only=True):
    """What few people need to change."""

    max_idle: int = 64  # processes kept for reuse
    spares: int = 2  # processes made ahead of need
    quiet: bool = False  # output of trials without log_to_file: dropped, else it goes where the driver's goes
    env: Mapping[str, str] = {}  # added to the environment of trials; of OMP_NUM_THREADS see `_env_of`


_DEFAULTS = LocalOptions()
_THREADS = "OMP_NUM_THREADS"


class LocalEngine(LockstepEngine):
    """Runs trials in processes of this machine.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _staff: Staff

    def __init__(
        self,
        *,
        clock: Clock,
        trainables: Mapping[str, bytes] | None = None,
        capacity: Mapping[str, float] | None = None,
        warm: bool = True,
        options: LocalOptions = _DEFAULTS,
    ) -> None:
        """`trainables`: cloudpickled functions or classes by name; `capacity` overrides what is found."""
        super().__init__(clock, options)
        found = {**machine.detected_capacity(), **(capacity or {})}
        self._budget = Budget(found, machine.gpu_ids())
        self._has_gpus = found.get("GPU", 0) > 0
        self._limits_threads = _THREADS in options.env
        self._exits = failures.ExitReader(machine.oom_kills)
        self._staff = Staff(
            clock=clock, options=options, warm=warm, trainables=dict(trainables or {}), owner=self
        )

    def capacity(self) -> Mapping[str, float]:
        return self._budget.capacity.to_floats()

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._staff.register(name, trainable)

    # Starting

    def _begin(self, run: Run) -> None:
        why_not = self._budget.why_never(run.command.resources)
        if why_not is not None:
            self._finish(run, failure=failures.impossible(why_not))
            return
        if len(self._waiting) or not self._try_start(run):
            self._waiting.add(run)
            self._start_waiting()

    def _try_start(self, run: Run) -> bool:
        """Give it resources and a process; False when it must wait."""
        command = run.command
        idle = self._staff.find_idle(command) if command.may_reuse else None
        prefer = idle.key[2] if idle is not None and idle.key is not None else ()
        grant = self._budget.take(command.resources, prefer)
        if grant is None:
            return False
        run.grant = grant
        try:
            order = write_order(order_of(command, self._env_of(run, grant)))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unsendable("the config cannot be pickled", error))
            return True
        desk = self._staff.seat(run, idle if set(prefer) == set(grant.gpu_ids) else None)
        if command.time_limit_s is not None:
            run.limit_at = self._clock.monotonic() + command.time_limit_s
            self._look_at(run.limit_at)
        self._staff.send(desk, order)
        return True

    def _env_of(self, run: Run, grant: Grant) -> dict[str, str]:
        """What differs between trials. A limit on threads follows the CPUs of the trial, which may change."""
        env = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpu_ids)} if self._has_gpus else {}
        if self._limits_threads:
            env[_THREADS] = str(max(1, int(run.command.resources.head_cpus)))
        return env

    def _withdraw(self, run: Run) -> None:
        self._waiting.remove(run)

    def _release(self, run: Run) -> None:
        if run.grant is not None:
            self._budget.free(run.grant)

    def gone(self, desk: Desk, status: int | None, note: str) -> None:
        """A worker process has ended; `status` is None when nobody saw how (called by Staff)."""
        self._ended(desk, lambda: self._exits.of_status(status, note))
