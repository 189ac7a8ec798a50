"""A program run in a pseudo-terminal, and what its screen shows, through a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parents[3]


class Terminal:
    """Starts `python script *arguments` in a terminal of so many columns and lines."""

    def __init__(self, script, *arguments, columns=100, lines=40, **environment):
        self.screen = pyte.HistoryScreen(columns, lines, history=2000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._master = master
        kept = {
            key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self.process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={
                **kept,
                "TERM": "xterm-256color",
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
                **environment,
            },
            start_new_session=True,
        )
        os.close(slave)

    def read(self, timeout_s=0.1):
        """Take in what arrived; False once the program has ended and everything is read."""
        has_ended = self.process.poll() is not None  # asked first: its last words may come after a look
        ready, _, _ = select.select([self._master], [], [], timeout_s)
        if not ready:
            return not has_ended
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the last writer is gone
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def until(self, text, timeout_s=60.0):
        """Read on until the screen shows this."""
        end = time.monotonic() + timeout_s
        while not any(text in line for line in self.screen.display):
            if not self.read() or time.monotonic() > end:
                raise AssertionError(f"never saw {text!r}; the screen:\n" + "\n".join(self.screen.display))

    def finish(self, timeout_s=60.0):
        """Read to the end; the exit code."""
        end = time.monotonic() + timeout_s
        while self.read():
            assert time.monotonic() < end, "\n".join(self.screen.display)
        os.close(self._master)
        return self.process.wait(timeout=timeout_s)

    def __del__(self):
        if self.process.poll() is None:  # a test that failed must not leave its program to the next one
            self.process.kill()
            self.process.wait()

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)

    def page(self):
        """Everything that scrolled by, and the screen; without blank lines at the end."""
        above = ["".join(line[x].data for x in sorted(line)).rstrip() for line in self.screen.history.top]
        return "\n".join([*above, *(line.rstrip() for line in self.screen.display)]).rstrip().splitlines()
