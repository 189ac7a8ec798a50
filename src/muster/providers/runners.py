"""Gives what runs commands on the machines of any provider: its own runner, or SSH by the `auth` section.

Used by the launcher for the head, and by the monitor's installer for workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from muster.config.node_launch import container_of
from muster.config.schema import ClusterConfig
from muster.errors import Unreachable
from muster.providers.v1.failures import provider_call
from muster.remote.connect import has_own_runner, host_of, own_runner, runner_for
from muster.remote.container import ContainerRunner
from muster.remote.runner import CommandRunner


class Reach(Struct, frozen=True, kw_only=True):
    """A Reach is from where machines are reached, and with which keys of hosts."""

    pins: Path
    is_inside: bool  # on the head, where internal addresses are reached and no proxy is needed
    login_shell: bool = True


def runner_of(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    node_id: str,
    reach: Reach,
    *,
    is_head: bool = False,
) -> CommandRunner:
    """Returns the runner of one machine. Raises Unreachable while the machine has no address."""
    if has_own_runner(node_provider):
        return own_runner(
            node_provider,
            node_id,
            auth=config.auth.settings(),
            cluster_name=config.cluster_name,
            use_internal_ip=reach.is_inside or config.provider.use_internal_ips,
            docker=to_builtins(config.docker) if config.docker.container_name else None,
        )
    node_type = config.head_type if is_head else _type_of(node_provider, node_id, config)
    if hasattr(node_provider, "host_of"):  # muster's own class for hosts
        return _host_runner(config, node_provider, node_id, reach, node_type if not is_head else "")
    ip = address_of(config, node_provider, node_id, is_inside=reach.is_inside)
    if not ip:
        raise Unreachable(f"machine {node_id} has no address yet: wait, or look at your provider")
    host = host_of(config, ip, instance_id=node_id, known_hosts=str(reach.pins))
    return runner_for(config, host, node_type=node_type, is_head=is_head, login_shell=reach.login_shell)


def _host_runner(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    node_id: str,
    reach: Reach,
    worker_type: str,
) -> CommandRunner:
    from muster.providers.onprem.build import SharedSshRunner, ssh_host

    host = ssh_host(node_provider.host_of(node_id), reach.pins, is_strict=config.auth.strict_host_keys)
    ssh = SharedSshRunner(host, login_shell=reach.login_shell)
    container = container_of(config, worker_type or config.head_type, is_head=not worker_type)
    return ssh if container is None else ContainerRunner(ssh, container, login_shell=reach.login_shell)


def _type_of(node_provider: Any, node_id: str, config: ClusterConfig) -> str:  # noqa: ANN401 - duck typed
    tags = provider_call(lambda: node_provider.node_tags(node_id))
    found = str(tags.get("ray-user-node-type", ""))
    return found if found in config.available_node_types else config.head_type


def address_of(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    node_id: str,
    *,
    is_inside: bool,
) -> str:
    """Returns the address by which a machine is reached from here; "" while it has none."""
    wants_internal = is_inside or config.provider.use_internal_ips
    ask = node_provider.internal_ip if wants_internal else node_provider.external_ip
    found = provider_call(lambda: ask(node_id))
    if not found and not wants_internal:  # a cloud without external addresses
        found = provider_call(lambda: node_provider.internal_ip(node_id))
    return str(found or "")
