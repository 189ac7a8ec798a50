"""Run the command of one trial in the trial's process: one loop reads its output, its files and its socket.

The loop never waits for the driver: it posts results, and the answer is one more event. So a stop reaches
the command at once, and the loop reads its output whatever happens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from muster.base.clock import Clock, SystemClock
from muster.base.untrusted import message_text
from muster.engines.worker.child_reports import call_before_child
from muster.engines.worker.handle import Poller, SpinThenWait
from muster.engines.worker.report_socket import ReporterLink, Reporters, ReportRequest, ReportSocket
from muster.engines.worker.session import LASTING_S, TrialSession
from muster.errors import CommandError
from muster.host.die_with_parent import adopt_orphans, children, end_children
from muster.host.processes import find
from muster.host.tree_guard import release
from muster.session.checkpoint import Checkpoint
from muster.session.publish import staging_path
from muster.session.session import TrialStopped
from muster.tune.commands.checkpoints import CheckpointFinder, Seen
from muster.tune.commands.command import Command
from muster.tune.commands.files import ResultFile, claim, follow
from muster.tune.commands.output import CappedLog, Carry, LineReader, Lines
from muster.tune.commands.prepare import Prepared, prepare

LOOK_S = 0.2  # how often files are looked at
BATCH = 50  # results in one message
FULL = 10_000  # results that wait: the command waits too
STOP_COMMAND_S = 30.0
_CHUNK = 1 << 18
_log = logging.getLogger(__name__)


class UnsentResult(NamedTuple):
    """A result that was not sent yet."""

    metrics: dict[str, Any]
    checkpoint: str | None = None  # what the report names
    connection: ReporterLink | None = None  # which gets the answer


class CommandRun:
    """One run of a command; `run` returns when it has ended well, and raises what is to be reported else."""

    def __init__(self, command: Command, config: dict[str, Any], session: TrialSession) -> None:
        self._command, self._config, self._session = command, config, session
        self._clock: Clock = SystemClock()
        self._poller, self._spinner = Poller(), SpinThenWait()
        self._queue: deque[UnsentResult] = deque()
        self._answer_to: list[ReporterLink] = []
        self._is_posted = False  # and was not answered yet
        self._is_owned = False  # a process reports by itself: its output has no more results
        self._has_result = False
        self._streams: dict[int, Lines] = {}
        self._is_paused = False
        self._held: Seen | None = None

    def run(self) -> None:
        """Run the command to its end, or until the trial is stopped."""
        with contextlib.ExitStack() as stack:
            prepared = prepare(self._command, self._config, self._session)
            self._open(prepared, stack)
            try:
                self._take_answer()  # a stop may have come with the start order, and no event follows
                while not self._has_ended():
                    self._turn(self._timeout_s())
                self._finish(prepared)
            except TrialStopped:
                self._stop(prepared)
                raise

    def _open(self, prepared: Prepared, stack: contextlib.ExitStack) -> None:
        call_before_child(None)  # this loop serves the socket itself
        adopt_orphans()
        self._log = CappedLog(prepared.log_path, self._command.log_limit)
        stack.callback(self._log.close)
        self._files: list[ResultFile] = [
            follow(way, path) for way, path in zip(self._command.report, prepared.paths, strict=True) if path
        ]
        for path in filter(None, prepared.paths):
            stack.callback(claim(path).close)
        self._lines = LineReader(self._command.report, prepared.metrics + self._command.also)
        self._carry = Carry(prepared.metrics)
        self._checkpoints = CheckpointFinder(prepared.checkpoint_pattern)
        self._staging = staging_path(prepared.trial_dir, "command_file")
        self._session.on_save = self._on_save
        self._socket = ReportSocket(prepared.report_to, self._poller)
        stack.callback(self._socket.close)
        self._reporters = Reporters(self._session)
        self._poller.add_reader(self._session.channel.read_fd)
        self._process = prepared.start()
        stack.callback(release, self._process)
        stack.callback(end_children)
        self._look_at = self._clock.monotonic() + LASTING_S
        self._end_fd, self._is_over = -1, False
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._end_fd = os.pidfd_open(self._process.pid)
                stack.callback(os.close, self._end_fd)
                self._poller.add_reader(self._end_fd)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stack.callback(stream.close)
            os.set_blocking(stream.fileno(), False)
            self._streams[stream.fileno()] = Lines()
            self._poller.add_reader(stream.fileno())

    def _timeout_s(self) -> float:
        if self._files or self._held is not None or self._end_fd < 0:
            return LOOK_S
        return LASTING_S

    def _has_ended(self) -> bool:
        return (self._is_over or self._end_fd < 0) and self._process.poll() is not None

    # The loop

    def _turn(self, timeout_s: float) -> None:
        """Handle everything that has come, and send what can be sent."""
        self._handle_ready(timeout_s)
        now = self._clock.monotonic()
        if now > self._look_at:
            self._look_at = now + LOOK_S
            if not self._session.channel.is_watched:
                self._session.channel.watch()  # a silent command is not a silent trial
            self._reap_adopted()
        for file in self._files:
            self._add(file.read())
        self._post()

    def _reap_adopted(self) -> None:
        """Reap the daemons of the command that have ended; the command itself is the loop's business."""
        if not hasattr(os, "waitid"):
            return
        waits = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, waits)) and ended.si_pid != self._process.pid:
                os.waitpid(ended.si_pid, 0)

    def _handle_ready(self, timeout_s: float) -> None:
        found = self._spinner.poll(self._poller.poll) if self._answer_to else None
        for fd, _ in found or self._poller.poll(timeout_s):
            if fd == self._session.channel.read_fd:
                self._take_answer()
            elif fd in self._streams:
                self._read(fd)
            elif fd == self._end_fd:
                self._is_over = True
            else:
                for request in self._socket.take(fd):
                    self._take(request)

    def _read(self, fd: int) -> bool:
        """Read one part of the output; return whether there was any."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        lines = self._streams[fd]
        self._log.write(data)
        if not data:
            self._poller.forget(fd)
            del self._streams[fd]
        if not self._lines.is_idle:
            for line in lines.feed(data) if data else lines.end():
                self._add(self._lines.read(line))
        return bool(data)

    def _add(self, found: Iterator[dict[str, Any]]) -> None:
        results = self._carry.add(found)
        self._queue.extend(UnsentResult(metrics) for metrics in results if not self._is_owned)
        if (len(self._queue) > FULL) != self._is_paused:
            self._is_paused = not self._is_paused
            for fd in self._streams:
                self._poller.forget(fd) if self._is_paused else self._poller.add_reader(fd)

    def _take(self, request: ReportRequest) -> None:
        if answer := self._reporters.answer(request):
            request.connection.answer(answer)
        else:
            self._is_owned = True
            self._queue.append(UnsentResult(request.metrics, request.checkpoint, request.connection))

    # Results and checkpoints

    def _take_answer(self) -> None:
        if self._session.take_answer():
            self._is_posted = False
            self._answer("c")
            self._add(iter(()))  # there is room again

    def _answer(self, text: str) -> None:
        for connection in self._answer_to:
            connection.answer(text)
        self._answer_to.clear()

    def _post(self, *, is_last: bool = False) -> None:
        """Send the results that wait, unless the last ones were not answered yet."""
        if self._is_posted or not self._queue:
            return
        saved = None if self._queue[0].checkpoint else self._newest(is_last=is_last)
        if self._held is not None:
            return  # the result waits until its checkpoint is complete
        first = self._queue.popleft()
        if first.connection is None:
            batch: list[tuple[dict[str, Any], Checkpoint | None]] = [(first.metrics, None)]
            while self._queue and self._queue[0].connection is None and len(batch) < BATCH:
                batch.append((self._queue.popleft().metrics, None))
            self._send([*batch[:-1], (batch[-1][0], saved)])
            return
        self._reporters.received += 1
        self._answer_to.append(first.connection)
        try:
            self._send([(first.metrics, Checkpoint(first.checkpoint) if first.checkpoint else saved)])
        except TrialStopped:
            raise
        except Exception as error:  # noqa: BLE001 - the process that reported raises it
            self._answer(f"e {message_text(error)}")

    def _send(self, batch: list[tuple[dict[str, Any], Checkpoint | None]]) -> None:
        self._has_result = True
        self._is_posted = self._session.post(batch)
        if not self._is_posted:  # they wait in a buffer
            self._answer("c")

    def _newest(self, *, is_last: bool) -> Checkpoint | None:
        """Return the newest complete checkpoint that was not taken; hold one that is not complete yet."""
        seen = self._checkpoints.newest()
        was_held, self._held = self._held, None
        if seen is None:
            return None
        if is_last or self._checkpoints.is_complete(seen, self._clock.monotonic()):
            return self._checkpoints.take(seen, self._staging)
        if was_held is None or was_held == seen:
            self._held = seen
        return None

    def _on_save(self, is_optional: bool) -> tuple[int | None, str]:
        """Answer a request for a checkpoint with the newest that is complete."""
        seen = self._checkpoints.newest()
        if seen is None and self._session.get_checkpoint() is None and not is_optional:
            raise CommandError(
                "the scheduler pauses trials, and the command has written no checkpoint",
                fix="write one to {checkpoint} and continue from {resume}, or use another scheduler",
            )
        if seen is not None and self._checkpoints.is_complete(seen, self._clock.monotonic()):
            return self._session.publish(self._checkpoints.take(seen, self._staging)), ""
        return self._session.last_saved, "the command has written no checkpoint"

    # The end

    def _finish(self, prepared: Prepared) -> None:
        """Take what the command left behind, and judge how it ended."""
        if self._end_fd >= 0:
            self._poller.forget(self._end_fd)  # it stays ready: waiting for the driver would spin
        self._drain()
        self._end_tree()
        self._drain()
        for fd in list(self._streams):
            for line in self._streams[fd].end():
                self._add(self._lines.read(line))
        for file in self._files:
            self._add(file.read(is_last=True))
        code = self._process.returncode
        is_ok = code in self._command.ok_exit_codes
        while self._queue or self._is_posted:
            self._post(is_last=is_ok)
            self._handle_ready(LOOK_S if self._is_posted or self._held is not None else 0.0)
        if not is_ok:
            raise prepared.failure(code, self._log.last_lines())
        if not self._has_result and self._session.get_checkpoint() is None:  # resumed: it may have been done
            raise prepared.silence(code, list(self._carry.seen), self._log.last_lines())

    def _drain(self) -> None:
        for fd in list(self._streams):
            while fd in self._streams and self._read(fd):
                continue

    def _end_tree(self) -> None:
        """Kill every descendant, in any session, until none is left, and warn of what was left running."""
        left = [process for pid in children() if (process := find(pid)) is not None and process.is_alive]
        if left:
            names = ", ".join(f"{process.name} ({process.pid})" for process in left[:5])
            trial, more = self._session.describe()["trial_id"], "" if len(left) <= 5 else ", ..."
            text = "trial %s: its command has ended and left %d running, which muster kills: %s%s"
            _log.warning(text, trial, len(left), names, more)
        end_children()

    def _stop(self, prepared: Prepared) -> None:
        """Signal the command, wait for its end, then kill what is left."""
        self._answer("s")
        self._poller.forget(self._session.channel.read_fd)
        with contextlib.suppress(TrialStopped):  # SIGTERM to this process: the time is over
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.Signals[self._command.stop_signal])
            give_up = self._clock.monotonic() + self._command.grace_s
            while not self._has_ended() and (left_s := give_up - self._clock.monotonic()) > 0:
                self._handle_ready(min(left_s, LOOK_S if self._end_fd < 0 else left_s))
        end_children()
        self._drain()
        if prepared.stop_command:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    prepared.stop_command,
                    cwd=prepared.cwd,
                    env=prepared.env,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=STOP_COMMAND_S,
                    check=False,
                )


def reopen(*fields: Any) -> Command:  # noqa: ANN401 - those of Command
    """Make a command from its pickle; whoever does so has imported what runs it, before it forks."""
    return Command(*fields)
