"""Run a real cluster on this computer by `muster up` and `muster down`, and read its state.

For the soak and the end-to-end tests. Free ports, a home and a token of its own; everything is known and
ended by process id, so another Ray on the computer is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import PublishedStatus, read_record, read_status
from muster.host.processes import ProcessInfo, table
from muster.providers.process.records import NodeDirectory, NodeRecord

T = TypeVar("T")
COMMAND_S = 240.0  # a head waits up to 120 s for itself on a busy computer, and the monitor comes after it
POLL_S = 0.1
TRIES = 3  # of `up`: Ray gives its own parts 30 s, whatever else the computer has to do
_GAVE_UP = "timed out during startup"


class LiveCluster:
    """The cluster of one file; `folder` has the file, the home and files of tests."""

    def __init__(
        self,
        folder: Path,
        config: str,
        *,
        name: str,
        token: str = "",
        settings: Mapping[str, str] | None = None,  # of Ray, for all its nodes
    ) -> None:
        self.name, self.folder = name, folder
        self.file = folder / "cluster.yaml"
        self.edit(config)
        self.home = ClusterHome(folder / "home" / "clusters" / name)
        self.home.path.mkdir(parents=True, mode=0o700)
        self._own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        self._own.update({**(settings or {}), "MUSTER_HOME": str(folder / "home")})
        self._token = token
        self.processes = ProcessTracker(self)

    def edit(self, config: str) -> None:
        """Replace the file as a whole, as an editor does."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(config, encoding="utf-8")
        os.replace(fresh, self.file)

    # -- what users run ---------------------------------------------------------------------------

    def muster(self, *words: str, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        return self._run_command([sys.executable, "-m", "muster.cli.main", *words], self._own, timeout_s)

    def muster_json(self, *words: str) -> dict[str, Any]:
        """Return what a command prints with --json; `muster status` exits with 3 when it is out of date."""
        done = self.muster(*words, "--json")
        if done.returncode not in (0, 3):
            raise RuntimeError(f"muster {' '.join(words)}: {done.stdout}{done.stderr}")
        return dict(json.loads(done.stdout))

    def ray(self, *words: str) -> str:
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        return self._run_command(command, self.environment(), COMMAND_S).stdout

    def up(self) -> str:
        """Start the cluster, or what is missing of it; returns the command's output."""
        for _ in range(TRIES):
            self._keep_token()
            done = self.muster("up", str(self.file), "--yes")
            if _GAVE_UP not in done.stderr:
                break
        if done.returncode != 0:
            raise RuntimeError(f"muster up failed: {done.stdout}{done.stderr}\n{self.log_tail()}")
        return done.stdout

    def _keep_token(self) -> None:
        """Write the token again after a start that failed, which removes it."""
        if self._token and not self.home.token.exists():
            self.home.token.touch(mode=0o600)
            self.home.token.write_text(self._token, encoding="ascii")

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.muster("down", self.name, "--yes")

    def environment(self) -> dict[str, str]:
        """Return the environment for drivers and tools."""
        record = read_record(self.home)
        if record is None:
            raise RuntimeError(f"{self.name} is not up")
        return {**self._own, **record.auth, "RAY_ADDRESS": record.address}

    @property
    def address(self) -> str:
        return self.environment()["RAY_ADDRESS"]

    def log_tail(self, lines: int = 30) -> str:
        """Return the end of the monitor's log."""
        try:
            text = self.home.monitor_log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "the monitor has logged nothing"
        return "\n".join(text.splitlines()[-lines:])

    # -- what is there ----------------------------------------------------------------------------

    def published(self) -> PublishedStatus:
        status = read_status(self.home)
        if status is None:
            raise RuntimeError(f"{self.name}: no status yet\n{self.log_tail()}")
        return status

    def monitor_pid(self) -> int | None:
        record = read_record(self.home)
        return None if record is None else record.monitor_pid

    def node_records(self) -> list[NodeRecord]:
        """Return the records of the process provider, nodes that ended included."""
        return NodeDirectory(self.home.nodes).records() if self.home.nodes.is_dir() else []

    def temp_root(self) -> str:
        """Return the directory of all sockets and logs of its nodes; "" when there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.home.nodes / "temp_dir").read_text(encoding="utf-8").strip()
        return ""

    # -- what happens to it -----------------------------------------------------------------------

    def kill_node(self, cloud_id: str) -> int:
        """Kill everything in the node's session, as a loss of power would; returns how many processes."""
        record = NodeDirectory(self.home.nodes).find(cloud_id)
        if record is None or record.process is None:
            return 0
        leader = record.process.pid
        killed = [one for one in table() if one.is_alive and one.session == leader]
        for one in sorted(killed, key=lambda process: process.pid != leader):
            _kill(one.pid)
        return len(killed)

    def kill_monitor(self) -> int | None:
        """Kill the monitor, and only the monitor: what it started continues."""
        pid = self.monitor_pid()
        if pid is not None:
            _kill(pid)
        return pid

    def _run_command(
        self, command: list[str], env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**env, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )


class ProcessTracker:
    """Records every process a cluster ever had, by id and start time."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._seen: dict[tuple[int, str], str] = {}
        self._words: set[str] = {str(cluster.home.path)}

    def update(self) -> None:
        """Find processes by the session of each node, the monitor's id, and paths in the command."""
        root = self._cluster.temp_root()
        if root:
            self._words.add(root)
        sessions = {one.process.pid for one in self._cluster.node_records() if one.process is not None}
        pids = {self._cluster.monitor_pid()}
        for one in table():
            if one.session in sessions or one.pid in pids or _names(one.pid, self._words):
                self._seen.setdefault((one.pid, one.started), one.name)

    def living(self) -> dict[int, str]:
        """Return process ids and names, without this process and its callers."""
        ours = _ancestors()
        self.update()
        now = {(one.pid, one.started): one for one in table() if one.is_alive}
        return {
            pid: self._seen[pid, started]
            for pid, started in self._seen
            if (pid, started) in now and pid not in ours
        }

    def __len__(self) -> int:
        return len(self._seen)


def wait_for(
    read: Callable[[], T], happens: Callable[[T], object], what: str, patience_s: float = 120.0
) -> T:
    """Return the first value for which `happens`; fails with the last value."""
    give_up = time.monotonic() + patience_s
    while True:
        seen = read()
        if happens(seen):
            return seen
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {patience_s:.0f} s: {what}; last seen: {seen}")
        time.sleep(POLL_S)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _names(pid: int, words: Iterable[str]) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return any(word in command for word in words)


def _ancestors() -> set[int]:
    """Return this process and those that called it."""
    by_pid: dict[int, ProcessInfo] = {one.pid: one for one in table()}
    found, pid = set(), os.getpid()
    while pid in by_pid and pid not in found:
        found.add(pid)
        pid = by_pid[pid].parent
    return found
