"""A rack for tests of the launcher: hosts of tests/hosts.py, a cluster file about them, the real `muster`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.hosts import USER_HOME, Hosts

from muster.providers.rack.host_lock import LOCK

BIN = Path(sys.executable).parent
PLACES = ("/tmp", USER_HOME)
NOT_OURS = re.compile(r"/\.bash_history$|/tmp/tmux-\d+/|/\.cache/|/__pycache__/|/tmp/image\.tar$")
KEPT = ("known_hosts", "ledger.db", "ledger.db.lock")
PATIENCE_S = 240.0


class RackCluster:
    """One cluster file, and the commands on it, run where the hosts are reached."""

    def __init__(self, hosts: Hosts, folder: Path, name: str = "rack") -> None:
        self.hosts, self.folder, self.name = hosts, folder, name
        self.file = folder / f"{name}.yaml"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "MUSTER_HOME": str(folder / "home"),
            "COLUMNS": "200",
        }

    def write(self, text: str = "", *, start: str = f"{BIN}/ray start --head", provider: str = "") -> None:
        """Write the file; `start` is the head's only start command."""
        head, *workers = (host.ip for host in self.hosts)
        self.file.write_text(
            f"cluster_name: {self.name}\n"
            f"provider: {{type: local, head_ip: {head}, worker_ips: [{', '.join(workers)}]{provider}}}\n"
            f"auth: {{ssh_user: root, ssh_private_key: {self.hosts.key}}}\n"
            f"head_start_ray_commands: ['{start}']\n{text}",
            encoding="utf-8",
        )

    def run(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run `muster`; the word FILE stands for the cluster file."""
        return self.hosts.run_in_controller(self._argv(words), env=self.environment, timeout=timeout_s)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start `muster` and leave it running."""
        return subprocess.Popen(
            self.hosts.in_controller(self._argv(words)),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=stdin,
            text=True,
            start_new_session=True,
        )

    def _argv(self, words: tuple[str, ...]) -> list[str]:
        return [
            sys.executable,
            "-m",
            "muster",
            *(str(self.file) if word == "FILE" else word for word in words),
        ]

    def signal(self, process: subprocess.Popen[str], number: int) -> None:
        """Send a signal to `muster` and to what it started in its process group, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def lock(self, index: int) -> Path:
        return self.hosts[index].path(f"/tmp/{LOCK}")

    def write_lock(self, index: int, text: str) -> None:
        """Write the lock of a host, as a cluster of the login user does."""
        self.lock(index).parent.mkdir(mode=0o700, exist_ok=True)
        self.lock(index).write_text(text, encoding="utf-8")

    def left(self, *, without_logs: bool = False) -> dict[str, list[str]]:
        """Return what is left: on hosts processes, crontab lines and files, here the token and records.

        A cluster that is down keeps its history here, the logs of its set-up, and the pinned keys of hosts.
        """
        found = {}
        for host in self.hosts:
            there = self.hosts.commands(host)
            files = [str(file) for folder in PLACES for file in _files(host.path(folder))]
            there += [file for file in files if not NOT_OURS.search(file)]
            spool = _files(host.path("/var/spool/cron"))
            # Cron reads no temporary file, which a crontab that is killed leaves.
            crontabs = [file.read_text() for file in spool if not file.name.startswith("tmp.")]
            there += [line for text in crontabs for line in text.splitlines() if line[:1] not in "#"]
            if there:
                found[host.name] = there
        files = [file for file in _files(self.folder / "home") if file.name not in KEPT]
        here = [str(file) for file in files if without_logs or file.suffix != ".log"]
        return {**found, "here": here} if here else found

    def clear(self) -> None:
        """End what a failed test has left on the hosts, and removes its files."""
        for host in self.hosts:
            for process in self.hosts.processes(host):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            lines = "crontab -r; rm -rf /tmp/muster* /tmp/ray ~/ray_bootstrap* ~/.muster"
            self.hosts.run_on(host, ["bash", "-c", lines])


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, which may lose folders meanwhile (`os.walk` leaves those out)."""
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def wait_until(happens: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < give_up, f"it did not happen: {what}"
        time.sleep(0.05)


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Press Ctrl-C and return what the command has printed."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=PATIENCE_S)
