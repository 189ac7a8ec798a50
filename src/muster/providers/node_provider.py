"""NodeProvider is the class that connects a cloud, by Ray's v1 method names.

A provider written for Ray runs here as it is, and one written here runs under Ray. `V1Adapter` calls it from
several threads; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


_LABELED, _SIZED = "create_node_with_resources_and_labels", "create_node_with_resources"


def create_nodes(
    provider: Any,  # noqa: ANN401 - duck typed
    of_class: type[Any],
    *terms: Any,  # noqa: ANN401 - of the newest of Ray's three methods
) -> object:
    """Make nodes by the newest of Ray's create methods that the provider has.

    A class that overrides an older one is called by that: the newest one of its base class ignores it.
    """
    classes = of_class.__mro__
    depths = {name: [i for i, one in enumerate(classes) if name in vars(one)] for name in (_LABELED, _SIZED)}
    is_overridden = bool(depths[_SIZED]) and depths[_SIZED][:1] < depths[_LABELED][:1]
    newest, older = getattr(provider, _LABELED, None), getattr(provider, _SIZED, None)
    if newest is not None and not is_overridden:
        return newest(*terms)
    return provider.create_node(*terms[:3]) if older is None else older(*terms[:4])


class NodeLaunchException(Exception):
    """Raised by `create_node`: a short category, a description, and the cause.

    The category (under 20 characters) is shown in status tables, for example "QuotaExceeded".
    """

    def __init__(self, category: str, description: str, src_exc_info: ExcInfo | None = None) -> None:
        self.category, self.description, self.src_exc_info = category, description, src_exc_info
        super().__init__(f"{category}: {description}")


class NodeProvider:
    """Manages the machines of one cluster: a node is pending, running or terminated.

    What every implementation promises (`muster.testing.ProviderContract` checks it):

    - a node is listed as soon as the create call returns, and not any more once terminate has returned;
    - an id may be used again once its node is terminated: the node then has the tags of its new launch;
    - no two living nodes have the same address;
    - tags are read as they were written, at once, and writing some leaves the others as they are;
    - only nodes of `cluster_name` are ever seen;
    - methods may be called from several threads at a time;
    - what is known of the nodes is not lost with the object: a second one sees the same.

    A provider has at least: `non_terminated_nodes`, `is_running`, `is_terminated`, `node_tags`,
    `set_node_tags`, `internal_ip`, `external_ip`, `create_node`, `terminate_node`.

    Args:
        provider_config: The `provider` section of the cluster file.
        cluster_name: The cluster's name.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        """Take the `provider` section of the cluster file, and the name of the cluster."""
        self.provider_config = provider_config
        self.cluster_name = cluster_name
        self._internal_ip_cache: dict[str, str] = {}
        self._external_ip_cache: dict[str, str] = {}

    # -- looking ----------------------------------------------------------------------------------

    def is_readonly(self) -> bool:
        """Return whether nodes can only be read: nothing is created or terminated then."""
        return False

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Return ids of pending and running nodes that have all of these tags; `{}` means all nodes.

        A good place to refresh the data of the methods for single nodes.
        """
        raise self._missing("non_terminated_nodes")

    def nodes_for_teardown(self, tag_filters: dict[str, str]) -> list[str]:
        """Return what taking the cluster down must end: more than the living only where state is local."""
        return self.non_terminated_nodes(tag_filters)

    def is_running(self, node_id: str) -> bool:
        """Return whether the machine is up; the answer may come from the last listing."""
        raise self._missing("is_running")

    def is_terminated(self, node_id: str) -> bool:
        """Return whether the machine is gone or ending."""
        raise self._missing("is_terminated")

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Return all tags of a node."""
        raise self._missing("node_tags")

    def external_ip(self, node_id: str) -> str | None:
        """Return the address from outside; None as long as the node has none."""
        raise self._missing("external_ip")

    def internal_ip(self, node_id: str) -> str | None:
        """Return the address inside the cluster's network; None as long as the node has none."""
        raise self._missing("internal_ip")

    def get_node_id(self, ip_address: str, use_internal_ip: bool = False) -> str:
        """Return the living node with this address; raises ValueError when no node has it.

        Args:
            ip_address: The node's address.
            use_internal_ip: Whether it is the internal one.
        """
        cache = self._internal_ip_cache if use_internal_ip else self._external_ip_cache
        known = cache.get(ip_address)
        if known is not None and not self.is_terminated(known):  # an address may serve another node by now
            return known
        address_of = self.internal_ip if use_internal_ip else self.external_ip
        found = {address_of(node_id): node_id for node_id in self.non_terminated_nodes({})}
        cache.clear()
        cache.update({ip: node_id for ip, node_id in found.items() if ip})
        if ip_address not in cache:
            kind = "internal" if use_internal_ip else "external"
            raise ValueError(f"no node of cluster {self.cluster_name!r} has the {kind} address {ip_address}")
        return cache[ip_address]

    # -- doing ------------------------------------------------------------------------------------

    def create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any] | None:
        """Create `count` nodes with these tags; return their ids and known facts, or None.

        Fewer ids than requested, or an exception after some were made, is fine: those that exist are kept,
        the others count as failed. `NodeLaunchException` gives the best reason.

        Args:
            node_config: The `node_config` of the node type.
            tags: Tags by name.
            count: How many nodes.
        """
        raise self._missing("create_node")

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> dict[str, Any] | None:
        """Make nodes as `create_node`, with what the node type offers, for providers that start Ray.

        Args:
            node_config: The `node_config` of the node type.
            tags: Tags by name.
            count: How many nodes.
            resources: The resources of the node type.
            labels: The labels of the node type.
        """
        return self.create_node(node_config, tags, count)

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Write these tags; the node's other tags stay.

        Args:
            node_id: The node's id.
            tags: The tags to add or replace.
        """
        raise self._missing("set_node_tags")

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        """End a node; one that is gone already is not an error."""
        raise self._missing("terminate_node")

    def terminate_nodes(self, node_ids: Sequence[str]) -> dict[str, Any] | None:
        """End several nodes; override this where the cloud can end many with one call."""
        ended: dict[str, Any] = {}
        for node_id in node_ids:
            ended.update(self.terminate_node(node_id) or {})
        return ended

    @property
    def max_terminate_nodes(self) -> int | None:
        """Return how many ids `terminate_nodes` takes at a time; None: any number."""
        return None

    # -- the cluster file -------------------------------------------------------------------------

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Return the cluster file with what only this cloud knows filled in: keys, roles, networks."""
        return cluster_config

    @staticmethod
    def fillout_available_node_types_resources(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Return the cluster file with the `resources` of each node type, where the cloud knows them."""
        return cluster_config

    def prepare_for_head_node(self, cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Return the cluster file as the head gets it."""
        return cluster_config

    # -- rarely touched ---------------------------------------------------------------------------

    def get_command_runner(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        log_prefix: str,
        node_id: str,
        auth_config: Mapping[str, Any],
        cluster_name: str,
        process_runner: ModuleType,
        use_internal_ip: bool,
        docker_config: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever runs commands there
        """Return what runs commands on a node.

        Not called unless overridden: muster's own runner works over SSH, in a container where there is one.

        Args:
            log_prefix: Comes before each line of output.
            node_id: The node's id.
            auth_config: The `auth` section.
            cluster_name: The cluster's name.
            process_runner: Runs commands, as `subprocess` does.
            use_internal_ip: Whether to connect to the internal address.
            docker_config: The `docker` section.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no command runner for {node_id}: muster uses SSH"
        )

    def safe_to_scale(self) -> bool:
        """Return True; a class that collects changes until `post_process` is asked before each of them."""
        return True

    def post_process(self) -> None:
        """Do nothing; a class that overrides it has it called after each create and terminate call."""

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} must define {method}")
