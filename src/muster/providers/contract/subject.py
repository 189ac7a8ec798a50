"""ProviderSubject is a provider as the checks use it: objects for separate clusters, nodes, an adapter.

Made by `muster provider check` from a cluster file, and by `muster.testing.ProviderContract` for its tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.base.ids import RequestId
from muster.cluster.model import CloudInstance, FailureKind
from muster.config.to_spec import NodeLaunch
from muster.providers.background_calls import inline_pools
from muster.providers.batching import SubmittingProvider, submitting
from muster.providers.contract.watch import CALL_S, CallWatch, WatchedProvider
from muster.providers.node_provider import create_nodes
from muster.providers.v1.adapter import V1Adapter
from muster.providers.v1.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_NODE_NAME, worker_tags


@dataclass(frozen=True)
class MachineOrder:
    """What the checks order."""

    node_type: str = "contract"
    node_config: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckSizes:
    """How much the checks ask for, and how long they wait."""

    several: int = 3  # nodes where more than one is needed
    crowd: int = 8  # threads at a time, a node each
    starts_within_s: float = 10.0  # from created to running
    call_limit_s: float = CALL_S


@dataclass(frozen=True)
class RefusedOrder:
    """A provider object that refuses to create a node, and the config it refuses."""

    provider: Any
    node_config: Mapping[str, Any] | None = None


MakeProvider = Callable[[str], Any]  # from the name of a cluster
MakeRefused = Callable[[FailureKind, str], "RefusedOrder | None"]


class ProviderSubject:
    """The provider that one check is about; its clusters have unused names."""

    def __init__(
        self,
        make: MakeProvider,
        new_name: Callable[[], str],
        *,
        machine: MachineOrder | None = None,
        sizes: CheckSizes | None = None,
        make_refused: MakeRefused = lambda kind, cluster_name: None,
        clock: Clock | None = None,
    ) -> None:
        self.machine, self.sizes = machine or MachineOrder(), sizes or CheckSizes()
        self.clock = clock or SystemClock()
        self.watch = CallWatch(self.clock, self.sizes.call_limit_s)
        self.clusters: list[str] = []
        self._make, self._new_name, self._make_refused = make, new_name, make_refused

    @property
    def several(self) -> int:
        return self.sizes.several

    @property
    def crowd(self) -> int:
        return self.sizes.crowd

    def cluster(self) -> str:
        """Return the name of a cluster that nobody has used before."""
        self.clusters.append(self._new_name())
        return self.clusters[-1]

    def provider(self, cluster_name: str | None = None) -> WatchedProvider:
        """Return a new object: of a cluster, or of a new one, whose nodes from before are left alone."""
        name = self.cluster() if cluster_name is None else cluster_name
        text = f"the constructor, for cluster {name!r},"
        made = self.watch.watched(self.watch.call(text, lambda: submitting(self._make(name))), name)
        if cluster_name is None:
            self.watch.leave_alone(name, made.non_terminated_nodes({}))
        return made

    def object_for_ending(self, cluster_name: str) -> WatchedProvider:
        """Return a new object although the check has ended."""
        made = self.watch.limited("the constructor", lambda: submitting(self._make(cluster_name)))
        return WatchedProvider(made, cluster_name, self.watch)

    def is_strange(self, provider: WatchedProvider, node_id: str) -> bool:
        """Return whether a node does not say that it belongs to the cluster: it may be somebody's."""
        try:
            name = provider.node_tags(node_id).get(TAG_RAY_NODE_NAME)
        except Exception:  # noqa: BLE001 - whatever its reason: it is not known to be ours
            return True
        return bool(name != self.tags(provider.cluster_name)[TAG_RAY_NODE_NAME])

    def others(self, provider: WatchedProvider) -> list[str]:
        """Return the workers that a new cluster lists although they carry the name of another one."""
        own = self.tags(provider.cluster_name)[TAG_RAY_NODE_NAME]
        before = sorted(self.watch.before.get(provider.cluster_name, ()))
        tags = {node_id: provider.node_tags(node_id) for node_id in before}
        workers = [n for n in before if tags[n].get(TAG_RAY_NODE_KIND) != NODE_KIND_HEAD]
        return [n for n in workers if tags[n].get(TAG_RAY_NODE_NAME) not in (None, "", own)]

    def listed(self, provider: WatchedProvider, **filters: str) -> list[str]:
        """Return the nodes with these tags, without those that were there before the check."""
        before = self.watch.before.get(provider.cluster_name, ())
        return [node_id for node_id in provider.non_terminated_nodes(dict(filters)) if node_id not in before]

    def machines(self, port: V1Adapter, provider: WatchedProvider) -> list[CloudInstance]:
        """Return what the autoscaler reads, without what was there before the check."""
        before = self.watch.before.get(provider.cluster_name, ())
        return [machine for cloud_id, machine in port.list_instances().items() if cloud_id not in before]

    def refused(self, kind: FailureKind) -> tuple[WatchedProvider, Mapping[str, Any]] | None:
        """Return a provider that refuses with this kind, and the order; None where nothing provokes it."""
        name = self.cluster()
        order: RefusedOrder | None = self.watch.call(
            "the constructor", lambda: self._make_refused(kind, name)
        )
        if order is None:
            self.clusters.pop()
            return None
        config = self.machine.node_config if order.node_config is None else order.node_config
        return self.watch.watched(submitting(order.provider), name), config

    def tags(self, cluster_name: str, request: str = "r-1", **others: str) -> dict[str, str]:
        """Return the tags that the autoscaler gives a worker."""
        given = worker_tags(cluster_name, self.machine.node_type, "hash", RequestId(request))
        return {**given, **others}

    def create(self, provider: WatchedProvider, count: int = 1, **tags: str) -> list[str]:
        """Create nodes the way the autoscaler does; return the ids that were not listed before."""
        before = set(self.listed(provider))
        self.call_create(provider, self.tags(provider.cluster_name, **tags), count)
        return [node_id for node_id in self.listed(provider) if node_id not in before]

    def call_create(self, provider: WatchedProvider, tags: dict[str, str], count: int = 1) -> object:
        """Call create, by the newest method the class has."""
        machine = self.machine
        config, sizes = (
            copy.deepcopy(dict(machine.node_config)),
            (dict(machine.resources), dict(machine.labels)),
        )
        return create_nodes(provider, type(provider.bare), config, dict(tags), count, *sizes)

    def adapter(self, provider: WatchedProvider, node_config: Mapping[str, Any] | None = None) -> V1Adapter:
        """Return the port around it, with every call made at once and in this thread."""
        machine = self.machine
        launch = NodeLaunch(
            node_type=machine.node_type,
            node_config=machine.node_config if node_config is None else node_config,
            resources=machine.resources,
            labels=machine.labels,
            launch_hash="hash",
        )
        launches = {machine.node_type: launch}
        return V1Adapter(provider, lambda: launches, cluster_name=provider.cluster_name, pools=inline_pools())

    def until(self, holds: Callable[[], bool]) -> bool:
        """Return whether it holds within `starts_within_s`."""
        end = self.clock.monotonic() + self.sizes.starts_within_s
        pause_s = 0.02
        while not holds():
            if self.clock.monotonic() >= end:
                return False
            self.clock.sleep(pause_s)
            pause_s = min(1.0, pause_s * 1.5)  # a cloud that takes minutes is not asked fifty times a second
        return True

    def close(self) -> None:
        self.watch.close()


