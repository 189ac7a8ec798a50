"""Set the head up over its command runner: files, commands, muster, Ray, and the monitor that stays running.

Called by `up`. Each step is reported before it begins; a failure says which step of which node it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lifecycle.head_file import HeadFile, head_commands, ray_program
from muster.autoscaler.lifecycle.open import OpenCluster
from muster.autoscaler.status_files import ClusterRecord, PublishedStatus
from muster.base import codec
from muster.base.clock import Clock
from muster.cluster.model import NodeKind
from muster.config.document import Document
from muster.config.node_launch import RuntimeHashes, container_of
from muster.config.schema import ClusterConfig
from muster.errors import ClusterError, MusterError, RemoteError
from muster.providers.kind import HeadPolicy
from muster.providers.machines import Machine
from muster.providers.rack.host_lock import LockHolder, retake_line, stop_line
from muster.remote.container import program_of
from muster.remote.install import InstallRequest, MusterInstaller
from muster.remote.ledger_copy import push_ledger
from muster.remote.node_setup import MachineSetup, Surroundings, title_of
from muster.remote.runner import CommandRunner, RunWhere
from muster.remote.service import HEAD_FILE, HEAD_PRICES, OWN_HOME, SESSIONS, HeadService, install_service
from muster.remote.steps import HEAD_START_S, final_tags, head_setup

READY_S = 180.0
LOOK_S = 1.0
_TEXT = "MUSTER_TEXT"
_HOME = 'echo "muster-home=$HOME"'


@dataclass(frozen=True)
class HeadTarget:
    """The head that is set up, and what it must know."""

    machine: Machine
    address: str
    file: HeadFile
    token: str  # the text itself: it travels as a secret
    hashes: RuntimeHashes


class HeadSetup:
    """Runs the steps on one head: those of every node, and its files, muster, Ray and the monitor."""

    home = ""  # of the cluster, on the head
    python = ""

    def __init__(
        self,
        session: OpenCluster,
        target: HeadTarget,
        runner: CommandRunner,
        show_output: Callable[[bytes], None] | None = None,
    ) -> None:
        self.session, self.target, self.runner = session, target, runner
        config = session.config
        self._setup = head_setup(config, head_commands(config), self.head_ip, target.hashes)
        self.node = MachineSetup(
            target.machine.node_id,
            runner,
            session.port,
            session.home.path / "install",
            timing=session.head_timing(),
            surroundings=Surroundings(clock=session.context.clock),
        )
        self.node.on_work = lambda kind, work: self._begin(title_of(kind, work))
        self.node.on_output = show_output or self.node.on_output

    @property
    def head_ip(self) -> str:
        return self.target.address.rpartition(":")[0]

    async def wait_ready(self) -> None:
        """Wait until the machine runs commands; a cloud's boots for a minute or two."""
        self._begin("waiting for the machine")
        try:
            await self.node.wait_ready()
        except RemoteError as error:
            raise ClusterError(f"could not reach the head: {error}") from error
        await self._note_home(RunWhere.HOST)
        if self._setup.has_container:  # a container that runs already has another HOME
            with contextlib.suppress(MusterError, TimeoutError):
                await self._note_home(RunWhere.AUTO)

    async def _note_home(self, where: RunWhere) -> None:
        printed = await self.runner.run(_HOME, where=where)
        homes = [line[12:] for line in printed.splitlines() if line.startswith("muster-home=/")]
        if not homes:
            raise ClusterError(f"the user of the head has no HOME directory: {printed.strip()[-100:]!r}")
        self.home = f"{homes[-1].rstrip('/')}/.muster/clusters/{self.session.config.cluster_name}"

    async def claim_home(self) -> None:
        """Mark the cluster's directory on the head as one that is removed as a whole."""
        if self._setup.has_container:
            return  # with which the directory goes
        mark, node = shlex.quote(f"{self.home}/{OWN_HOME}"), shlex.quote(self.target.machine.node_id)
        await self.runner.run(f'umask 077; mkdir -p "$(dirname {mark})" && echo {node} > {mark}')

    async def prepare(self, *, is_restart_only: bool) -> None:
        """Copy files and run the commands that are needed once; a restart only looks for the container."""
        known = final_tags(self.target.hashes) if is_restart_only else {}
        await self.node.prepare(self._setup, known)
        if self._setup.has_container:
            await self._note_home(RunWhere.AUTO)

    async def write_files(self) -> None:
        """Write what the monitor reads: its cluster file, the keys to the workers, and Ray's token."""
        self._begin("writing the cluster's files")
        await self._write(HEAD_FILE, self.target.file.text)
        # A token that is there stays: the workers of a running cluster have it.
        await self._write(f"{self.home}/auth_token", self.target.token, is_kept=True)
        for there, here in self.target.file.keys.items():
            await self._write(there, _key_text(here))
        if self.target.file.prices:
            await self._write(HEAD_PRICES, Document.text_of(Path(self.target.file.prices)))

    async def install_muster(self) -> None:
        ray = ray_program(self.session.config.head_start_ray_commands)
        python = f"{ray.rpartition('/')[0]}/python" if "/" in ray else "python3"
        self._begin("installing muster")
        request = InstallRequest(directory=self.home, python=python)
        done = await MusterInstaller(self.runner, request, self._begin).run()
        self.python = done.python

    async def start_ray(self) -> None:
        """Start Ray on the head; first stop what an earlier start left there."""
        holder = LockHolder(cluster="", cloud_id=self.target.machine.node_id, launcher="", taken_at=0.0)
        note = shlex.quote(f"{self.home}/{SESSIONS}")  # from now on no supervisor starts it beside us
        await self.runner.run(f"ls -d /tmp/ray/session_* > {note} 2>/dev/null; true")
        await self.runner.run(stop_line("/tmp", holder), timeout_s=HEAD_START_S)
        await self.node.start(msgspec.structs.replace(self._setup, start_environment=self.environment()))
        await self.runner.run(f"rm -f {note}")

    async def start_monitor(self) -> str:
        """Start the monitor and what keeps it running; returns a note for the user, or ""."""
        self._begin("starting the monitor")
        await self.runner.run(f"rm -f {shlex.quote(self.home)}/status.json")  # of an earlier monitor
        installed = await install_service(self.runner, self.service())
        return installed.note

    def service(self) -> HeadService:
        file = HEAD_FILE.replace("~", self.home.partition("/.muster/")[0])
        options = (file, "--home", self.home, "--address", self.target.address)
        return HeadService(
            cluster=self.session.config.cluster_name,
            directory=self.home,
            python=self.python,
            command=(self.python, "-m", "muster", "monitor", *options),
            environment=self.environment(),
            boot_commands=head_commands(self.session.config),
            address=self.target.address,
            check=self._lock_check(),
            **container_fields(self.session.config),
        )

    def _lock_check(self) -> str:
        """Return the line by which the head of a rack takes its host again after a reboot; "" elsewhere."""
        config, machine = self.session.config, self.target.machine
        if self.session.kind.head is not HeadPolicy.HOST:
            return ""
        hashes = self.target.hashes
        holder = LockHolder(
            cluster=config.cluster_name,
            cloud_id=machine.node_id,
            launcher="its own head",
            taken_at=self.session.context.clock.now(),
            is_head=True,
            node_type=machine.node_type,
            tags={**machine.tags, **final_tags(hashes)},
        )
        return retake_line(config.provider.lock_dir, holder)

    async def shares_home(self, request: str) -> bool:
        """Return whether the record that was just written here is there, too: HOME is on a shared disk."""
        if self._setup.has_container:
            return False
        text = await self.runner.run(f"cat {shlex.quote(self.home)}/cluster.json 2>/dev/null || true")
        return request in text

    async def write_record(self, record: ClusterRecord) -> None:
        """Leave the record on the head, so that `muster down` works there, as after `exec --stop --tmux`."""
        if record.head is None or record.head.shares_home:
            return
        file = HEAD_FILE.replace("~", self.home.partition("/.muster/")[0])
        there = msgspec.structs.replace(record, config=file)
        await self._write(f"{self.home}/cluster.json", codec.encode_plain(there).decode())

    async def send_ledger(self) -> None:
        """Send the newest copy of the ledger that is here, so that a new head knows its machines."""
        name = self.session.config.cluster_name
        backups = self.session.home.backups
        if backups.is_dir():
            await push_ledger(self.runner, directory=self.home, cluster=name, source=backups)

    def environment(self) -> dict[str, str]:
        """Return what Ray and the monitor of this head are started with."""
        return {
            "RAY_HEAD_IP": self.head_ip,
            "RAY_CLOUD_INSTANCE_ID": self.target.machine.node_id,
            "RAY_NODE_TYPE_NAME": self.target.machine.node_type,
            "RAY_enable_autoscaler_v2": "1",
            **auth_of(self.home),
        }

    async def wait_for_monitor(self) -> None:
        """Wait until the monitor has seen the head's node run: from then on work can start."""
        self._begin("waiting for the monitor")
        clock: Clock = self.session.context.clock
        give_up = clock.monotonic() + READY_S
        while clock.monotonic() < give_up:
            status = await self._status()
            if status is not None and status.running(NodeKind.HEAD):
                return
            await asyncio.sleep(LOOK_S)
        log = f"{self.home}/monitor.log"
        tail = await self._tail(log) or await self._tail(f"{self.home}/supervisor.log")
        raise ClusterError(
            f"the monitor on the head did not report a running node within {READY_S:g} s",
            fix=(f"its last output: {tail or '(nothing)'} (its log: {log} there)"),
        )

    async def file_differs(self) -> bool:
        """Return whether the head's cluster file or prices are others than the user's files make now."""
        text = await self.runner.run(f"cat {HEAD_FILE} {HEAD_PRICES} 2>/dev/null || true")
        prices = self.target.file.prices and Document.text_of(Path(self.target.file.prices))
        return self.target.file.text.strip() not in text or prices.strip() not in text

    async def is_running(self) -> bool:
        """Return whether the monitor there runs and reports the head's node as running."""
        status = await self._status()
        if status is None or not status.running(NodeKind.HEAD):
            return False
        try:
            await self.runner.run(f"kill -0 {int(status.monitor_pid)}")
        except (MusterError, TimeoutError):
            return False
        return True

    async def running_workers(self) -> int:
        """Return how many workers the monitor there reports as running."""
        status = await self._status()
        return 0 if status is None else status.running(NodeKind.WORKER)

    async def _status(self) -> PublishedStatus | None:
        try:
            text = await self.runner.run(f"cat {shlex.quote(self.home)}/status.json 2>/dev/null || true")
            found = [line for line in text.splitlines() if line.startswith("{")]  # a profile may print, too
            return codec.convert(msgspec.json.decode(found[-1]), PublishedStatus) if found else None
        except (MusterError, TimeoutError, ValueError):
            return None  # asked again

    async def _tail(self, log: str) -> str:
        try:
            text = await self.runner.run(f"tail -n 3 {shlex.quote(log)} 2>/dev/null || true")
        except (MusterError, TimeoutError):
            return ""
        lines = text.strip().splitlines()
        return lines[-1] if lines else ""

    async def _write(self, there: str, text: str, *, is_kept: bool = False) -> None:
        """The text travels on standard input: it may hold keys."""
        target = f'"$HOME"/{shlex.quote(there[2:])}' if there.startswith("~/") else shlex.quote(there)
        line = f"[ -s {target} ] || {{ " if is_kept else "{ "
        line += (
            f'umask 077; mkdir -p "$(dirname {target})"; printf %s "${_TEXT}" > {target}.partial'
            f" && mv {target}.partial {target}; }}"
        )
        await self.runner.run(line, secrets={_TEXT: text})

    def _begin(self, step: str) -> None:
        self.session.context.report(self.target.machine.ip, step)


def container_fields(config: ClusterConfig) -> dict[str, Any]:
    """Return the fields of a HeadService about the head's container; none where there is none."""
    found = container_of(config, config.head_type, is_head=True)
    return {} if found is None else {"container": found.name, "container_program": program_of(found)}


def auth_of(home: str) -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{home}/{ClusterHome(Path()).token.name}"}


def _key_text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"the key {path} cannot be read ({error}): fix auth.ssh_private_key") from error
