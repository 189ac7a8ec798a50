"""Turn a machine into a node, head or worker: does the steps of `update_steps` and logs each.

`NodeInstaller` runs it for workers on the head, the lifecycle for the head. It uses a CommandRunner only;
`Surroundings` has the clock, the pauses and the threads, so that the simulator can replace them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from muster.base.clock import Clock, SystemClock
from muster.base.untrusted import message_text
from muster.config.node_launch import RuntimeHashes
from muster.config.schema import ClusterConfig
from muster.errors import CommandFailed, KeyRefused, MusterError, RemoteError, Unreachable
from muster.host.call_threads import in_thread
from muster.remote.runner import CommandRunner, OnOutput, RunWhere
from muster.remote.steps import (
    STATUS,
    TAG_STATUS,
    UPDATE_FAILED,
    CopyFiles,
    NodeSetup,
    PrepareContainer,
    RunCommand,
    StepKind,
    UpdateStep,
    WaitReady,
    Work,
    final_tags,
    log_name,
    must_look_first,
    prepare_container,
    update_steps,
)

logger = logging.getLogger(__name__)

LOG_BYTES = 16 * 2**20  # of one step of one machine; a host may be set up for years


class Timing(Struct, frozen=True, kw_only=True):
    """How long a set-up waits, and how often it tries."""

    ready_s: float = 900.0  # until a machine answers
    interval_s: float = 5.0  # between two tries
    probe_s: float = 20.0
    refused_s: float = 180.0  # a new machine gets its keys while it starts; a wrong key is never let in
    command_s: float = 3600.0
    sync_s: float = 3600.0
    connection_tries: int = 4  # of what a broken connection ended
    command_tries: int = 2  # of a command that failed: package servers have bad moments


def timing_of(config: ClusterConfig) -> Timing:
    """Return the timing of a cluster file."""
    given = config.muster.setup
    return Timing(
        ready_s=given.ready_s,
        refused_s=given.refused_s,
        interval_s=given.interval_s,
        command_s=given.command_s,
        command_tries=given.command_tries,
    )


class NodeAccess(Protocol):
    """What a set-up needs of a provider; all methods may block, and may raise. ClusterMachines has it."""

    def tags(self, node: str) -> Mapping[str, str]: ...

    def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        """Merge tags into those that the machine has."""
        ...

    def is_gone(self, node: str) -> bool:
        """Return whether the machine was terminated, so that nobody should wait for it."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """Time, pauses and threads; the simulator passes its own."""

    clock: Clock = SystemClock()  # noqa: RUF009 - has no state
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    call: Callable[[Callable[[], Any]], Awaitable[Any]] = in_thread  # for what a provider may block


class MachineSetup:
    """Sets one machine up. The output of every step is in `logs`/<node>/<step>.log."""

    def __init__(
        self,
        node: str,
        runner: CommandRunner,
        access: NodeAccess,
        logs: Path,
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        surroundings: Surroundings = Surroundings(),
    ) -> None:
        self.node, self.runner = node, runner
        self.on_work: Callable[[StepKind, Work], None] = lambda kind, work: None  # called as each begins
        self.on_output: OnOutput = lambda chunk: None
        self._access, self._logs, self._timing, self._io = access, logs, timing, surroundings

    async def run(self, setup: NodeSetup) -> None:
        """Return when the machine is a node. Raises a RemoteError with what failed and its log."""
        async with self.tagging(setup.hashes):
            tags = await self._tags()
            await self._steps(update_steps(setup, {})[:1], setup)
            await self.prepare(setup, tags)
            await self.start(setup)

    async def prepare(self, setup: NodeSetup, tags: Mapping[str, str]) -> None:
        """Copy files and run the commands that a machine with these tags needs before the start."""
        is_new = False
        if must_look_first(setup, tags):
            with self._log(StepKind.INITIALIZE) as write:
                is_new = await self._do(prepare_container(setup, is_synced=False), setup, write)
        steps = update_steps(setup, tags, is_new_container=is_new)
        await self._steps([step for step in steps if step.kind not in (StepKind.WAIT, StepKind.START)], setup)

    async def start(self, setup: NodeSetup) -> None:
        """Run the start commands."""
        await self._steps([step for step in update_steps(setup, {}) if step.kind is StepKind.START], setup)

    @contextlib.asynccontextmanager
    async def tagging(self, hashes: RuntimeHashes) -> AsyncIterator[None]:
        """Tag the machine as up to date after the block, or as failed when the block raises."""
        try:
            yield
        except Exception as error:
            await self._tag({TAG_STATUS: UPDATE_FAILED})
            if isinstance(error, MusterError):
                raise
            raise RemoteError(
                f"{self.node} could not be set up ({message_text(error)}): see {self._logs}"
            ) from error
        await self._tag(final_tags(hashes))

    async def _steps(self, steps: Iterable[UpdateStep], setup: NodeSetup) -> None:
        for step in steps:
            if step.kind in STATUS:
                await self._tag({TAG_STATUS: STATUS[step.kind]})
            with self._log(step.kind) as write:
                try:
                    for work in step.work:
                        self.on_work(step.kind, work)
                        await self._try(work, setup, write)
                except Exception as error:
                    write(f"failed: {message_text(error)}\n".encode())
                    log = self._logs / log_name(self.node, step.kind)
                    raise _with_place(error, self.node, step.kind, log) from error

    async def _try(self, work: Work, setup: NodeSetup, write: OnOutput) -> None:
        """Do one part of a step, more than once where that may help."""
        attempt = 1
        while True:
            try:
                if isinstance(work, WaitReady):
                    await self.wait_ready(write)
                else:
                    await self._do(work, setup, write)
                return
            except (RemoteError, TimeoutError) as error:
                if isinstance(work, WaitReady) or attempt >= tries(error, self._timing):
                    raise
                attempt += 1
                write(f"{message_text(error)}\ntrying again in {self._timing.interval_s:g} s\n".encode())
                await self._io.pause(self._timing.interval_s)
                if isinstance(error, Unreachable):  # it may be starting again, which takes minutes
                    await self.wait_ready(write)

    async def _do(self, work: Work, setup: NodeSetup, write: OnOutput) -> bool:
        write(f"[{self._now()}] {_line(work)}\n".encode("utf-8", "replace"))
        if isinstance(work, PrepareContainer):
            return await self.runner.prepare(
                as_head=work.as_head, file_mounts=work.file_mounts, is_synced=work.is_synced
            )
        if isinstance(work, CopyFiles):
            if work.may_be_missing and not os.path.exists(os.path.expanduser(work.source)):
                write(b"it is not on this computer: left out\n")
                return False
            await self.runner.sync_up(
                work.source,
                work.target,
                exclude=work.exclude,
                filters=work.filters,
                timeout_s=self._timing.sync_s,
            )
        elif isinstance(work, RunCommand):
            await self.runner.run(
                work.command,
                where=work.where,
                environment=work.environment,
                secrets=setup.secrets if work.takes_secrets else {},
                on_output=write,
                timeout_s=work.timeout_s or self._timing.command_s,
            )
        return False

    async def wait_ready(self, write: OnOutput = lambda chunk: None) -> None:
        """Wait until the machine runs commands. Raises Unreachable or KeyRefused when it takes too long."""
        began, pause_s = self._io.clock.monotonic(), 0.25
        while True:
            try:
                write(f"[{self._now()}] $ uptime\n".encode())
                await self.runner.run(
                    "uptime", timeout_s=self._timing.probe_s, where=RunWhere.HOST, on_output=write
                )
                return
            except CommandFailed:
                return  # it answers
            except (RemoteError, TimeoutError) as error:
                if isinstance(error, RemoteError) and not error.retryable:
                    raise
                write(f"{message_text(error)}\n".encode())
                await self._give_up(error, self._io.clock.monotonic() - began)
            await self._io.pause(min(pause_s, self._timing.interval_s))
            pause_s *= 2

    async def _give_up(self, error: Exception, waited_s: float) -> None:
        """Raise when it is not a use to wait longer for a machine that has not answered."""
        if await self._is_gone():
            raise RemoteError(f"{self.node} was terminated before it answered: no need to do anything")
        refused, ready_s = isinstance(error, KeyRefused), self._timing.ready_s
        limit_s = min(self._timing.refused_s, ready_s) if refused else ready_s
        if waited_s > limit_s:
            raise (KeyRefused if refused else Unreachable)(
                f"{self.node} did not answer within {limit_s:g} s: {message_text(error)}"
            ) from error

    async def _tags(self) -> Mapping[str, str]:
        """Return the machine's tags; a machine whose tags cannot be read is set up as if it had none."""
        try:
            return dict(await self._io.call(lambda: self._access.tags(self.node)))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            logger.warning("the tags of %s could not be read: %s", self.node, message_text(error))
            return {}

    async def _is_gone(self) -> bool:
        try:
            return bool(await self._io.call(lambda: self._access.is_gone(self.node)))
        except Exception:  # noqa: BLE001 - a provider may raise anything; keep waiting
            return False

    async def _tag(self, tags: Mapping[str, str]) -> None:
        """Write tags; they show users how far a machine is, and are not a reason to give it up."""
        try:
            await self._io.call(lambda: self._access.set_tags(self.node, tags))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            logger.warning("the tags of %s could not be written: %s", self.node, message_text(error))

    @contextlib.contextmanager
    def _log(self, kind: StepKind) -> Iterator[OnOutput]:
        """Yield what appends to the log of a step; a full disk here does not stop it."""
        path = self._logs / log_name(self.node, kind)
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() and path.stat().st_size > LOG_BYTES:
                    path.replace(path.with_suffix(".old.log"))
                file = stack.enter_context(path.open("ab", buffering=0))
            except OSError as error:
                logger.warning("no log of %s: %s", self.node, error)
                yield self.on_output
                return

            room = LOG_BYTES

            def write(chunk: bytes) -> None:
                nonlocal room
                self.on_output(chunk)
                with contextlib.suppress(OSError):
                    if room > 0:
                        file.write(
                            chunk if len(chunk) < room else chunk[:room] + b"\n(the rest is left out)\n"
                        )
                room -= len(chunk)

            yield write

    def remove_logs(self) -> None:
        shutil.rmtree((self._logs / log_name(self.node, StepKind.START)).parent, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._logs.rmdir()  # unless there are logs of others

    def _now(self) -> str:
        return datetime.datetime.fromtimestamp(self._io.clock.now()).isoformat(sep=" ", timespec="seconds")


def tries(error: Exception, timing: Timing) -> int:
    """Return how often something that raised this is tried in all."""
    if isinstance(error, CommandFailed):
        return timing.command_tries
    return timing.connection_tries if isinstance(error, RemoteError) and error.retryable else 1


_TITLES = {
    StepKind.INITIALIZE: "initializing",
    StepKind.SET_UP: "setting up",
    StepKind.START: "starting Ray",
}


def title_of(kind: StepKind, work: Work) -> str:
    """Return a line for users about what begins."""
    step = f"{_TITLES[kind]}: " if kind in _TITLES and isinstance(work, RunCommand) else ""
    return step + _line(work).removeprefix("$ ")


def _line(work: Work) -> str:
    match work:
        case CopyFiles():
            return f"copying {work.source} to {work.target}"
        case RunCommand():
            return f"$ {work.command}"
        case PrepareContainer():
            return "starting the container"
        case _:
            return "waiting"


def _with_place(error: Exception, node: str, kind: StepKind, log: Path) -> Exception:
    """Return the same kind of error with node, step and log in its sentence."""
    message = f"step {kind.value} of {node} failed: {message_text(error)} (log: {log})"
    if isinstance(error, CommandFailed):
        return CommandFailed(message, exit_code=error.exit_code, last_lines=error.last_lines)
    return (type(error) if isinstance(error, RemoteError) else RemoteError)(message)
