"""Makes machines into nodes: does the steps of `update_steps` on many of them at once, and logs each.

`NodeInstaller` is the monitor's port; the launcher uses `Updater` itself, for the head. All of it runs in one
event loop. What a provider does runs on threads of its own, so that one machine never waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from muster.base.clock import Clock, SystemClock
from muster.base.foreign import message_text
from muster.config.schema import ClusterConfig
from muster.errors import CommandFailed, KeyRefused, MusterError, RemoteError, Unreachable
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
from muster.remote.threads import in_thread

logger = logging.getLogger(__name__)

LOG_BYTES = 16 * 2**20  # of one step of one machine; a host may be set up for years
STARTED, RETRIED, DONE, FAILED = "started", "retried", "done", "failed"


class Timing(Struct, frozen=True, kw_only=True):
    """A Timing says how long the updater waits, and how often it tries."""

    ready_s: float = 900.0  # until a machine answers
    interval_s: float = 5.0  # between two tries
    probe_s: float = 20.0
    refused_s: float = 180.0  # a new machine gets its keys while it starts; a wrong key is never let in
    command_s: float = 3600.0
    sync_s: float = 3600.0
    connection_tries: int = 4  # of what a broken connection ended
    command_tries: int = 2  # of a command that failed: package servers have bad moments


def timing_of(config: ClusterConfig) -> Timing:
    """Returns the timing of a cluster file."""
    given = config.muster.setup
    return Timing(
        ready_s=given.ready_s,
        refused_s=given.refused_s,
        interval_s=given.interval_s,
        command_s=given.command_s,
        command_tries=given.command_tries,
    )


class StepProgress(Struct, frozen=True, kw_only=True):
    """A StepProgress is what happened to one node: a step started, is tried again, is done or has failed."""

    node: str
    step: StepKind
    state: str
    seconds: float = 0.0  # since the step started
    detail: str = ""


class NodeAccess(Protocol):
    """A NodeAccess is what the updater needs of a provider; all methods may block, and may raise."""

    def tags(self, node: str) -> Mapping[str, str]: ...

    def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        """Merges tags into those that the machine has."""
        ...

    def is_gone(self, node: str) -> bool:
        """Returns whether the machine was terminated, so that nobody should wait for it."""
        ...


OnProgress = Callable[[StepProgress], None]


class Updater:
    """An Updater sets machines up, each by a call of `update`; calls run side by side.

    The output of every step is in `logs`/<node>/<step>.log.
    """

    def __init__(
        self,
        access: NodeAccess,
        logs: Path,
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        on_progress: OnProgress = lambda progress: None,
        clock: Clock = SystemClock(),  # noqa: B008 - has no state
    ) -> None:
        self._access, self._logs, self._timing = access, logs, timing
        self._on_progress, self._clock = on_progress, clock

    async def update(self, node: str, setup: NodeSetup, runner: CommandRunner) -> None:
        """Returns when the machine is a node; raises a RemoteError with what failed and its log."""
        steps = update_steps(setup, {})[:1]
        try:
            tags = await self._tags(node)
            await self._step(node, steps[0], setup, runner)
            is_new = must_look_first(setup, tags) and await self._look(node, setup, runner)
            for step in update_steps(setup, tags, is_new_container=is_new)[1:]:
                await self._step(node, step, setup, runner)
        except Exception as error:
            await self._tag(node, {TAG_STATUS: UPDATE_FAILED})
            if isinstance(error, MusterError):
                raise
            raise RemoteError(
                f"{node} could not be set up ({message_text(error)}): see {self._logs}"
            ) from error
        await self._tag(node, final_tags(setup.hashes))

    async def _look(self, node: str, setup: NodeSetup, runner: CommandRunner) -> bool:
        """Returns whether the container had to be made anew."""
        with self._log(node, StepKind.INITIALIZE) as write:
            return await self._do(prepare_container(setup, is_synced=False), setup, runner, write)

    async def _step(self, node: str, step: UpdateStep, setup: NodeSetup, runner: CommandRunner) -> None:
        began = self._clock.monotonic()

        def report(state: str, detail: str = "") -> None:
            seconds = self._clock.monotonic() - began
            progress = StepProgress(node=node, step=step.kind, state=state, seconds=seconds, detail=detail)
            with contextlib.suppress(Exception):  # whoever shows it must not end it
                self._on_progress(progress)

        report(STARTED)
        if step.kind in STATUS:
            await self._tag(node, {TAG_STATUS: STATUS[step.kind]})
        with self._log(node, step.kind) as write:
            try:
                for work in step.work:
                    await self._try(node, work, setup, runner, _Report(write, report))
            except Exception as error:
                write(f"failed: {message_text(error)}\n".encode())
                report(FAILED, message_text(error))
                raise _with_place(error, node, step.kind, self._log_path(node, step.kind)) from error
        report(DONE)

    async def _try(
        self, node: str, work: Work, setup: NodeSetup, runner: CommandRunner, report: _Report
    ) -> None:
        """Does one part of a step, more than once where that may help."""
        if isinstance(work, WaitReady):
            await self._wait_ready(node, runner, report)
            return
        attempt = 1
        while True:
            try:
                await self._do(work, setup, runner, report.write)
                return
            except (RemoteError, TimeoutError) as error:
                if attempt >= tries(error, self._timing):
                    raise
                attempt += 1
                report.write(
                    f"{message_text(error)}\ntrying again in {self._timing.interval_s:g} s\n".encode()
                )
                report.tell(RETRIED, message_text(error))
                await asyncio.sleep(self._timing.interval_s)
                if isinstance(error, Unreachable):  # it may be starting again, which takes minutes
                    await self._wait_ready(node, runner, report)

    async def _do(self, work: Work, setup: NodeSetup, runner: CommandRunner, write: OnOutput) -> bool:
        write(f"[{self._now()}] {_title(work)}\n".encode("utf-8", "replace"))
        if isinstance(work, PrepareContainer):
            return await runner.prepare(
                as_head=work.as_head, file_mounts=work.file_mounts, is_synced=work.is_synced
            )
        if isinstance(work, CopyFiles):
            if work.may_be_missing and not os.path.exists(os.path.expanduser(work.source)):
                write(b"it is not on this computer: left out\n")
                return False
            await runner.sync_up(
                work.source,
                work.target,
                exclude=work.exclude,
                filters=work.filters,
                timeout_s=self._timing.sync_s,
            )
        elif isinstance(work, RunCommand):
            await runner.run(
                work.command,
                where=work.where,
                environment=work.environment,
                secrets=setup.secrets if work.takes_secrets else {},
                on_output=write,
                timeout_s=self._timing.command_s,
            )
        return False

    async def _wait_ready(self, node: str, runner: CommandRunner, report: _Report) -> None:
        write, tell = report.write, report.tell
        began, pause_s = self._clock.monotonic(), 0.25
        while True:
            try:
                write(f"[{self._now()}] $ uptime\n".encode())
                await runner.run(
                    "uptime", timeout_s=self._timing.probe_s, where=RunWhere.HOST, on_output=write
                )
                return
            except CommandFailed:
                return  # it answers
            except (RemoteError, TimeoutError) as error:
                if isinstance(error, RemoteError) and not error.retryable:
                    raise
                write(f"{message_text(error)}\n".encode())
                if await self._is_gone(node):
                    raise RemoteError(
                        f"{node} was terminated before it answered: no need to do anything"
                    ) from None
                refused = isinstance(error, KeyRefused)
                limit_s = self._timing.refused_s if refused else self._timing.ready_s
                if self._clock.monotonic() > began + limit_s:
                    raise (KeyRefused if refused else Unreachable)(
                        f"{node} did not answer within {limit_s:g} s: {message_text(error)}"
                    ) from error
                tell(RETRIED, message_text(error))
            await asyncio.sleep(min(pause_s, self._timing.interval_s))
            pause_s *= 2

    async def _tags(self, node: str) -> Mapping[str, str]:
        """Returns the tags of a machine; where they cannot be read, it is set up as if it had none."""
        try:
            return await in_thread(lambda: dict(self._access.tags(node)))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            logger.warning("the tags of %s could not be read: %s", node, message_text(error))
            return {}

    async def _is_gone(self, node: str) -> bool:
        try:
            return await in_thread(lambda: self._access.is_gone(node))
        except Exception:  # noqa: BLE001 - a provider may raise anything; nobody knows, so it is waited for
            return False

    async def _tag(self, node: str, tags: Mapping[str, str]) -> None:
        """Writes tags; they tell users how far a machine is, and are no reason to give it up."""
        try:
            await in_thread(lambda: self._access.set_tags(node, tags))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            logger.warning("the tags of %s could not be written: %s", node, message_text(error))

    def _log_path(self, node: str, kind: StepKind) -> Path:
        return self._logs / log_name(node, kind)

    @contextlib.contextmanager
    def _log(self, node: str, kind: StepKind) -> Iterator[OnOutput]:
        """Yields what appends to the log of a step; a full disk here does not stop it."""
        path = self._log_path(node, kind)
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() and path.stat().st_size > LOG_BYTES:
                    path.replace(path.with_suffix(".old.log"))
                file = stack.enter_context(path.open("ab", buffering=0))
            except OSError as error:
                logger.warning("no log of %s: %s", node, error)
                yield lambda chunk: None
                return

            room = LOG_BYTES

            def write(chunk: bytes) -> None:
                nonlocal room
                with contextlib.suppress(OSError):
                    if room > 0:
                        file.write(
                            chunk if len(chunk) < room else chunk[:room] + b"\n(the rest is left out)\n"
                        )
                room -= len(chunk)

            yield write

    def _now(self) -> str:
        return datetime.datetime.fromtimestamp(self._clock.now()).isoformat(sep=" ", timespec="seconds")


class _Report(Struct, frozen=True):
    """A _Report is to whom a part of a step says how it goes: its log, and whoever watches."""

    write: OnOutput
    tell: Callable[[str, str], None]


def tries(error: Exception, timing: Timing) -> int:
    """Returns how often something that raised this is tried in all."""
    if isinstance(error, CommandFailed):
        return timing.command_tries
    return timing.connection_tries if isinstance(error, RemoteError) and error.retryable else 1


def _title(work: Work) -> str:
    match work:
        case CopyFiles():
            return f"copy {work.source} to {work.target}"
        case RunCommand():
            return f"$ {work.command}"
        case PrepareContainer():
            return "start the container"
        case _:
            return "wait"


def _with_place(error: Exception, node: str, kind: StepKind, log: Path) -> Exception:
    """Returns the same kind of error with node, step and log in its sentence."""
    message = f"step {kind.value} of {node} failed: {message_text(error)} (log: {log})"
    if isinstance(error, CommandFailed):
        return CommandFailed(message, exit_code=error.exit_code, last_lines=error.last_lines)
    return (type(error) if isinstance(error, RemoteError) else RemoteError)(message)
