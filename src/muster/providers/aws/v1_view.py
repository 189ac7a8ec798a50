"""AwsNodeProvider shows an AwsProvider by Ray's v1 method names, for `muster provider check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.base.ids import RandomIds
from muster.config.to_spec import NodeLaunch
from muster.providers.aws.provider import MAX_TERMINATE, AwsProvider
from muster.providers.node_provider import NodeProvider
from muster.providers.v1.tags import TAG_RAY_USER_NODE_TYPE


class AwsNodeProvider(NodeProvider):
    """The machines of one AwsProvider, as a v1 provider."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._native, self._ids = AwsProvider(provider_config, cluster_name), RandomIds()

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        wanted = tag_filters.items()
        listed = self._native.listing.newest()
        return [n for n, machine in listed.items() if wanted <= machine.shown_tags().items()]

    def is_running(self, node_id: str) -> bool:
        return self._native.answers(node_id)

    def is_terminated(self, node_id: str) -> bool:
        return self._native.is_gone(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._native.tags(node_id))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._native.set_tags(node_id, tags)

    def internal_ip(self, node_id: str) -> str | None:
        return self._native.internal_ip(node_id) or None

    def external_ip(self, node_id: str) -> str | None:
        return self._native.machine(node_id).external_ip or None

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Launch machines; each call launches more. Fewer than requested is not an error, none at all is."""
        launch = NodeLaunch(node_type=tags.get(TAG_RAY_USER_NODE_TYPE, ""), node_config=node_config)
        made = self._native.create(self._ids.fresh("c"), launch, tags, count)
        return {node_id: {} for node_id in made}

    def terminate_node(self, node_id: str) -> None:
        self._native.terminate_machines([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> None:
        self._native.terminate_machines(node_ids)

    @property
    def max_terminate_nodes(self) -> int | None:
        return MAX_TERMINATE

    def cleanup_cluster_resources(self) -> None:
        self._native.clean_up()
