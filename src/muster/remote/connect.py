"""Choose how a machine of a cluster is reached: over SSH, in a container or on the machine itself."""

from __future__ import annotations

from muster.config.node_launch import container_of
from muster.config.schema import ClusterConfig
from muster.remote.container import ContainerRunner
from muster.remote.runner import CommandRunner, Host
from muster.remote.ssh import SshRunner
from muster.remote.ssh_command import fill_proxy_command


def host_of(config: ClusterConfig, ip: str, *, instance_id: str = "", known_hosts: str = "") -> Host:
    """Return how to log in to a machine, from the section `auth`.

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
    config: ClusterConfig, ssh: SshRunner, *, node_type: str, is_head: bool = False
) -> CommandRunner:
    """Return the runner of a node: over SSH, in its container where it has one."""
    container = container_of(config, node_type, is_head=is_head)
    return ssh if container is None else ContainerRunner(ssh, container, login_shell=ssh.login_shell)
