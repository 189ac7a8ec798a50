"""Gives what runs commands on the machines of any provider: its own runner, or SSH by the `auth` section.

Used by the launcher for the head, and by the monitor's installer for workers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.config.schema import ClusterConfig
from muster.errors import Unreachable
from muster.providers.node_provider import NodeProvider
from muster.providers.v1.failures import provider_call
from muster.remote.runner import CommandRunner, Host
from muster.remote.ssh import SshRunner
from muster.remote.ssh_command import fill_proxy_command


def runner_of(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    node_id: str,
    *,
    pins: Path,
    is_inside: bool,
    login_shell: bool = False,
) -> CommandRunner:
    """Returns the runner of one machine; `is_inside`: from the head, where internal addresses are reached.

    Raises Unreachable while the machine has no address.
    """
    own: Callable[[str], CommandRunner] | None = getattr(node_provider, "runner_of", None)
    if own is not None:  # muster's own class for hosts
        return own(node_id)
    ip = address_of(config, node_provider, node_id, is_inside=is_inside)
    if not ip:
        raise Unreachable(f"machine {node_id} has no address yet")
    auth = config.auth
    proxy = "" if is_inside or not auth.ssh_proxy_command else auth.ssh_proxy_command
    host = Host(
        ip=ip,
        user=auth.ssh_user,
        private_key=str(Path(auth.ssh_private_key).expanduser()) if auth.ssh_private_key else "",
        proxy_command=proxy
        and fill_proxy_command(proxy, instance_id=node_id, region=config.provider.region or "", ip=ip),
        strict_host_keys=auth.strict_host_keys,
        known_hosts=str(pins),
        instance_id=node_id,
    )
    return SshRunner(host, login_shell=login_shell)


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


def has_own_runner(node_provider: object) -> bool:
    """Returns whether a class brings its own command runner; Ray's and muster's base classes have none."""
    method = getattr(type(node_provider), "get_command_runner", None)
    if method is None or method is NodeProvider.get_command_runner:
        return False
    return not str(getattr(method, "__module__", "")).startswith("ray.autoscaler.node_provider")
