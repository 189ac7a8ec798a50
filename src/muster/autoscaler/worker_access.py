"""Imported lazily: how the installer on the head reaches the workers of any provider, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from muster.autoscaler.lifecycle.head_file import gcs_port, ray_program
from muster.base.ids import CloudId
from muster.cluster.plan import Install
from muster.config.schema import ClusterConfig
from muster.errors import Unreachable
from muster.providers.kind import HeadPolicy, kind_of
from muster.providers.machines import ClusterMachines, SshAccess
from muster.providers.rack.host_lock import LOCK
from muster.providers.v1.tags import TAG_MUSTER_HEAD
from muster.remote.lease import lease_line
from muster.remote.notices import notices_line
from muster.remote.runner import CommandRunner
from muster.remote.steps import NodeSetup, worker_setup

_TOKEN, _TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


class WorkerAccess:
    """A WorkerAccess implements `remote.installer.InstallAccess`; its calls may block."""

    def __init__(
        self,
        machines: ClusterMachines,
        config: Callable[[], ClusterConfig],
        *,
        head_ip: str,
        auth: Mapping[str, str],
        pins: Path,
    ) -> None:
        """Takes Ray's settings for its token as `auth`; workers get the token itself, as a secret."""
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
        """Raises KeyError for a node type that is not in the file any more."""
        config = self._config()
        token = self._auth.get(_TOKEN, "")
        if not token and self._auth.get(_TOKEN_PATH):
            token = Path(self._auth[_TOKEN_PATH]).read_text(encoding="ascii").strip()
        setup = worker_setup(
            config,
            node_type=action.node_type,
            cloud_id=action.cloud_id,
            head_ip=self._head_ip,
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
