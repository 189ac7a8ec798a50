"""Imported lazily: makes the provider of type `local` from a cluster file, and asks hosts for their size."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.config.node_launch import container_of
from muster.config.rack import RackHost, rack_hosts
from muster.config.schema import ClusterConfig, NodeTypeConfig
from muster.errors import ConfigError
from muster.providers.onprem.host_lock import HostReport
from muster.providers.onprem.provider import OnPremProvider
from muster.providers.onprem.rack import Hosts, Rack
from muster.remote.runner import Host
from muster.remote.ssh import SshRunner
from muster.remote.ssh_command import fill_proxy_command

logger = logging.getLogger(__name__)
_MEMORY_SHARE = 0.7  # Ray keeps the rest for its object store


class SharedSshRunner(SshRunner):
    """A SharedSshRunner leaves its connection open for the others that use the host; the provider ends it."""

    async def close(self) -> None:
        """Does nothing."""

    async def disconnect(self) -> None:
        await super().close()


def make_onprem(
    config: ClusterConfig,
    home: Path,
    clock: Clock,
    ids: IdSource,
    hosts: Hosts | None = None,
    head: str = "",
) -> OnPremProvider:
    """Returns the provider; `home` has the pins of host keys, `hosts` is today's list where it may change.

    A monitor says at which address its `head` is.
    """
    if config.provider.coordinator_address:
        raise ConfigError(
            "is not used by muster, whose clusters share hosts by a lock on each; remove it, and list the"
            " computers (head_ip and worker_ips, or hosts)",
            path="provider.coordinator_address",
        )
    pins, is_strict = home / "known_hosts", config.auth.strict_host_keys
    rack = Rack(
        hosts=hosts or (lambda: rack_hosts(config)),
        make_runner=lambda host: SharedSshRunner(ssh_host(host, pins, is_strict=is_strict)),
        lock_dir=config.provider.lock_dir,
        clock=clock,
        memory=home / "hosts.json",
        head=head,
    )
    container = container_of(config, config.head_type, is_head=False)
    program = "podman" if config.docker.use_podman else "docker"
    return OnPremProvider(
        config.provider.settings(),
        config.cluster_name,
        rack,
        ids,
        launcher=_this_user(),
        container=("", "") if container is None else (container.name, program),
    )


def ssh_host(host: RackHost, pins: Path, *, is_strict: bool = True) -> Host:
    """Returns how a computer of the list is reached."""
    return Host(
        ip=host.ip,
        user=host.user,
        port=host.port,
        private_key=host.private_key,
        proxy_command=fill_proxy_command(host.proxy_command, ip=host.ip) if host.proxy_command else "",
        strict_host_keys=is_strict,
        known_hosts=str(pins),
        instance_id=host.ip,
    )


def with_host_sizes(
    config: ClusterConfig, home: Path, clock: Clock, ids: IdSource
) -> dict[str, NodeTypeConfig]:
    """Returns the node types; those without resources get what the least of their hosts has, asked now."""
    types = dict(config.available_node_types)
    if all(entry.resources for entry in types.values()):
        return types
    provider = make_onprem(config, home, clock, ids)
    try:
        found = {ip: (state.host, state.report) for ip, state in provider.reports().items()}
    finally:
        provider.close()
    for name, entry in types.items():
        if not entry.resources:
            types[name] = replace(entry, resources=least_size(name, found))
    return types


def least_size(node_type: str, found: Mapping[str, tuple[RackHost, HostReport | None]]) -> dict[str, float]:
    """Returns what every host of a type has; {} when none has answered."""
    reports = [
        report for host, report in found.values() if host.node_type == node_type and report is not None
    ]
    if not reports:
        logger.warning(
            "no host of type %s has answered, so its size is not known until the monitor starts again;"
            " `resources` in the cluster file would say it",
            node_type,
        )
        return {}
    gpus = min(report.gpus for report in reports)
    return {
        "CPU": float(min(report.cpus for report in reports)),
        "memory": float(int(_MEMORY_SHARE * min(report.memory_bytes for report in reports))),
        **({"GPU": float(gpus)} if gpus else {}),
    }


def _this_user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return socket.gethostname()
