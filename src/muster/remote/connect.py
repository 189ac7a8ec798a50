"""Chooses how a machine of a cluster is reached: over SSH, in a container, or by the provider's own runner.

Called by the launcher and by what connects the installer to a provider. Blocks only where a provider does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from muster.base.foreign import error_text
from muster.config.node_launch import container_of
from muster.config.schema import ClusterConfig
from muster.errors import RemoteError
from muster.remote.container import ContainerRunner
from muster.remote.own_runner import OwnRunner
from muster.remote.runner import CommandRunner, Host
from muster.remote.ssh import SshRunner
from muster.remote.ssh_command import fill_proxy_command

# Whose classes have a `get_command_runner` that ours replaces; those of Ray's single clouds are their own.
_DEFAULTS = ("ray.autoscaler.node_provider.", "muster.")


def host_of(config: ClusterConfig, ip: str, *, instance_id: str = "", known_hosts: str = "") -> Host:
    """Returns how to log in to a machine, from the section `auth`.

    With `ssh_proxy_use_node_id` the proxy command gets the machine's id in the place of its address (`%h`).
    """
    auth = config.auth
    proxy = auth.ssh_proxy_command or ""
    region = config.provider.region or ""
    return Host(
        ip=instance_id if auth.ssh_proxy_use_node_id and instance_id else ip,
        user=auth.ssh_user,
        private_key=auth.ssh_private_key or "",
        proxy_command=fill_proxy_command(proxy, instance_id=instance_id, region=region, ip=ip),
        strict_host_keys=auth.strict_host_keys,
        known_hosts=known_hosts,
        instance_id=instance_id,
    )


def runner_for(
    config: ClusterConfig, host: Host, *, node_type: str, is_head: bool = False, login_shell: bool = True
) -> CommandRunner:
    """Returns a runner over SSH, in the node's container where it has one."""
    ssh = SshRunner(host, login_shell=login_shell)
    container = container_of(config, node_type, is_head=is_head)
    return ssh if container is None else ContainerRunner(ssh, container, login_shell=login_shell)


def has_own_runner(provider: object) -> bool:
    """Returns whether a v1 provider brings a command runner of its own, and not Ray's or none."""
    method = getattr(type(provider), "get_command_runner", None) or getattr(
        provider, "get_command_runner", None
    )
    module = str(getattr(method, "__module__", ""))
    return callable(method) and not f"{module}.".startswith(_DEFAULTS)


def own_runner(
    provider: Any,  # noqa: ANN401 - duck typed
    node_id: str,
    *,
    auth: Mapping[str, Any],
    cluster_name: str,
    use_internal_ip: bool = True,
    docker: Mapping[str, Any] | None = None,
) -> CommandRunner:
    """Returns a v1 provider's own runner of a machine; blocks as long as the provider does."""
    try:
        theirs = provider.get_command_runner(
            log_prefix=f"{node_id}: ",
            node_id=node_id,
            auth_config=dict(auth),
            cluster_name=cluster_name,
            process_runner=subprocess,
            use_internal_ip=use_internal_ip,
            docker_config=dict(docker or {}),
        )
    except Exception as error:
        raise RemoteError(
            f"get_command_runner of the provider failed for {node_id} ({error_text(error)}): fix the provider"
        ) from error
    if theirs is None:
        raise RemoteError(f"get_command_runner of the provider returned None for {node_id}: fix the provider")
    return OwnRunner(theirs, node_id)
