"""BatchingNodeProvider serves machines that another system manages, and that are requested by number.

Ray's class of this name collects requests until its autoscaler's step is over. This one runs under an adapter
that has no such moment, so each create or terminate call is submitted at once, as the complete state
requested.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.errors import ConfigError
from muster.providers.node_provider import NodeProvider
from muster.providers.v1 import tags as t

REQUIRED_FLAGS = ("disable_node_updaters", "disable_launch_config_check", "foreground_node_launch")


@dataclass
class NodeData:
    """A NodeData is one node; `status` is `up-to-date` iff it runs, `update-failed` iff it failed."""

    kind: str
    type: str
    ip: str | None
    status: str
    replica_index: str | None = None


@dataclass
class ScaleRequest:
    """A ScaleRequest is the complete request: how many workers of each type, and which ones to delete."""

    desired_num_workers: dict[str, int] = field(default_factory=dict)
    workers_to_delete: set[str] = field(default_factory=set)


class BatchingNodeProvider(NodeProvider):
    """A BatchingNodeProvider does all but list nodes and submit requests, which subclasses define."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        for flag in REQUIRED_FLAGS:
            if provider_config.get(flag) is not True:
                raise ConfigError(
                    f"must be true for {type(self).__name__}: its machines are set up by their manager",
                    path=f"provider.{flag}",
                )
        self.node_data_dict: dict[str, NodeData] = {}
        self.scale_request = ScaleRequest()
        self._lock = threading.RLock()

    def get_node_data(self) -> dict[str, NodeData]:
        """Returns every node that is not terminated, the head included."""
        raise self._missing("get_node_data")

    def submit_scale_request(self, scale_request: ScaleRequest) -> None:
        """Submits a complete request to the manager; it replaces the one before."""
        raise self._missing("submit_scale_request")

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._lock:
            self._refresh()
            return [n for n in self.node_data_dict if tag_filters.items() <= self.node_tags(n).items()]

    def is_running(self, node_id: str) -> bool:
        data = self.node_data_dict.get(node_id)
        return data is not None and data.status == t.STATUS_UP_TO_DATE

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self.node_data_dict

    def node_tags(self, node_id: str) -> dict[str, str]:
        data = self.node_data_dict[node_id]
        tags = {
            t.TAG_RAY_NODE_KIND: data.kind,
            t.TAG_RAY_NODE_STATUS: data.status,
            t.TAG_RAY_USER_NODE_TYPE: data.type,
        }
        if data.replica_index is not None:
            tags[t.TAG_RAY_REPLICA_INDEX] = data.replica_index
        return tags

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        raise NotImplementedError(
            f"the tags of {node_id} come from its manager and cannot be set; change them there"
        )

    def internal_ip(self, node_id: str) -> str | None:
        return self.node_data_dict[node_id].ip

    def external_ip(self, node_id: str) -> str | None:
        return self.node_data_dict[node_id].ip

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        node_type = tags[t.TAG_RAY_USER_NODE_TYPE]
        with self._lock:
            self._refresh()
            wanted = self.scale_request.desired_num_workers
            wanted[node_type] = wanted.get(node_type, 0) + count
            try:
                self.submit_scale_request(self._copy())
            except BaseException:
                wanted[node_type] -= count
                raise

    def terminate_node(self, node_id: str) -> None:
        self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> None:
        with self._lock:
            self._refresh()
            before = self._copy()
            for node_id in node_ids:
                self._mark(node_id)
            if self.scale_request == before:
                return
            try:
                self.submit_scale_request(self._copy())
            except BaseException:
                self.scale_request = before
                raise

    def _mark(self, node_id: str) -> None:
        """Marks a node for deletion; unknown nodes and those already marked change nothing."""
        data, request = self.node_data_dict.get(node_id), self.scale_request
        if data is None or node_id in request.workers_to_delete:
            return
        if data.kind == t.NODE_KIND_HEAD:
            raise ValueError(
                f"{node_id} is the head, which the autoscaler must not terminate; stop it in its manager"
            )
        request.workers_to_delete.add(node_id)
        request.desired_num_workers[data.type] = max(0, request.desired_num_workers.get(data.type, 0) - 1)

    def _refresh(self) -> None:
        """Lists the nodes again; what was requested stays so, although its nodes do not exist yet."""
        self.node_data_dict = dict(self.get_node_data())
        request = self.scale_request
        request.workers_to_delete &= set(self.node_data_dict)
        present = Counter(
            data.type
            for node_id, data in self.node_data_dict.items()
            if data.kind == t.NODE_KIND_WORKER and node_id not in request.workers_to_delete
        )
        for node_type, count in present.items():
            wanted = request.desired_num_workers
            wanted[node_type] = max(wanted.get(node_type, 0), count)

    def _copy(self) -> ScaleRequest:
        request = self.scale_request
        return ScaleRequest(dict(request.desired_num_workers), set(request.workers_to_delete))
