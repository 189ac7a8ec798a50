"""Imported lazily: makes the provider of type `local` from a cluster file, and asks hosts for their size."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Mapping

from msgspec.structs import replace

from muster.config.node_launch import container_of
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.kind import Launches, ProviderContext
from muster.providers.rack.connections import HostMemory, Rack, ssh_host
from muster.providers.rack.host_list import RackHost, rack_hosts
from muster.providers.rack.host_lock import HostReport
from muster.providers.rack.provider import RackProvider
from muster.remote.ssh import SshRunner

logger = logging.getLogger(__name__)
_MEMORY_SHARE = 0.7  # Ray keeps the rest for its object store


def make_rack(config: ClusterConfig, launches: Launches, context: ProviderContext) -> RackProvider:
    """Return the provider; the cluster's directory on this machine has the pins of host keys."""
    if config.provider.coordinator_address:
        raise ConfigError(
            "is not used by muster, whose clusters share hosts by a lock on each",
            path="provider.coordinator_address",
            fix=("remove it, and list the computers (head_ip and worker_ips, or hosts)"),
        )
    pins, is_strict = context.home / "known_hosts", config.auth.strict_host_keys
    current = context.current or (lambda: config)
    container = container_of(config, config.head_type, is_head=False)
    try:
        this_user = f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        this_user = socket.gethostname()
    rack = Rack(
        hosts=lambda: rack_hosts(current()),
        make_runner=lambda host: SshRunner(ssh_host(host, pins, is_strict=is_strict)),
        lock_dir=config.provider.lock_dir,
        clock=context.clock,
        memory=HostMemory(context.home / "hosts.json"),
        head=context.address,
        launcher=this_user,
        container="" if container is None else container.name,
        container_program="podman" if config.docker.use_podman else "docker",
    )
    return RackProvider(
        config.cluster_name, rack, launches, context.ids, installs_runtime=not config.has_worker_commands
    )


def with_host_sizes(config: ClusterConfig, context: ProviderContext) -> ClusterConfig:
    """Return the file; types without resources get what the least of their hosts has, asked now."""
    types = dict(config.available_node_types)
    if all(entry.resources for entry in types.values()):
        return config
    provider = make_rack(config, dict, context)
    try:
        found = {ip: (state.host, state.report) for ip, state in provider.reports().items()}
    finally:
        provider.close()
    for name, entry in types.items():
        if not entry.resources:
            types[name] = replace(entry, resources=least_size(name, found))
    return replace(config, available_node_types=types)


def least_size(node_type: str, found: Mapping[str, tuple[RackHost, HostReport | None]]) -> dict[str, float]:
    """Return what every host of a type has; {} when none has answered."""
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
