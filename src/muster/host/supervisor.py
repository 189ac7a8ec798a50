"""Run in another process: starts a program again whenever it ends, and ends it at SIGTERM.

`python -m muster.host.supervisor run DIRECTORY -- PROGRAM...` is started on a head, at once and after a
reboot by systemd or by cron's `@reboot`. `remote.service` makes this line, and the one that ends it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

from muster.base.clock import Clock, SystemClock
from muster.errors import LedgerLocked, MusterError
from muster.host.atomic_write import atomic_write
from muster.host.file_lock import FileLock
from muster.host.processes import ProcessIdentity, end_process, identify, is_alive

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
SETTLED_S = 60.0  # a program that ran for so long gets the first pause again
LOG_BYTES = 16 * 2**20
OLD_LOGS = 2
LOOK_S = 1.0  # how often the size of the log is looked at
END_S = 30.0  # a monitor finishes its tick
GONE_S = 20.0  # a server that does not answer for so long is gone
AGAIN_S = 120.0  # one that was started has so long to answer
HOLD = "ray_sessions"  # a file in the directory: somebody else starts the server just now


def pause_after(before_s: float, ran_s: float) -> float:
    """Return how long to wait before the program is started again; it doubles while it ends at once."""
    if ran_s >= SETTLED_S or before_s <= 0:
        return FIRST_PAUSE_S
    return min(2 * before_s, LONGEST_PAUSE_S)


class SupervisorState(Struct, frozen=True, kw_only=True):
    """The file by which a supervisor and its program are found again."""

    supervisor: ProcessIdentity | None
    program: ProcessIdentity | None = None
    starts: int = 0
    pause_s: float = 0.0


@dataclass(frozen=True)
class Supervised:
    """One program with its directory: state, lock and log are in there."""

    directory: Path
    program: tuple[str, ...]
    log: Path
    before: str = ""  # a script of sh that runs once, before the first start; after a reboot it starts Ray
    server: str = ""  # HOST:PORT of a server beside the program: Ray's GCS
    server_start: str = ""  # the script that starts it again when it is gone

    @property
    def state(self) -> Path:
        return state_file(self.directory)


def state_file(directory: Path) -> Path:
    return directory / "supervisor.json"


def read_state(directory: Path) -> SupervisorState | None:
    """Return None where no supervisor has run; what cannot be read names no process."""
    try:
        return msgspec.json.decode(state_file(directory).read_bytes(), type=SupervisorState)
    except (OSError, ValueError):
        return None


class ServerWatch:
    """Notices that a server is gone, or has not come up."""

    def __init__(self, answers: Callable[[], bool], clock: Clock) -> None:
        self._answers, self._clock = answers, clock
        self._since = clock.monotonic() + AGAIN_S - GONE_S  # when it answered last; it may be starting now

    def is_gone(self) -> bool:
        """Return True at most once in AGAIN_S: then it is to be started."""
        now = self._clock.monotonic()
        if self._answers():
            self._since = now
        elif now - self._since >= GONE_S:
            self._since = now + AGAIN_S - GONE_S
            return True
        return False


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_S):
            return True
    except OSError:
        return False


class Supervisor:
    """Keeps one program running until `stop` is called, from any thread or signal handler."""

    def __init__(self, what: Supervised, clock: Clock, log_line: Callable[[str], None]) -> None:
        self._what, self._clock, self._log_line = what, clock, log_line
        self._stopped = threading.Event()
        self._starts, self._pause_s = 0, 0.0
        self._own = identify(os.getpid())
        self._server = ServerWatch(lambda: is_listening(what.server), clock)

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Start the program until it is asked to stop; what an earlier supervisor left running is ended."""
        lock = FileLock.acquire(self._what.state, clock=self._clock, wait_s=0.0)
        try:
            known = read_state(self._what.directory)
            if known is not None and known.program is not None and is_alive(known.program):
                self._log_line(f"ending process {known.program.pid}, which an earlier supervisor has left")
                end_process(known.program, clock=self._clock, patience_s=END_S)
            if self._what.before:
                self._run_script(self._what.before)
            while not self._stopped.is_set():
                self._one_run()
                if not self._stopped.is_set():
                    self._stopped.wait(self._pause_s)
        finally:
            self._what.state.unlink(missing_ok=True)
            lock.release()

    def _run_script(self, script: str) -> None:
        with self._what.log.open("ab") as log:
            nothing = subprocess.DEVNULL
            ran = subprocess.run(["sh", script], stdout=log, stderr=log, stdin=nothing, check=False)
        self._log_line(f"{script} ended with {ran.returncode}")

    def _look_at_server(self) -> None:
        what = self._what
        if what.server and not (what.directory / HOLD).exists() and self._server.is_gone():
            self._log_line(f"nothing answers at {what.server}: starting it again")
            self._run_script(what.server_start)

    def _one_run(self) -> None:
        self._starts += 1
        began = self._clock.monotonic()
        try:
            with self._what.log.open("ab") as log:
                child = subprocess.Popen(
                    self._what.program,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self._note(None, 0.0)
            self._log_line(f"{self._what.program[0]} cannot be started: {error.strerror}; trying again")
        else:
            self._note(identify(child.pid), began)
            self._watch(child)
            how = "was ended" if self._stopped.is_set() else f"ended with {child.returncode}"
            self._log_line(f"process {child.pid} {how} after {self._clock.monotonic() - began:.0f} s")
        self._pause_s = pause_after(self._pause_s, self._clock.monotonic() - began)

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        while not self._stopped.is_set():
            try:
                child.wait(LOOK_S)
                return
            except subprocess.TimeoutExpired:
                rotate(self._what.log)
                self._look_at_server()
        child.terminate()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _note(self, program: ProcessIdentity | None, began: float) -> None:
        state = SupervisorState(
            supervisor=self._own, program=program, starts=self._starts, pause_s=self._pause_s
        )
        atomic_write(self._what.state, msgspec.json.encode(state), mode=0o600)


def rotate(log: Path, most: int = LOG_BYTES) -> None:
    """Move the content of a log that has grown too large into `.1`, `.2`; the writer keeps its open file.

    A writer that appends continues at the new end. A line written between copy and cut is lost.
    """
    try:
        if log.stat().st_size <= most:
            return
        for number in range(OLD_LOGS, 1, -1):
            younger = log.with_name(f"{log.name}.{number - 1}")
            if younger.exists():
                younger.replace(log.with_name(f"{log.name}.{number}"))
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)
    except OSError:
        return  # a full disk must not end the supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program until SIGTERM; a second supervisor of a directory ends at once, with code 0."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    given, program = _parser().parse_args(words[:end]), tuple(words[end + 1 :])
    directory, clock = Path(given.directory).expanduser(), SystemClock()
    if not program:
        log_line("no program is named: write it after --")
        return 2
    log = Path(given.log).expanduser() if given.log else directory / "monitor.log"
    server, server_start = given.server or ("", "")
    what = Supervised(directory, program, log, given.before, server, server_start)
    supervisor = Supervisor(what, clock, log_line)

    def on_signal(number: int, frame: FrameType | None) -> None:
        supervisor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        supervisor.run()
    except LedgerLocked:
        log_line("another supervisor runs already")
    except MusterError as error:
        log_line(str(error))
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="muster.host.supervisor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="keep the program after -- running")
    run.add_argument("directory")
    run.add_argument(
        "--log", default="", help="file of the program's output; default: monitor.log in DIRECTORY"
    )
    run.add_argument("--before", default="", help="a script that is run once, before the first start")
    run.add_argument(
        "--server", nargs=2, metavar=("HOST:PORT", "SCRIPT"), help="started again by SCRIPT when it is gone"
    )
    return parser


def log_line(line: str) -> None:
    sys.stderr.write(f"supervisor: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
