"""V1Adapter: any v1 NodeProvider as a CloudProvider. Built by the registry and by tests.

The loop's thread never waits for the cloud: creations, terminations and looks have threads of their own, and
what failed is fetched by `poll_*`. With `inline_pools` all of it happens in the caller instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, LaunchFailure, TerminateFailure
from muster.cluster.snapshot import ProviderTraits
from muster.config.node_launch import NodeLaunch
from muster.errors import ProviderMisconfigured
from muster.providers.v1.calls import V1Calls
from muster.providers.v1.launches import LaunchDesk
from muster.providers.v1.listing import Listing
from muster.providers.v1.terminations import TerminationDesk
from muster.providers.v1.thread_pools import InlinePool, Pool, ThreadPool

TERMINATE_THREADS = 4
CLOSE_S = 5.0


@dataclass(frozen=True)
class AdapterLimits:
    """How the adapter treats its provider."""

    max_launch_batch: int = 5  # machines per create call
    max_concurrent: int = 10  # machines being created at a time
    list_wait_s: float = 2.0  # how long a tick waits for the list
    given_up_s: float = 300.0  # a call that takes longer than this is made again
    installs_runtime: bool | None = None  # None: what provider.disable_node_updaters and the class say

    @property
    def launch_threads(self) -> int:
        return max(1, math.ceil(self.max_concurrent / self.max_launch_batch))


@dataclass(frozen=True)
class AdapterPools:
    """Where the three kinds of calls run; none of them can hold up another."""

    launch: Pool
    terminate: Pool
    new_listing: Callable[[], Pool]  # asked again when a look hangs: its thread is lost


def thread_pools(limits: AdapterLimits) -> AdapterPools:
    return AdapterPools(
        launch=ThreadPool("v1-launch", limits.launch_threads),
        terminate=ThreadPool("v1-terminate", TERMINATE_THREADS),
        new_listing=lambda: ThreadPool("v1-list", 1),
    )


def inline_pools() -> AdapterPools:
    """Everything in the caller's thread, at once: deterministic."""
    return AdapterPools(launch=InlinePool(), terminate=InlinePool(), new_listing=InlinePool)


class ReadOnlyRefusal(ProviderMisconfigured, NotImplementedError):
    """A provider that can only be looked at was asked to do something."""


class V1Adapter:
    """The port around one v1 provider object.

    Idempotent by request id: within this process by memory, across restarts by the machines' tags.
    """

    def __init__(
        self,
        node_provider: Any,  # noqa: ANN401 - duck typed
        launches: Callable[[], Mapping[str, NodeLaunch]],
        *,
        cluster_name: str,
        limits: AdapterLimits | None = None,
        pools: AdapterPools | None = None,
        clock: Clock | None = None,
    ) -> None:
        limits, clock = limits or AdapterLimits(), clock or SystemClock()
        self.v1 = node_provider
        self._calls = calls = V1Calls(node_provider, cluster_name)
        self._pools = pools or thread_pools(limits)
        self._launches = LaunchDesk(calls, launches, self._pools.launch, limits.max_launch_batch)
        self._terminations = TerminationDesk(calls, self._pools.terminate, clock, limits.given_up_s)
        self._listing = Listing(calls, self._pools.new_listing, clock, limits.list_wait_s, limits.given_up_s)
        self._limits = limits
        self._traits: ProviderTraits | None = None

    def traits(self) -> ProviderTraits:
        """Asked of the provider once: what it is like does not change while it lives."""
        if self._traits is None:
            known = self._limits.installs_runtime
            self._traits = ProviderTraits(
                read_only=self._calls.read_only(),
                installs_runtime=self._calls.installs_runtime() if known is None else known,
                max_batch=self._limits.max_launch_batch,
            )
        return self._traits

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        return self._listing.read()

    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        self._refuse_if_read_only("launch")
        self._launches.take(request_id, shape)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self._refuse_if_read_only("terminate")
        self._terminations.take(request_id, cloud_ids)

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        raise ProviderMisconfigured("a v1 provider cannot resize machines: traits().resizable is False")

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self._launches.requests.poll()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self._terminations.requests.poll()

    def under_way(self, request_id: RequestId) -> bool:
        """Whether the effect is still being worked at, or has failures that nobody has fetched yet."""
        desks = (self._launches.requests, self._terminations.requests)
        return any(requests.is_open(request_id) for requests in desks)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Take nothing more, and give calls under way a moment; a hung one does not keep us here."""
        self._pools.launch.close(wait_s)
        self._pools.terminate.close(wait_s)
        self._listing.close(0.0)
        close = getattr(
            self.v1, "close", None
        )  # no word of Ray's; providers with threads of their own have it
        if callable(close):
            close()

    def _refuse_if_read_only(self, what: str) -> None:
        if self.traits().read_only:
            raise ReadOnlyRefusal(f"{type(self.v1).__name__} is read-only: it cannot {what} machines")
