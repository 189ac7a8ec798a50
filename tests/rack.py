"""A rack for tests of the launcher: hosts of tests/hosts.py, a cluster file about them, the real `muster`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.hosts import Hosts

BIN = Path(sys.executable).parent
PATIENCE_S = 240.0


class RackCluster:
    """A RackCluster is one cluster file, and the commands on it, run where the hosts are reached."""

    def __init__(self, hosts: Hosts, folder: Path, name: str = "rack") -> None:
        self.hosts, self.folder, self.name = hosts, folder, name
        self.file = folder / f"{name}.yaml"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "MUSTER_HOME": str(folder / "home"),
            "COLUMNS": "200",
        }

    def write(self, text: str = "", *, start: str = f"{BIN}/ray start --head", provider: str = "") -> None:
        """Writes the file; `start` is the head's only start command."""
        head, *workers = (host.ip for host in self.hosts)
        self.file.write_text(
            f"cluster_name: {self.name}\n"
            f"provider: {{type: local, head_ip: {head}, worker_ips: [{', '.join(workers)}]{provider}}}\n"
            f"auth: {{ssh_user: root, ssh_private_key: {self.hosts.key}}}\n"
            f"head_start_ray_commands: ['{start}']\n{text}",
            encoding="utf-8",
        )

    def run(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Runs `muster`; the word FILE stands for the cluster file."""
        return self.hosts.run_in_controller(self._argv(words), env=self.environment, timeout=timeout_s)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Starts `muster` and leaves it running."""
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

    def lock(self, index: int) -> Path:
        return self.hosts[index].path("/tmp/muster-host.lock")

    def left(self) -> dict[str, list[str]]:
        """Returns what is left on the hosts: processes, the lock, Ray's and muster's files."""
        found = {}
        for host in self.hosts:
            paths = [host.path("/tmp/muster-host.lock"), host.path("/tmp/ray")]
            paths += [
                host.home / name for name in (".muster", "ray_bootstrap_config.yaml", "ray_bootstrap_key.pem")
            ]
            there = [*self.hosts.commands(host), *(str(path) for path in paths if path.exists())]
            if there:
                found[host.name] = there
        return found


def wait_until(happens: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < give_up, f"it did not happen: {what}"
        time.sleep(0.05)


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Presses Ctrl-C and returns what the command has printed."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=PATIENCE_S)
