"""Run the functions of `ray.remote`: a process per running task, within the CPUs of the driver or trial.

A process serves one task after another, as Ray's workers do. It is a new interpreter, not a fork: libraries
that have used threads do not survive a fork.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.base import by_value
from muster.base.framing import FrameKind
from muster.engines.local.engine import ResourcePool
from muster.engines.worker.handle import Grant
from muster.host import machine
from muster.host.framed_child import ChildGoneError, FramedChild, boot_command
from muster.ray_api.exceptions import (
    GetTimeoutError,
    RayError,
    RaySystemError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from muster.ray_api.objects import ObjectRef, changed, wait_for
from muster.session.session import current
from muster.trials.placement_group import PlacementGroupFactory

_FOREVER_S = 1e6
_IDLE_MOST = 8  # processes kept for later tasks
_Key = tuple[tuple[str, str], ...]
inherited: dict[str, float] = {}  # what the task has that this process runs; set by task_main


@dataclass(eq=False)
class RemoteTask:
    """One call of a remote function."""

    name: str
    function: bytes
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    needs: PlacementGroupFactory | None
    num_returns: int = 1
    retries: int = 0  # after the end of its process
    env: Mapping[str, str] = field(default_factory=dict)
    max_calls: int = 0  # of one process; 0: no limit
    worker: FramedChild | None = None
    outcome: list[bytes] | BaseException | None = None
    is_cancelled: bool = False

    def is_done(self) -> bool:
        return self.outcome is not None

    def result(self, index: int, timeout: float | None) -> Any:  # noqa: ANN401 - the user's value
        if not wait_for(self.is_done, timeout):
            raise GetTimeoutError(f"{self.name}: its result was not there after {timeout:g} s")
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        try:
            return pickle.loads(self.outcome[index])
        except Exception as error:
            raise RaySystemError(f"{self.name}: its result cannot be read ({error})") from error

    def refs(self) -> list[ObjectRef[Any]]:
        """Return what the task waits for: its arguments that are refs."""
        return [each for each in (*self.args, *self.kwargs.values()) if isinstance(each, ObjectRef)]

    def payload(self) -> bytes:
        needs = {} if self.needs is None else self.needs.required_resources
        return pickle.dumps(
            (self.name, self.function, by_value.dumps((self.args, self.kwargs)), self.num_returns, needs)
        )


def capacity() -> dict[str, float]:
    """Return what tasks of this process may use: the trial's resources, the task's, or the machine's."""
    session = current()
    resources = None if session is None else session.context.get_trial_resources()
    if resources is not None:
        return dict(resources.required_resources)
    return dict(inherited) or machine.detected_capacity()