def provider_with_tags(subject: ProviderSubject, otherwise: str) -> WatchedProvider:
    """Return a new object; DoesNotApply, with this reason, where nodes have no tags."""
    provider = subject.provider()
    if not keeps_tags(provider):
        raise DoesNotApply(otherwise)
    return provider


def keeps_tags(provider: WatchedProvider) -> bool:
    """Return whether nodes have tags; those that are requested by number have none."""
    return not isinstance(provider.bare, SubmittingProvider)


Show = Callable[[ProviderSubject], str]  # returns what it saw; raises PromiseBroken
Machines = Callable[[CheckSizes], int]


class DoesNotApply(Exception):
    """A line says nothing about this provider, and why."""


@dataclass(frozen=True)
class Check:
    """A line of the contract; its name is a sentence with underscores."""

    name: str
    show: Show
    machines: Machines  # that it creates, at most

    @property
    def line(self) -> str:
        return self.name.replace("_", " ")


def check(machines: int | Machines) -> Callable[[Show], Check]:
    """Make a line of the contract of a function, whose name is the line."""
    count = machines if callable(machines) else lambda sizes: machines
    return lambda show: Check(show.__name__, show, count)


def checks_in(names: Mapping[str, object]) -> tuple[Check, ...]:
    """Return the lines that a module defines, in its order."""
    return tuple(one for one in names.values() if isinstance(one, Check))


several: Machines = attrgetter("several")
crowd: Machines = attrgetter("crowd")
