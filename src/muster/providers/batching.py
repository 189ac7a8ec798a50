"""BatchingNodeProvider serves machines that another system manages, and that are requested by number.

As Ray's class of this name, it collects requests until `post_process` is called. Our adapter has no such
moment: a class that waits for it is wrapped (`submitting`), and each create or terminate call is submitted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from muster.cluster.plan import attempt_of
from muster.errors import ConfigError, Throttled
from muster.providers.node_provider import NodeProvider, create_nodes
from muster.providers.v1 import tags as t

REQUIRED_FLAGS = ("disable_node_updaters", "disable_launch_config_check", "foreground_node_launch")


@dataclass
class NodeData:
    """One node; `status` is `up-to-date` iff it runs, `update-failed` iff it failed."""

    kind: str
    type: str
    ip: str | None
    status: str
    replica_index: str | None = None


@dataclass
class ScaleRequest:
    """The complete request: how many workers of each type, and which ones to delete."""

    desired_num_workers: dict[str, int] = field(default_factory=dict)
    workers_to_delete: set[str] = field(default_factory=set)


class BatchingNodeProvider(NodeProvider):
    """Does all but list nodes and submit requests, which subclasses define.

    Args:
        provider_config: The `provider` section of the cluster file.
        cluster_name: The cluster's name.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        for flag in REQUIRED_FLAGS:
            if provider_config.get(flag) is not True:
                raise ConfigError(
                    f"must be true for {type(self).__name__}: its machines are set up by their manager",
                    path=f"provider.{flag}",
                )
        self.node_data_dict: dict[str, NodeData] = {}
        self.scale_request, self._is_changed = ScaleRequest(), False

    def get_node_data(self) -> dict[str, NodeData]:
        """Return every node that is not terminated, the head included."""
        raise self._missing("get_node_data")

    def submit_scale_request(self, scale_request: ScaleRequest) -> None:
        """Submit a complete request to the manager; it replaces the one before."""
        raise self._missing("submit_scale_request")

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        self.node_data_dict = dict(self.get_node_data())
        workers = (one for one in self.node_data_dict.values() if one.kind == t.NODE_KIND_WORKER)
        self.scale_request, self._is_changed = ScaleRequest(Counter(one.type for one in workers)), False
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
        node_type, desired = tags[t.TAG_RAY_USER_NODE_TYPE], self.scale_request.desired_num_workers
        desired[node_type] = desired.get(node_type, 0) + count
        self._is_changed = True

    def terminate_node(self, node_id: str) -> None:
        """Mark a node for deletion; unknown nodes and those already marked change nothing."""
        data, request = self.node_data_dict.get(node_id), self.scale_request
        if data is None or node_id in request.workers_to_delete:
            return
        if data.kind == t.NODE_KIND_HEAD:
            raise ValueError(
                f"{node_id} is the head, which the autoscaler must not terminate; stop it in its manager"
            )
        request.workers_to_delete.add(node_id)
        request.desired_num_workers[data.type] = max(0, request.desired_num_workers.get(data.type, 0) - 1)
        self._is_changed = True

    def post_process(self) -> None:
        """Submit what was requested since the newest list, if anything was."""
        if self._is_changed:
            self.submit_scale_request(self.scale_request)


def submitting(node_provider: Any) -> Any:  # noqa: ANN401 - duck typed
    """Return the provider, wrapped where its class collects changes until `post_process` is called."""
    classes = type(node_provider).__mro__
    owner = next((one for one in classes if "post_process" in vars(one)), None)
    if owner is None or owner.__module__ in _NOT_COLLECTING:
        return node_provider
    return SubmittingProvider(node_provider)


# Where `post_process` does nothing: the two base classes.
_NOT_COLLECTING = ("ray.autoscaler.node_provider", NodeProvider.__module__)


class SubmittingProvider:
    """Call `post_process` after each change, one change at a time.

    A BatchingNodeProvider, Ray's or ours, counts from its newest list and forgets at every list what was
    requested before: machines that are still to come, and those that are still to go, are requested again.
    """

    def __init__(self, node_provider: Any) -> None:  # noqa: ANN401 - duck typed
        self._provider = node_provider
        self._lock = threading.RLock()
        self._coming = ComingWorkers()
        self._leaving: set[str] = set()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - duck typed
        return getattr(self._provider, name)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._lock:
            return list(self._provider.non_terminated_nodes(tag_filters))

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> object:
        return self._change(lambda: self._provider.create_node(node_config, tags, count), tags, count)

    def create_node_with_resources_and_labels(self, *terms: Any) -> object:  # noqa: ANN401 - Ray's five
        create = partial(create_nodes, self._provider, type(self._provider), *terms)
        return self._change(create, terms[1], terms[2])

    def terminate_node(self, node_id: str) -> None:
        self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> None:
        with self._lock:
            new = [node_id for node_id in node_ids if node_id not in self._leaving]
            if new:
                self._change(lambda: self._mark(new))
                self._leaving |= set(new)

    def _mark(self, node_ids: Sequence[str]) -> None:
        for node_id in node_ids:
            self._provider.terminate_node(node_id)

    def _change(
        self, change: Callable[[], object], tags: dict[str, str] | None = None, count: int = 0
    ) -> object:
        """Request what was requested before and is not there yet, makes the change, and submits both."""
        with self._lock:
            self._look()
            node_type = (tags or {}).get(t.TAG_RAY_USER_NODE_TYPE, "")
            added = count - self._coming.repeated(tags or {}, count)
            desired = getattr(getattr(self._provider, "scale_request", None), "desired_num_workers", {})
            for one, coming in self._coming.counts.items():
                repeated = count - added if one == node_type else 0  # the call itself requests them again
                if coming > repeated:
                    desired[one] = desired.get(one, 0) + coming - repeated
            made = change()
            self._provider.post_process()
            self._coming.counts[node_type] += added
            return made

    def _look(self) -> None:
        """List again, as the class counts from its newest list, and marks again what is to go."""
        listed = sorted(self._provider.non_terminated_nodes({}))
        is_ready = getattr(self._provider, "safe_to_scale", None)
        if is_ready is not None and not is_ready():
            raise Throttled(f"{type(self._provider).__name__}.safe_to_scale() is False: tried again later")
        tags = {node_id: self._provider.node_tags(node_id) for node_id in listed}
        workers = {n: one for n, one in tags.items() if one.get(t.TAG_RAY_NODE_KIND) == t.NODE_KIND_WORKER}
        self._coming.note({n: one.get(t.TAG_RAY_USER_NODE_TYPE, "") for n, one in workers.items()})
        self._leaving &= set(listed)
        self._mark(sorted(self._leaving))


class ComingWorkers:
    """Counts the workers that were requested and have not been listed yet, by type."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: set[str] = set()

    def note(self, workers: dict[str, str]) -> None:
        """Take a list, node to type: each new node is one that was to come. One that died is not."""
        for node_id, node_type in workers.items():
            if node_id not in self._known:
                self.counts[node_type] = max(0, self.counts[node_type] - 1)
        self._known = set(workers)

    def repeated(self, tags: dict[str, str], count: int) -> int:
        """Return how many of a create call are still to come, because it repeats an earlier attempt."""
        request_id = t.request_of(tags.get(t.TAG_RAY_LAUNCH_REQUEST))
        if request_id is None or attempt_of(request_id) <= 1:
            return 0
        return min(count, self.counts[tags[t.TAG_RAY_USER_NODE_TYPE]])