class TaskPool:
    """The tasks of this process that wait or run, and their processes."""

    def __init__(self) -> None:
        limits = capacity()
        limits["CPU"] = max(1.0, limits.get("CPU", 1.0))
        self.resources = ResourcePool(limits, machine.gpu_ids())
        self._waiting: list[RemoteTask] = []
        self._running: dict[RemoteTask, Grant | None] = {}
        self._idle: list[tuple[_Key, FramedChild, int]] = []
        atexit.register(self.close)

    def submit(self, task: RemoteTask) -> None:
        """Queue a task; ValueError when it needs more than there is."""
        why_not = None if task.needs is None else self.resources.why_never(task.needs)
        if why_not is not None:
            raise ValueError(f"{task.name}.remote(): {why_not}; lower num_cpus or num_gpus of the function")
        with changed:
            self._waiting.append(task)
            self._start_waiting()

    def _start_waiting(self) -> None:
        for task in list(self._waiting):
            if not all(ref.is_ready() for ref in task.refs()):
                continue
            grant = None if task.needs is None else self.resources.take(task.needs)
            if task.needs is not None and grant is None:
                continue
            self._waiting.remove(task)
            self._running[task] = grant
            threading.Thread(target=self._run, args=(task, grant), name="ray-task", daemon=True).start()

    def _run(self, task: RemoteTask, grant: Grant | None) -> None:
        key = _environment_of(task, grant)
        outcome: list[bytes] | BaseException
        worker, calls = None, 0
        try:
            payload = task.payload()
            worker, calls = self._worker(key)
            task.worker = worker
            if task.is_cancelled:  # before it had a process
                raise TaskCancelledError(f"{task.name} was cancelled")
            frames = worker.send(FrameKind.START, payload) or worker.receive(_FOREVER_S)
            outcome = pickle.loads(frames[0][1])
        except ChildGoneError:
            outcome = self._crash(task, worker)
            worker = None
        except Exception as error:  # noqa: BLE001 - an argument that cannot be pickled, or is an error itself
            outcome = error if isinstance(error, RayError) else RayTaskError(task.name, "", error)
        self._finish(task, grant, outcome)
        if worker is not None:
            self._keep(key, worker, 1 + calls, task.max_calls)

    def _finish(self, task: RemoteTask, grant: Grant | None, outcome: list[bytes] | BaseException) -> None:
        with changed:
            del self._running[task]
            task.worker = None
            if grant is not None:
                self.resources.free(grant)
            if task.is_cancelled and isinstance(outcome, RayTaskError):  # it was interrupted
                outcome = TaskCancelledError(f"{task.name} was cancelled")
            if isinstance(outcome, WorkerCrashedError) and task.retries > 0 and not task.is_cancelled:
                task.retries -= 1
                self._waiting.insert(0, task)
            else:
                task.outcome, task.args, task.kwargs = outcome, (), {}
            self._start_waiting()
            changed.notify_all()

    def _worker(self, key: _Key) -> tuple[FramedChild, int]:
        with changed:
            for entry in self._idle:
                if entry[0] == key:
                    self._idle.remove(entry)
                    return entry[1], entry[2]
        command = boot_command("muster.ray_api.task_main")
        return FramedChild(command, env=machine.child_environment(dict(key)), output=None), 0

    def _keep(self, key: _Key, worker: FramedChild, calls: int, most: int) -> None:
        with changed:
            if len(self._idle) < _IDLE_MOST and (not most or calls < most):
                self._idle.append((key, worker, calls))
                return
        worker.end(1.0)

    @staticmethod
    def _crash(task: RemoteTask, worker: FramedChild | None) -> BaseException:
        if task.is_cancelled:
            return TaskCancelledError(f"{task.name} was cancelled")
        code = None if worker is None else worker.process.wait()
        end = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        more = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
        return WorkerCrashedError(f"{task.name}: its process ended with {end}{more}")

    def cancel(self, task: RemoteTask, force: bool) -> None:
        """End a task: one that waits at once, one that runs by SIGINT, or SIGKILL."""
        with changed:
            if task.is_done():
                return
            task.is_cancelled = True
            if task in self._waiting:
                self._waiting.remove(task)
                task.outcome = TaskCancelledError(f"{task.name} was cancelled")
                changed.notify_all()
            elif task.worker is not None:
                task.worker.process.send_signal(signal.SIGKILL if force else signal.SIGINT)

    def close(self) -> None:
        """End all processes; tasks that wait or run end as cancelled."""
        with changed:
            tasks, idle = [*self._waiting, *self._running], list(self._idle)
            self._idle.clear()
        for task in tasks:
            self.cancel(task, force=True)
        for _, worker, _ in idle:
            worker.end(1.0)


def _environment_of(task: RemoteTask, grant: Grant | None) -> _Key:
    cpus = 0 if task.needs is None else int(task.needs.required_resources.get("CPU", 0))
    env = {"OMP_NUM_THREADS": str(max(1, cpus))} if "OMP_NUM_THREADS" not in machine.environment() else {}
    if grant is not None and grant.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(grant.gpu_ids)
    return tuple(sorted({**env, **task.env}.items()))


_pools: dict[int, TaskPool] = {}  # by process id: a fork has none of its parent's processes


def pool() -> TaskPool:
    with changed:
        if os.getpid() not in _pools:
            _pools.clear()
            _pools[os.getpid()] = TaskPool()
        return _pools[os.getpid()]


def close_pool() -> None:
    """End the tasks of this process; the next one starts with the resources that are declared then."""
    found = _pools.pop(os.getpid(), None)
    if found is not None:
        found.close()


def busy() -> Sequence[RemoteTask]:
    return list(_pools[os.getpid()]._running) if os.getpid() in _pools else []
