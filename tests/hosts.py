"""Real hosts for tests: network namespaces with an address, sshd, HOME, /tmp and processes of their own.

A plugin of tests/conftest.py. `hosts` is one set of hosts for a test file: three, or `HOSTS = n` in the file.
The test is skipped, with the reason, where they cannot be made (they need Linux, root, and Debian's
openssh-server, rsync and iproute2). `python -m bench up` uses the class itself.

All hosts and the controller hang on a bridge in a namespace of its own, with no default route: nothing can
leave it, and every set may use the same addresses. Hosts see the files of this machine, except for what
PRIVATE lists: HOME, /tmp, /run, /dev/shm and a few more are each host's own (`host.path("/tmp/x")` is such a
file as seen from here), with this repository, its virtual environment and Python put back where they would be
hidden: absolute paths into .venv work on a host.

    def test_a_host_says_its_name(hosts):
        one = hosts[0]  # one.ip, one.name, one.home; the user is root, the key is hosts.key
        done = hosts.run_in_controller([*hosts.ssh(one), "hostname"])  # another process: muster, ssh, ray
        with hosts.inside():  # this thread: asyncio, sockets, and what it starts
            asyncio.run(SshRunner(...).run("hostname"))
        hosts.run_on(one, ["hostname"])  # without SSH: what init could do
        hosts.cut_off(one), hosts.reconnect(one)  # the cable
        hosts.power_off(one), hosts.boot(one)  # all processes end; /tmp, /run and /dev/shm are empty
        hosts.change_host_key(one)  # another machine at the same address
        assert hosts.commands(one) == []  # nothing runs there but sshd and its sessions
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
NET = "10.231.7"
CONTROLLER_IP = f"{NET}.254"
MOST_HOSTS = 250
PATIENCE_S = 90.0
NEEDS = {"ip": "iproute2", "sshd": "openssh-server", "ssh-keygen": "openssh-client", "rsync": "rsync"}
SEARCH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
USER_HOME = pwd.getpwuid(0).pw_dir
PRIVATE = (USER_HOME, "/tmp", "/var/tmp", "/run", "/dev/shm", "/var/spool/cron", "/var/lib/containers")
EMPTY_AFTER_BOOT = ("/tmp", "/run", "/dev/shm")
CLONE_NEWNET = 0x40000000
_numbers = itertools.count()

SSHD = """\
Port 22
ListenAddress {ip}
HostKey /run/muster/host_key
PidFile none
AuthorizedKeysFile /run/muster/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
MaxStartups 500
MaxSessions 100
SetEnv CONTAINERS_CONF=/run/muster/containers.conf
{extra}
"""
# podman's, where cgroups are as old as in the machines that run these tests.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""


class HostsMissing(Exception):
    """Says why hosts cannot be made here."""


@dataclass
class NamespaceHost:
    """One of the hosts; its processes end with `unshare`, the parent of its first one."""

    name: str
    namespace: str
    ip: str
    directory: Path
    unshare: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    sshd_options: str = ""  # more lines of sshd_config: "Banner /run/muster/banner"

    @property
    def home(self) -> Path:
        return self.path(USER_HOME)

    @property
    def sshd_log(self) -> Path:
        return self.directory / "sshd.log"

    def path(self, there: str) -> Path:
        """Return where a file of the host is, seen from here."""
        for private in PRIVATE:
            if there == private or there.startswith(private + "/"):
                return self.directory / _folder(private) / there[len(private) :].lstrip("/")
        raise ValueError(f"{there} is not the host's own; all hosts share it with this machine")


class Hosts(Sequence[NamespaceHost]):
    """A bridge, a controller and hosts; `close` ends every process in them and removes them."""

    def __init__(self, count: int, *, sshd_options: str = "") -> None:
        reason = why_not()
        if reason or count > MOST_HOSTS:
            raise HostsMissing(reason or f"at most {MOST_HOSTS} hosts have an address")
        remove_leftovers()
        self.prefix = f"muster-{os.getpid()}-{next(_numbers)}"
        self.directory = Path(tempfile.mkdtemp(prefix="muster-hosts-"))
        self.key = self.directory / "id_ed25519"
        self._hosts: list[NamespaceHost] = []
        try:
            _make_key(self.key)
            self._make_network()
            for _ in range(count):
                self._add(sshd_options)
            self.wait_for_sshd(self._hosts)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, index: Any) -> Any:
        return self._hosts[index]

    def __len__(self) -> int:
        return len(self._hosts)

    # ---- running things

    @property
    def controller(self) -> str:
        """The name of the namespace from which users reach the hosts."""
        return f"{self.prefix}-ctl"

    def in_controller(self, argv: Sequence[str]) -> list[str]:
        return [*_in_network(self.controller), *map(str, argv)]

    def run_in_controller(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program where it reaches the hosts; the options are those of `subprocess.run`."""
        options = {"capture_output": True, "text": True, "timeout": PATIENCE_S} | options
        return subprocess.run(self.in_controller(argv), check=False, **options)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Put this thread, and what it starts, into the controller's network; other threads stay outside."""
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self.controller}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def ssh(self, host: NamespaceHost) -> list[str]:
        """Return the start of a plain ssh command for tests that look at a host, not at muster."""
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        arguments = [part for option in options for part in ("-o", option)]
        return ["ssh", "-F", "none", "-i", str(self.key), *arguments, f"root@{host.ip}"]

    def run_on(
        self, host: NamespaceHost, argv: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host without SSH; it is there as one that init started."""
        enter = ["nsenter", "--target", str(self._first_process(host)), "--all", f"--wd={USER_HOME}"]
        clean = [
            "env",
            "-i",
            f"HOME={USER_HOME}",
            f"PATH={SEARCH}",
            "CONTAINERS_CONF=/run/muster/containers.conf",
        ]
        options = {"capture_output": True, "text": True, "timeout": PATIENCE_S} | options
        return subprocess.run([*enter, *clean, *map(str, argv)], check=False, **options)

    def processes(self, host: NamespaceHost) -> list[psutil.Process]:
        """Return what runs on a host, without sshd and its sessions."""
        if host.unshare is None:
            return []
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(host.unshare.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() != "sshd" and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def commands(self, host: NamespaceHost) -> list[str]:
        """Return the command lines of what runs on a host, without sshd and its sessions."""
        lines = []
        for process in self.processes(host):
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(shlex.join(process.cmdline()))
        return sorted(lines)

    # ---- misfortunes

    def cut_off(self, host: NamespaceHost) -> None:
        _call("ip", "-n", host.namespace, "link", "set", "eth0", "down")

    def reconnect(self, host: NamespaceHost) -> None:
        _call("ip", "-n", host.namespace, "link", "set", "eth0", "up")

    def power_off(self, host: NamespaceHost) -> None:
        """End every process of a host at once."""
        if host.unshare is not None:
            host.unshare.kill()  # its child, the first process of the host, gets the same signal
            host.unshare.wait(PATIENCE_S)
            host.unshare = None
        give_up = time.monotonic() + PATIENCE_S
        while pids := _output("ip", "netns", "pids", host.namespace).split():
            assert time.monotonic() < give_up, f"processes of {host.name} do not end: {pids}"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)

    def boot(self, host: NamespaceHost) -> None:
        """Start sshd again; a test that wants cron's @reboot or a unit plays init with `run_on`."""
        self.power_off(host)
        for folder in EMPTY_AFTER_BOOT:
            shutil.rmtree(host.path(folder), ignore_errors=True)
        self._start(host)
        self.wait_for_sshd([host])

    def change_host_key(self, host: NamespaceHost) -> None:
        (host.directory / "host_key").unlink()
        self.boot(host)

    def wait_for_sshd(self, hosts: Sequence[NamespaceHost]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        with self.inside():
            for host in hosts:
                while not _answers(host.ip):
                    running = host.unshare is not None and host.unshare.poll() is None
                    if not running or time.monotonic() > give_up:
                        raise HostsMissing(f"sshd of {host.name} did not start: {host.sshd_log.read_text()}")
                    time.sleep(0.02)

    def close(self) -> None:
        for host in self._hosts:
            self.power_off(host)
        for host in self._hosts:
            _remove_cgroups(host)
        for namespace in _namespaces(self.prefix + "-"):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- making them

    def _make_network(self) -> None:
        switch = f"{self.prefix}-sw"
        _call("ip", "netns", "add", switch)
        _call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "br0", "up")
        self._connect(self.controller, CONTROLLER_IP, "ctl")

    def _connect(self, namespace: str, ip: str, port: str) -> None:
        switch = f"{self.prefix}-sw"
        _call("ip", "netns", "add", namespace)
        add = f"link add eth0 netns {namespace} type veth peer name {port} netns {switch}"
        _call("ip", *add.split())
        _call("ip", "-n", namespace, "addr", "add", f"{ip}/24", "dev", "eth0")
        _call("ip", "-n", namespace, "link", "set", "lo", "up")
        _call("ip", "-n", namespace, "link", "set", "eth0", "up")
        _call("ip", "-n", switch, "link", "set", port, "master", "br0", "up")

    def _add(self, sshd_options: str) -> None:
        number = len(self._hosts) + 1
        namespace = f"{self.prefix}-h{number}"
        host = NamespaceHost(f"h{number}", namespace, f"{NET}.{number}", self.directory / f"h{number}")
        host.sshd_options = sshd_options
        host.directory.mkdir()
        self._hosts.append(host)
        self._connect(namespace, host.ip, f"p{number}")
        self._start(host)

    def _start(self, host: NamespaceHost) -> None:
        self._write_run_directory(host)
        script = "set -e\n" + "\n".join(map(shlex.join, _mounts(host)))
        script += f"\nhostname {host.name}\nexec {_program('sshd')} -D -e -f /run/muster/sshd_config\n"
        # With the thread that started them the hosts end too: a killed test leaves no process behind.
        alone = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child"]
        argv = ["setpriv", "--pdeathsig", "KILL", *_in_network(host.namespace), "unshare", *alone]
        clean = {"PATH": SEARCH, "HOME": USER_HOME}
        with host.sshd_log.open("ab") as log:
            host.unshare = subprocess.Popen(
                [*argv, "bash", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean
            )

    def _write_run_directory(self, host: NamespaceHost) -> None:
        key = host.directory / "host_key"
        if not key.exists():
            _make_key(key)
        run = host.path("/run") / "muster"
        run.mkdir(parents=True, exist_ok=True)
        (run.parent / "sshd").mkdir(exist_ok=True)
        shutil.copy(key, run)
        shutil.copy(f"{self.key}.pub", run / "authorized_keys")
        (run / "sshd_config").write_text(SSHD.format(ip=host.ip, extra=host.sshd_options))
        (run / "containers.conf").write_text(CONTAINERS)

    def _first_process(self, host: NamespaceHost) -> int:
        assert host.unshare is not None, f"{host.name} is off"
        return psutil.Process(host.unshare.pid).children()[0].pid


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Hosts for the tests of one file: three, or as many as its HOSTS says."""
    try:
        made = Hosts(getattr(request.module, "HOSTS", 3))
    except HostsMissing as missing:
        pytest.skip(f"no hosts in network namespaces: {missing}")
    try:
        yield made
    finally:
        made.close()


def why_not() -> str:
    """Return why no hosts can be made here, or nothing."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "they need Linux and root"
    for program, package in NEEDS.items():
        if shutil.which(program, path=SEARCH) is None:
            return f"{program} is missing (apt-get install {package})"
    trial = f"muster-{os.getpid()}-{next(_numbers)}-try"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", trial], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"no namespace can be made ({made.stderr.strip()})"


def remove_leftovers() -> None:
    """Remove the namespaces of test processes that were killed; their hosts' processes ended with them."""
    for namespace in _namespaces("muster-"):
        owner = re.match(r"muster-(\d+)-", namespace)
        if owner and not psutil.pid_exists(int(owner[1])):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _mounts(host: NamespaceHost) -> list[list[str]]:
    """Return the commands that hide this machine's directories behind the host's own."""
    commands = []
    if shutil.which("podman", path=SEARCH):  # which would make it where it is not hidden
        Path("/var/lib/containers").mkdir(parents=True, exist_ok=True)
    for private in PRIVATE:
        own = host.directory / _folder(private)
        own.mkdir(parents=True, exist_ok=True)
        own.chmod(0o1777 if private.endswith(("tmp", "shm")) else 0o700 if private == USER_HOME else 0o755)
        if not Path(private).is_dir():
            continue
        for kept in _kept():
            if kept.is_relative_to(private) and kept != Path(private):
                back = own / kept.relative_to(private)
                back.mkdir(parents=True, exist_ok=True)
                commands.append(["mount", "--rbind", str(kept), str(back)])
    hidden = [one for one in PRIVATE if Path(one).is_dir()]
    # /tmp last: it may hide the directory from which the others are mounted.
    for private in sorted(hidden, key=host.directory.is_relative_to):
        commands.append(["mount", "--rbind", str(host.directory / _folder(private)), private])
    return commands


def _kept() -> list[Path]:
    """Return what hosts need of this machine's directories: the repository, its environment, Python."""
    python = Path(sys.executable).resolve().parents[1]
    return sorted({ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve(), python})


def _folder(private: str) -> str:
    return private.strip("/").replace("/", "_")


def _remove_cgroups(host: NamespaceHost) -> None:
    """Remove what containers that were killed with their host have left in this machine's cgroups."""
    give_up = time.monotonic() + 10.0  # the last of their processes may still be releasing its memory
    for container in (host.path("/var/lib/containers") / "storage" / "overlay-containers").glob("*"):
        while left := list(Path("/sys/fs/cgroup").glob(f"*/libpod_parent/libpod-{container.name}")):
            for group in left:
                for folder in (*group.glob("*/"), group):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            if time.monotonic() > give_up:
                return
            time.sleep(0.01)


def _in_network(namespace: str) -> list[str]:
    """Return what starts a program in a network; unlike `ip netns exec`, it leaves the cgroups in /sys."""
    return ["nsenter", f"--net=/run/netns/{namespace}"]


def _namespaces(start: str) -> list[str]:
    listed = _output("ip", "netns", "list").splitlines()
    return [line.split()[0] for line in listed if line.startswith(start)]


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def _make_key(path: Path) -> None:
    _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))


def _program(name: str) -> str:
    found = shutil.which(name, path=SEARCH)
    assert found is not None, name
    return found  # sshd insists on an absolute path


def _call(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostsMissing(f"{shlex.join(argv)} failed: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace could not be entered")


def _answers(ip: str) -> bool:
    try:
        with socket.create_connection((ip, 22), timeout=2.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
