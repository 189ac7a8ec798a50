"""LocalEngine runs trials as processes on this machine; a composition root builds it.

ResourcePool, which the engine asks before each start, is pure: exact fixed-point accounting with GPU ids.
Amounts are integers of 1/10000, so that fractions end at exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.base.clock import Clock
from muster.base.resources import SCALE, Resources, to_units
from muster.engines.local.worker_pool import LocalOptions, WorkerPool
from muster.engines.process_engine import ProcessEngine, order_of, units_of
from muster.engines.worker import failures
from muster.engines.worker.handle import Grant, TrialRun, WorkerHandle
from muster.engines.worker.protocol import write_order
from muster.host import machine
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import EngineTraits
from muster.trials.spend import share_of

GPU = "GPU"


class ResourcePool:
    """Holds the free amounts of every resource, and of every single GPU."""

    def __init__(self, capacity: Mapping[str, float], gpu_ids: Sequence[str] = ()) -> None:
        self.capacity = Resources.of(capacity)
        self._free = dict(self.capacity)
        count = -(-self._free.get(GPU, 0) // SCALE)
        names = [*gpu_ids, *(str(n) for n in range(count) if str(n) not in gpu_ids)][:count]
        self._gpu_free = dict.fromkeys(names, SCALE)

    def free_units(self) -> Mapping[str, int]:
        return dict(self._free)

    def why_never(self, request: PlacementGroupFactory) -> str | None:
        """Return why this request can never start here; None when it can, once enough is free."""
        if request.strategy == "STRICT_SPREAD" and len(request.bundles) > 1:
            return f"STRICT_SPREAD wants {len(request.bundles)} machines; this engine has one"
        units, gpus = units_of(request), _gpus_of(request)
        short = [name for name, amount in units.items() if amount > self.capacity.units(name)]
        if not short and gpus and _place(gpus, dict.fromkeys(self._gpu_free, SCALE)) is None:
            short = [GPU]  # enough in total, but fractions do not cut across GPUs
        if not short:
            return None
        wanted = ", ".join(f"{name}: {units[name] / SCALE:g}" for name in short)
        there = ", ".join(f"{name}: {self.capacity.units(name) / SCALE:g}" for name in short)
        return f"requested {wanted}; this machine offers {there}"

    def take(self, request: PlacementGroupFactory, prefer: Sequence[str] = ()) -> Grant | None:
        """Reserve the whole request, or nothing; GPUs in `prefer` come first."""
        units, gpus = units_of(request), _gpus_of(request)
        free = self._free
        for name, amount in units.items():
            if amount > free.get(name, 0):
                return None
        first = {gpu: self._gpu_free[gpu] for gpu in prefer if gpu in self._gpu_free}
        given = _place(gpus, {**first, **self._gpu_free}) if gpus else {}
        if given is None:
            return None
        for name, amount in units.items():
            free[name] -= amount
        for gpu, amount in given.items():
            self._gpu_free[gpu] -= amount
        return Grant(units, given)

    def free(self, grant: Grant) -> None:
        for name, amount in grant.units.items():
            self._free[name] += amount
        for gpu, amount in grant.gpu_units.items():
            self._gpu_free[gpu] += amount


def _gpus_of(request: PlacementGroupFactory) -> list[int]:
    """Return the GPU units of each bundle that takes any."""
    return [to_units(GPU, bundle[GPU]) for bundle in request.bundles if bundle.get(GPU)]


def _place(amounts: Sequence[int], free: dict[str, int]) -> dict[str, int] | None:
    """Return units per GPU id: whole ones on empty GPUs, a fraction on the fullest that holds it."""
    left = dict(free)
    given: dict[str, int] = {}
    for amount in sorted(amounts, reverse=True):
        whole, part = divmod(amount, SCALE)
        empty = [gpu for gpu, units in left.items() if units == SCALE][:whole]
        if len(empty) < whole:
            return None
        for gpu in empty:
            left[gpu] = 0
            given[gpu] = SCALE
        if part:
            holding = [gpu for gpu, units in left.items() if units >= part]
            if not holding:
                return None
            gpu = min(holding, key=left.__getitem__)  # the first of equals
            left[gpu] -= part
            given[gpu] = given.get(gpu, 0) + part
    return given


_DEFAULTS = LocalOptions()
_THREADS = "OMP_NUM_THREADS"


class LocalEngine(ProcessEngine):
    """Runs trials in processes of this machine.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _pool: WorkerPool

    def __init__(
        self,
        *,
        clock: Clock,
        trainables: Mapping[str, bytes] | None = None,
        capacity: Mapping[str, float] | None = None,
        warm: bool = True,
        options: LocalOptions = _DEFAULTS,
    ) -> None:
        """Take cloudpickled functions or classes by name; `capacity` overrides what is found."""
        super().__init__(clock, options)
        found = {**machine.detected_capacity(), **(capacity or {})}
        self._resources = ResourcePool(found, machine.gpu_ids())
        self._has_gpus = found.get("GPU", 0) > 0
        self._threads = options.env.get(_THREADS)  # of every process, unless its trial has other CPUs
        self._storage = options.storage
        self._price_per_hour = options.price_per_hour
        self._exits = failures.ExitReader(machine.oom_kills)
        self._pool = WorkerPool(
            clock=clock,
            options=options,
            warm=warm,
            trainables=dict(trainables or {}),
            on_frame=self.on_frame,
            on_gone=self._on_gone,
        )

    def capacity(self) -> Mapping[str, float]:
        return self._resources.capacity.to_floats()

    def traits(self) -> EngineTraits:
        return EngineTraits(has_prices=self._price_per_hour is not None)

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._pool.register(name, trainable)

    # Starting

    def _begin(self, run: TrialRun) -> None:
        why_not = self._resources.why_never(run.command.resources)
        if why_not is not None:
            self._finish(run, failure=failures.impossible_failure(why_not))
            return
        if len(self._waiting) or not self._try_start(run):
            self._waiting.add(run)
            self._start_waiting()

    def _try_start(self, run: TrialRun) -> bool:
        """Give a trial resources and a process; returns False when it must wait."""
        command = run.command
        idle = self._pool.find_idle(command) if command.may_reuse else None
        if not self._pool.has_process_for(idle):
            return False
        prefer = idle.key[2] if idle is not None and idle.key is not None else ()
        grant = self._resources.take(command.resources, prefer)
        if grant is None:
            return False
        run.grant = grant
        try:
            order = write_order(order_of(command, self._env_of(run, grant), self._storage))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unpicklable_failure("the config cannot be pickled", error))
            return True
        worker = self._pool.assign(run, idle if set(prefer) == set(grant.gpu_ids) else None)
        self._send_order(run, worker, order)
        self._pool.replenish(run)
        if self._price_per_hour is not None:
            share = share_of(Resources(units_of(command.resources)), self._resources.capacity)
            self._priced(run, self._clock.now(), self._price_per_hour * share)
        return True

    def _env_of(self, run: TrialRun, grant: Grant) -> dict[str, str]:
        """Return what differs between trials; a limit on threads follows the CPUs of the trial."""
        env = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpu_ids)} if self._has_gpus else {}
        if self._threads is not None:
            threads = str(max(1, int(run.command.resources.head_cpus)))
            if threads != self._threads:
                env[_THREADS] = threads
        return env

    def _withdraw(self, run: TrialRun) -> None:
        self._waiting.remove(run)

    def _release(self, run: TrialRun) -> None:
        if run.grant is not None:
            self._resources.free(run.grant)

    def _check_more(self, now: float) -> None:
        self._pool.check_fork_server(now)

    def _on_gone(self, worker: WorkerHandle, status: int | None, note: str) -> None:
        """Handle the end of a worker process; `status` is None when it was not seen (called by the pool)."""
        self._ended(worker, lambda: self._exits.failure_of_status(status, note))
        self._start_waiting()  # its files are closed now
