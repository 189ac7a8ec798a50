"""Define what commands on a cluster and the installer need of its machines, whatever their provider is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from muster.cluster.model import NodeKind
from muster.cluster.ports import CloudProvider
from muster.config.schema import ClusterConfig
from muster.config.to_spec import NodeLaunch
from muster.errors import ProviderMisconfigured, Unreachable

if TYPE_CHECKING:
    from muster.remote.runner import CommandRunner

TAG_NODE_TYPE = "ray-user-node-type"


class Machine(Struct, frozen=True, kw_only=True):
    """One machine that the provider lists."""

    node_id: str
    node_type: str
    ip: str
    tags: Mapping[str, str]


class SshAccess(Struct, frozen=True, kw_only=True):
    """From where machines are reached, and which host keys are pinned."""

    pins: Path
    is_inside: bool  # on the head, where internal addresses are reached and no proxy is needed
    login_shell: bool = True
    is_setup: bool = False  # what the commands start belongs to the node, and ends with it


class ClusterMachines(Protocol):
    """The machines of one cluster: head and workers. Methods may block and may raise any Exception.

    Providers without a head among their machines (readonly, kuberay) inherit the refusals.
    """

    def machines(self, kind: NodeKind) -> list[Machine]:
        """Return the machines of one kind that are not terminated."""
        raise ProviderMisconfigured("this provider has no machines")

    def left_to_tear_down(self, kind: NodeKind) -> list[str]:
        """Return machines that taking the cluster down must end although they are not listed any more."""
        return []

    def create_head(self, request_id: str, launch: NodeLaunch, tags: Mapping[str, str]) -> None:
        """Start the head's machine; the tags, and the request id, are on it from its first listing."""
        raise ProviderMisconfigured("this provider starts no head")

    def terminate_machines(self, node_ids: Sequence[str]) -> None:
        """Start to terminate machines; those already gone are a success."""
        raise ProviderMisconfigured("this provider terminates no machines")

    def set_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        """Merge tags into those that the machine has."""
        raise ProviderMisconfigured("this provider has no tags")

    def internal_ip(self, node_id: str) -> str:
        """Return the address that other machines of the cluster use; "" while there is none."""
        raise ProviderMisconfigured("this provider has no machines")

    def address(self, node_id: str, *, is_inside: bool) -> str:
        """Return the address by which a machine is reached from here; "" while there is none."""
        raise ProviderMisconfigured("this provider has no machines")

    def tags(self, node_id: str) -> Mapping[str, str]:
        """Return the machine's tags. Raises KeyError for an unknown machine."""
        return self._all()[node_id].tags

    def is_gone(self, node_id: str) -> bool:
        """Return whether the machine was terminated, so that nobody should wait for it."""
        return node_id not in self._all()

    def answers(self, node_id: str) -> bool:
        """Return whether a listed machine can be used: a host of a rack may be listed and off."""
        return True

    def settle(self, *, is_last: bool) -> Mapping[str, str]:
        """Wait until nothing is being released any more; return what is left, and why.

        `is_last`: the cluster is down. Hosts that outlive their nodes are cleaned of what it left behind.
        """
        return {}

    def left_behind(self) -> Mapping[str, str]:
        """Return what of the cluster runs on hosts that it does not have, by address."""
        return {}

    def silent_hosts(self) -> Mapping[str, str]:
        """Return the hosts that could not be looked at, and why; only a rack has some."""
        return {}

    def clean_up(self) -> None:
        """Remove what the provider keeps for the cluster in addition to its machines."""
        return

    def prepare_for_head(self, config: dict[str, object]) -> Mapping[str, object] | None:
        """Return the cluster file's sections as the head must get them; None: unchanged."""
        return None

    def has_own_runner(self) -> bool:
        """Return whether commands run by other means than SSH."""
        return False

    def runner(
        self, config: ClusterConfig, node_id: str, access: SshAccess, *, is_head: bool = False
    ) -> CommandRunner:
        """Return what runs commands on a machine. Raises Unreachable while it has no address."""
        from muster.remote.connect import host_of, runner_for
        from muster.remote.ssh import SshRunner

        ip = self.address(node_id, is_inside=access.is_inside)
        if not ip:
            raise Unreachable(f"machine {node_id} has no address yet: wait, or look at your provider")
        host = host_of(config, ip, instance_id=node_id, known_hosts=str(access.pins))
        node_type = config.head_type if is_head else self.node_type(config, node_id)
        ssh = SshRunner(host, login_shell=access.login_shell)
        return runner_for(config, ssh, node_type=node_type, is_head=is_head)

    def node_type(self, config: ClusterConfig, node_id: str) -> str:
        """Return the type of a machine; that of the head where its tag names none of the file."""
        named = str(self.tags(node_id).get(TAG_NODE_TYPE, ""))
        return named if named in config.available_node_types else config.head_type

    def _all(self) -> dict[str, Machine]:
        found = [*self.machines(NodeKind.HEAD), *self.machines(NodeKind.WORKER)]
        return {machine.node_id: machine for machine in found}


class ManagedProvider(ClusterMachines, CloudProvider, Protocol):
    """A provider with threads or files to close."""

    def close(self) -> None: ...
