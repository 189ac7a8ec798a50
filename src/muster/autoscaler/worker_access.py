"""Imported lazily: how the installer on the head reaches workers of any v1 provider, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from muster.autoscaler.launch.head_file import gcs_port, ray_program
from muster.base.ids import CloudId
from muster.cluster.plan import Install
from muster.config.schema import ClusterConfig
from muster.errors import Unreachable
from muster.providers.onprem.host_lock import LOCK
from muster.providers.runners import Reach, runner_of
from muster.providers.v1.failures import ShieldedProvider
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
        node_provider: Any,  # noqa: ANN401 - duck typed
        config: Callable[[], ClusterConfig],
        *,
        head_ip: str,
        auth: Mapping[str, str],
        pins: Path,
    ) -> None:
        """Takes Ray's settings for its token as `auth`; workers get the token itself, as a secret."""
        self._bare, self._v1 = node_provider, ShieldedProvider(node_provider)
        self._config, self._head_ip, self._auth, self._pins = config, head_ip, auth, pins

    def tags(self, node: str) -> Mapping[str, str]:
        return dict(self._v1.node_tags(node))

    def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        """Tags a host of a rack with this head, too: an earlier one that comes back must see whose it is."""
        own = {TAG_MUSTER_HEAD: self._address()} if self._config().provider.type == "local" else {}
        self._v1.set_node_tags(node, {**tags, **own})

    def is_gone(self, node: str) -> bool:
        return bool(self._v1.is_terminated(node))

    def setup_of(self, action: Install) -> NodeSetup:
        """Raises KeyError for a node type that is not in the file any more."""
        config = self._config()
        setup = worker_setup(
            config,
            node_type=action.node_type,
            cloud_id=action.cloud_id,
            head_ip=self._head_ip,
            secrets=self._secrets(),
        )
        lock = f"{config.provider.lock_dir}/{LOCK}" if config.provider.type == "local" else ""
        port, ray = gcs_port(config.head_start_ray_commands), ray_program(config.worker_start_ray_commands)
        return replace(
            setup,
            notices=notices_line(config, port=port, ray=ray),
            lease=lease_line(config, port=port, lock=lock),
        )

    def runner_of(self, cloud_id: CloudId) -> CommandRunner | None:
        try:
            return runner_of(self._config(), self._bare, cloud_id, Reach(pins=self._pins, is_inside=True))
        except Unreachable:
            return None

    def _address(self) -> str:
        return f"{self._head_ip}:{gcs_port(self._config().head_start_ray_commands)}"

    def _secrets(self) -> dict[str, str]:
        token = self._auth.get(_TOKEN, "")
        if not token and self._auth.get(_TOKEN_PATH):
            token = Path(self._auth[_TOKEN_PATH]).read_text(encoding="ascii").strip()
        return {"RAY_AUTH_MODE": "token", _TOKEN: token} if token else {}
