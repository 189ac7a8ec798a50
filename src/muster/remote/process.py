"""Run a program of this computer without blocking the event loop, and pass on what it prints.

Called by the command runners. No thread waits for the program, and one that is given up is killed with its
children even where somebody else still holds its output open, as the master of a shared SSH connection does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from muster.errors import RemoteError
from muster.remote.runner import OnOutput

MOST_OUTPUT = 16 * 2**20  # of which the end is kept
LAST_LINES = 20
LATE_OUTPUT_S = 2.0  # after the end of a program whose output stays open
LEFT_BEHIND_S = 1.0  # after a command has said that it ended, if something in the background holds its output
POLL_S = 0.05  # where the system has no pidfd
_CHUNK = 65536
# What an interactive bash says when it has no terminal.
_NO_TERMINAL = (b"bash: cannot set terminal process group", b"bash: no job control in this shell")


class CommandOutput:
    """What a command printed so far; secrets are replaced before anybody sees them."""

    def __init__(
        self,
        on_output: OnOutput | None = None,
        secrets: Mapping[str, str] = {},
        *,
        is_interactive: bool = False,
        command_id: str = "",
    ) -> None:
        """Take the id with which the command says on standard error how it ended, if it does."""
        self.exit_code: int | None = None
        self.on_end: Callable[[], None] = lambda: None
        self._on_output = on_output
        self._mark, self._maybe_mark = f"{command_id}:".encode() if command_id else b"", b""
        hidden = {value.encode("utf-8", "surrogateescape") for value in secrets.values() if len(value) > 3}
        self._hidden = sorted(hidden, key=lambda value: (-len(value), value))
        self._is_interactive = is_interactive
        self._unfinished = b""  # line of an interactive shell
        self._held = {True: b"", False: b""}  # by stream: what may be the start of a secret
        self._stdout, self._all = bytearray(), bytearray()

    def add(self, chunk: bytes, *, is_stdout: bool) -> None:
        if self._mark and not is_stdout:
            chunk = self._without_mark(chunk)
        if self._is_interactive and not is_stdout:
            *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
            chunk = b"".join(line + b"\n" for line in lines if not _is_noise(line))
        self._hide(chunk, is_stdout=is_stdout)

    def end(self) -> None:
        """Pass on what was held back."""
        late, self._maybe_mark, self._mark = self._maybe_mark, b"", b""
        self.add(late, is_stdout=False)
        rest = b"" if _is_noise(self._unfinished) else self._unfinished
        self._unfinished = b""
        self._hide(rest, is_stdout=False)
        for is_stdout, held in self._held.items():
            self._emit(held, is_stdout=is_stdout)
        self._held = {True: b"", False: b""}

    def text(self) -> str:
        return self._stdout.decode("utf-8", "replace")

    def last_lines(self) -> list[str]:
        return self._all.decode("utf-8", "replace").splitlines()[-LAST_LINES:]

    def _without_mark(self, chunk: bytes) -> bytes:
        """Return what is not about the end of the command; in a container, that is said twice."""
        text, before = self._maybe_mark + chunk, b""
        while (at := text.find(self._mark)) >= 0:
            line, newline, after = text[at + len(self._mark) :].partition(b"\n")
            before += text[:at]
            if not newline:
                self._maybe_mark = text[at:]
                return before
            if self.exit_code is None and line.isdigit():
                self.exit_code = int(line)
                self.on_end()
            text = after
        keep = _start_of_any([self._mark], text)
        self._maybe_mark = text[len(text) - keep :]
        return before + text[: len(text) - keep]

    def _hide(self, chunk: bytes, *, is_stdout: bool) -> None:
        text = self._held[is_stdout] + chunk
        for secret in self._hidden:
            text = text.replace(secret, b"***")
        keep = _start_of_any(self._hidden, text)
        self._held[is_stdout] = text[len(text) - keep :]
        self._emit(text[: len(text) - keep], is_stdout=is_stdout)

    def _emit(self, chunk: bytes, *, is_stdout: bool) -> None:
        if not chunk:
            return
        for kept in (self._stdout, self._all) if is_stdout else (self._all,):
            kept.extend(chunk)
            if len(kept) > 2 * MOST_OUTPUT:
                del kept[:-MOST_OUTPUT]
        if self._on_output is not None:
            self._on_output(chunk)


def _is_noise(line: bytes) -> bool:
    return line.startswith(_NO_TERMINAL) or line == b"logout"


def _start_of_any(secrets: Sequence[bytes], text: bytes) -> int:
    """Return how many bytes at the end of a text may be the start of a secret."""
    longest = min(len(text), len(secrets[0]) - 1) if secrets else 0
    sizes = (size for size in range(longest, 0, -1) if any(one.startswith(text[-size:]) for one in secrets))
    return next(sizes, 0)


async def execute(argv: Sequence[str], output: CommandOutput, *, timeout_s: float, given: bytes = b"") -> int:
    """Run a program and return its code; raise asyncio.TimeoutError after it was given up."""
    running = _Running(argv, output, has_input=bool(given))
    try:
        await asyncio.wait_for(running.finish(given), timeout_s)
    finally:
        left_behind = running.process.poll() is None
        running.close()
        output.end()
    return (output.exit_code if left_behind else running.process.returncode) or 0


class _Running:
    """One process and the readers of its pipes in the event loop."""

    def __init__(self, argv: Sequence[str], output: CommandOutput, *, has_input: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for muster, which ends what it started
            )
        except OSError as problem:
            raise RemoteError(
                f"{argv[0]} cannot be started on this computer ({problem.strerror}): install it, or fix that"
            ) from None
        self._readers: dict[int, asyncio.Future[None]] = {}
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            self._read(stream.fileno(), is_stdout=stream is self.process.stdout)

    async def finish(self, given: bytes) -> None:
        if given:
            await self._write(given)
        ends = asyncio.Event()
        self._output.on_end = ends.set
        waits = [asyncio.ensure_future(self._exited()), asyncio.ensure_future(ends.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(waits[:1], timeout=LEFT_BEHIND_S)
        finally:
            for wait in waits:
                wait.cancel()
        if self.process.poll() is not None:
            await asyncio.wait(self._readers.values(), timeout=LATE_OUTPUT_S)

    def close(self) -> None:
        """Kill what still runs, and lets go of the pipes."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()  # at once after this signal
        for fd in self._readers:
            self._loop.remove_reader(fd)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self, fd: int, *, is_stdout: bool) -> None:
        os.set_blocking(fd, False)
        ended = self._readers[fd] = self._loop.create_future()

        def read() -> None:
            try:
                chunk = os.read(fd, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if chunk:
                self._output.add(chunk, is_stdout=is_stdout)
                return
            self._loop.remove_reader(fd)
            if not ended.done():
                ended.set_result(None)

        self._loop.add_reader(fd, read)

    async def _write(self, given: bytes) -> None:
        """Write all of it; one that does not read it is as good as one that does."""
        assert self.process.stdin is not None
        fd = self.process.stdin.fileno()
        os.set_blocking(fd, False)
        with contextlib.suppress(BrokenPipeError):
            while given:
                try:
                    given = given[os.write(fd, given) :]
                except BlockingIOError:
                    await asyncio.sleep(POLL_S)
        self.process.stdin.close()

    async def _exited(self) -> None:
        try:
            fd = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):  # another system, or an old one
            while self.process.poll() is None:
                await asyncio.sleep(POLL_S)
            return
        ended = asyncio.Event()
        self._loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            self._loop.remove_reader(fd)
            os.close(fd)
        self.process.wait()
