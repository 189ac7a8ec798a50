"""Imported lazily: how the head reaches its workers, for the installer and to copy changed `file_mounts`.

MountSync is a listener of the monitor, used where `file_mounts_sync_continuously` is set. It looks and copies
in a separate thread: neither a large directory nor a slow worker holds up a tick. Files come to the head by
`muster up` and `rsync-up`, or from whoever works there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from muster.autoscaler.lifecycle.head_file import gcs_port, ray_program
from muster.base.clock import Clock
from muster.base.ids import CloudId
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.cluster.model import NodeKind
from muster.cluster.plan import Install
from muster.cluster.ports import TickResult
from muster.cluster.states import InstanceState
from muster.config.schema import ClusterConfig
from muster.errors import Unreachable
from muster.host.call_threads import in_thread
from muster.providers.kind import HeadPolicy, kind_of
from muster.providers.machines import ClusterMachines, SshAccess
from muster.providers.rack.host_lock import LOCK
from muster.providers.v1.tags import TAG_MUSTER_HEAD
from muster.remote.lease import lease_line
from muster.remote.notices import notices_line
from muster.remote.runner import CommandRunner
from muster.remote.steps import NodeSetup, worker_setup

logger = logging.getLogger(__name__)

LOOK_S = 10.0
AT_ONCE = 32  # workers that are copied to at a time
CLOSE_S = 5.0
_TOKEN, _TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


class WorkerAccess:
    """Implements `remote.installer.InstallAccess`; its calls may block."""

    def __init__(
        self,
        machines: ClusterMachines,
        config: Callable[[], ClusterConfig],
        *,
        head_ip: str,
        auth: Mapping[str, str],
        pins: Path,
    ) -> None:
        """Take Ray's settings for its token as `auth`; workers get the token itself, as a secret."""
        self._machines = machines
        self._config, self._head_ip, self._auth, self._pins = config, head_ip, auth, pins

    def tags(self, node: str) -> Mapping[str, str]:
        return self._machines.tags(node)

    def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        """Tags a host of a rack with this head, too: an earlier one that comes back must see whose it is."""
        config = self._config()
        address = f"{self._head_ip}:{gcs_port(config.head_start_ray_commands)}"
        own = {TAG_MUSTER_HEAD: address} if _is_host(config) else {}
        self._machines.set_tags(node, {**tags, **own})

    def is_gone(self, node: str) -> bool:
        return self._machines.is_gone(node)

    def setup_of(self, action: Install) -> NodeSetup:
        """Raise KeyError for a node type that is not in the file any more."""
        config = self._config()
        token = self._auth.get(_TOKEN, "")
        if not token and self._auth.get(_TOKEN_PATH):
            token = Path(self._auth[_TOKEN_PATH]).read_text(encoding="ascii").strip()
        setup = worker_setup(
            config,
            node_type=action.node_type,
            cloud_id=action.cloud_id,
            head_ip=self._head_ip,
            place=action.place,
            secrets={"RAY_AUTH_MODE": "token", _TOKEN: token} if token else {},
        )
        lock = f"{config.provider.lock_dir}/{LOCK}" if _is_host(config) else ""
        port, ray = gcs_port(config.head_start_ray_commands), ray_program(config.worker_start_ray_commands)
        return replace(
            setup,
            notices=notices_line(config, port=port, ray=ray),
            lease=lease_line(config, port=port, lock=lock),
        )

    def runner_of(self, cloud_id: CloudId) -> CommandRunner | None:
        try:
            access = SshAccess(pins=self._pins, is_inside=True, is_setup=True)
            return self._machines.runner(self._config(), cloud_id, access)
        except Unreachable:
            return None


def _is_host(config: ClusterConfig) -> bool:
    """Return whether machines are hosts of a list, which outlive their nodes and know what they have."""
    return kind_of(config).head is HeadPolicy.HOST


class MountAccess(Protocol):
    """Reaches workers; it may block, and may raise."""

    def runner_of(self, cloud_id: CloudId) -> CommandRunner | None: ...


def mounts_of(config: ClusterConfig) -> tuple[tuple[str, str], ...]:
    """Return (path here, path there) of what is copied."""
    mounts = [(here, there) for there, here in config.file_mounts.items()]
    return (*mounts, *((path, path) for path in config.cluster_synced_files))


def stamp_of(mounts: Sequence[tuple[str, str]]) -> str:
    """Return what changes with names, sizes and times of the files below; what is not there counts, too."""
    total = hashlib.sha256()
    for here, there in mounts:
        for line in (f"{here}\n{there}\n", *_entries(os.path.expanduser(here))):
            total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _entries(path: str) -> Iterator[str]:
    yield _entry(path)
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted([*names, *folders]):
            yield _entry(os.path.join(folder, name))


def _entry(path: str) -> str:
    try:
        found = os.lstat(path)
    except OSError:
        return f"{path} is not there\n"
    return f"{path}\n{found.st_mode} {found.st_size} {found.st_mtime_ns}\n"


class MountSync:
    """A TickListener that keeps the workers' copies of the mounts equal to the head's."""

    def __init__(self, access: MountAccess, config: Callable[[], ClusterConfig], clock: Clock) -> None:
        self._access, self._config, self._clock = access, config, clock
        self._copied: dict[CloudId, str] = {}  # worker -> stamp of what it has
        self._changes = OnChange(logger)
        self._looked_at = float("-inf")
        self._thread: threading.Thread | None = None

    def on_tick(self, tick: TickResult) -> None:
        config, now = self._config(), self._clock.monotonic()
        if not config.file_mounts_sync_continuously or now - self._looked_at < LOOK_S:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._looked_at = now
        runs, worker = InstanceState.RAY_RUNNING, NodeKind.WORKER
        found = [one for one in tick.ledger.instances.values() if one.state is runs and one.kind is worker]
        ids = [one.cloud_id for one in found if one.cloud_id]
        self._thread = threading.Thread(target=self.look, args=(config, ids), name="file-mounts", daemon=True)
        self._thread.start()

    def look(self, config: ClusterConfig, workers: Sequence[CloudId]) -> None:
        """Copy to the workers that do not have what is on the head now."""
        stamp = stamp_of(mounts_of(config))
        self._copied = {one: self._copied[one] for one in workers if one in self._copied}
        due = [one for one in workers if self._copied.get(one) != stamp]
        if due:
            asyncio.run(self._copy_all(config, due, stamp))

    def close(self) -> None:
        """Wait a moment for copies under way; the next monitor makes them again."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    async def _copy_all(self, config: ClusterConfig, workers: Sequence[CloudId], stamp: str) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(cloud_id: CloudId) -> None:
            async with gate:
                await self._copy(config, cloud_id, stamp)

        await asyncio.gather(*map(one, workers))

    async def _copy(self, config: ClusterConfig, cloud_id: CloudId, stamp: str) -> None:
        try:
            runner = await in_thread(lambda: self._access.runner_of(cloud_id))
            if runner is None:
                return
            try:
                for here, there in mounts_of(config):
                    if os.path.exists(os.path.expanduser(here)):
                        rules = config.rsync_exclude, config.rsync_filter
                        await runner.sync_up(here, there, exclude=rules[0], filters=rules[1])
            finally:
                await runner.close()
        except Exception as error:  # noqa: BLE001 - tried again at the next look; other workers get theirs
            text = f"file_mounts were not copied to {cloud_id}, and are tried again: {error_text(error)}"
            self._changes.log(logging.WARNING, cloud_id, text)
            return
        self._copied[cloud_id] = stamp
        self._changes.forget(cloud_id)
