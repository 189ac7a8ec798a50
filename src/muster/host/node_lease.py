"""Run in another process, on every worker: ends the node when its head has been silent for too long.

Standard library only, one file: `remote.lease` sends its text to hosts without muster. The head renews the
lease by answering a connection to its GCS: while that port answers, the node is of use, and the monitor there
is restarted when it dies; once it is gone, Ray's processes here cannot work any more, and nobody else would
end the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import syslog
import time

MARK = "RAY_CLOUD_INSTANCE_ID"  # every process of the node is started with it
LOOK_S = 15.0
CONNECT_S = 5.0
KILLED_S = 5.0
POWER_OFF = (
    ("sudo", "-n", "shutdown", "-h", "now"),
    ("shutdown", "-h", "now"),
    ("sudo", "-n", "poweroff"),
    ("poweroff",),
)
HOLD, DRAIN, END = "hold", "drain", "end"


def silence_after(silent_s: float, gap_s: float, *, is_answered: bool, look_s: float = LOOK_S) -> float:
    """Return for how long the head has been silent; time in which nobody could look does not count.

    A machine that was suspended, or stopped by a debugger, has not seen a silent head.
    """
    return 0.0 if is_answered else silent_s + min(gap_s, 2 * look_s + CONNECT_S)


def decide(silent_s: float, *, lease_s: float, drain_s: float) -> str:
    """Return HOLD, then DRAIN once the lease is over, then END when the drain has had its time."""
    if silent_s < lease_s:
        return HOLD
    return DRAIN if silent_s < lease_s + drain_s else END


def answers(address: str) -> bool:
    """Return whether something accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            return True
    except (OSError, ValueError):
        return False


def marked(entry: str) -> list[int]:
    """Return the processes that were started with `NAME=value`, without this one and its parents."""
    own = {os.getpid(), os.getppid()}
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in own:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as stream:
            if entry.encode() in stream.read().split(b"\0"):
                found.append(int(name))
    return found


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def free_lock(path: str, cloud_id: str) -> bool:
    """Remove the host's lock when it is this node's; the head of another cluster may have taken it over."""
    try:
        if os.lstat(os.path.dirname(path)).st_uid != os.geteuid():
            return False  # another user's
        with open(path, encoding="utf-8", errors="replace") as stream:
            if f'"cloud_id":"{cloud_id}"' not in stream.read():
                return False
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    except OSError:
        return False
    return True


def started(pid: int) -> tuple[int, int]:
    """Return what orders processes by their start; of two in one tick of the clock the ids decide."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return int(stream.read().rpartition(b")")[2].split()[19]), pid


def earlier_watchers(entry: str) -> list[int]:
    """Return the earlier watchers of this node, by their options; of two that start at once one stays."""
    found, own = [], started(os.getpid())
    for pid in marked(entry):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as stream:
            words = stream.read().split(b"\0")
            if b"--head" in words and b"--lease-s" in words and started(pid) < own:
                found.append(pid)
    return found


class Watch:
    """Follows one lease."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._silent_s = 0.0
        self._is_draining = False

    def run(self) -> int:
        """Return when the node was ended."""
        if self._given.id:
            send(earlier_watchers(f"{MARK}={self._given.id}"), signal.SIGTERM)
        last = time.monotonic()  # noqa: TID251 - no muster here to take a clock from
        while True:
            is_answered = any(answers(one) for one in self._given.head)
            now = time.monotonic()  # noqa: TID251
            gap_s, last = now - last, now
            self._silent_s = silence_after(
                self._silent_s, gap_s, is_answered=is_answered, look_s=self._given.look_s
            )
            todo = decide(self._silent_s, lease_s=self._given.lease_s, drain_s=self._given.drain_s)
            if todo == END:
                self._end()
                return 0
            if todo == DRAIN and not self._is_draining:
                self._log_line(f"the head has been silent for {self._silent_s:.0f} s: asking the node to end")
                send(self._processes(), signal.SIGTERM)
            self._is_draining = todo == DRAIN
            time.sleep(self._given.look_s)  # noqa: TID251

    def _processes(self) -> list[int]:
        return marked(f"{MARK}={self._given.id}") if self._given.id else []

    def _end(self) -> None:
        send(self._processes(), signal.SIGTERM)
        give_up = time.monotonic() + KILLED_S  # noqa: TID251
        while self._processes() and time.monotonic() < give_up:  # noqa: TID251
            time.sleep(0.2)  # noqa: TID251
        send(self._processes(), signal.SIGKILL)
        if self._given.lock:
            freed = free_lock(os.path.expanduser(self._given.lock), self._given.id)
            self._log_line("the host is released" if freed else "the host's lock is not this node's")
        if self._given.power_off:
            self._log_line("shutting the machine down")
            self._power_off()

    def _power_off(self) -> None:
        for command in POWER_OFF:
            with contextlib.suppress(OSError):
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return
        self._log_line(
            "this user may not shut the machine down: let it use `sudo shutdown` without a password"
        )

    def _log_line(self, line: str) -> None:
        sys.stderr.write(f"lease: {line}\n")
        sys.stderr.flush()
        syslog.syslog(f"muster: {line}")  # nobody reads the error stream of a machine without a head


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="node_lease", description=__doc__)
    made.add_argument("--head", action="append", required=True, metavar="HOST:PORT")
    made.add_argument("--lease-s", type=float, required=True)
    made.add_argument("--drain-s", type=float, default=60.0, help="how long running work may take to end")
    made.add_argument("--look-s", type=float, default=LOOK_S)
    made.add_argument("--id", default=os.environ.get(MARK, ""), help=f"default: {MARK}")  # noqa: TID251
    made.add_argument("--lock", default="", help="the lock of a host that is shared; freed at the end")
    made.add_argument("--power-off", action="store_true", help="shut the machine down at the end")
    return made


if __name__ == "__main__":
    sys.exit(Watch(parser().parse_args()).run())
