"""V1Adapter makes any v1 NodeProvider a CloudProvider; the registry and tests build it.

The loop's thread never waits for the cloud: creations, terminations and listings have separate threads, and
`poll_*` returns what failed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.base.ids import CloudId, RequestId
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.cluster.model import CloudInstance, LaunchFailure, Offer, TerminateFailure
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.config.to_spec import NodeLaunch
from muster.errors import ProviderMisconfigured
from muster.providers.background_calls import (
    GIVEN_UP_S,
    LIST_WAIT_S,
    CallPools,
    InstanceLister,
    TerminationQueue,
    thread_pools,
)
from muster.providers.v1.calls import V1Calls, V1Machines
from muster.providers.v1.failures import provider_call
from muster.providers.v1.launches import V1LaunchQueue

logger = logging.getLogger(__name__)

CLOSE_S = 5.0


@dataclass(frozen=True)
class AdapterLimits:
    """Holds how the adapter treats its provider."""

    max_launch_batch: int = 5  # machines per create call
    max_concurrent: int = 10  # machines being created at a time
    list_wait_s: float = LIST_WAIT_S
    given_up_s: float = GIVEN_UP_S
    installs_runtime: bool | None = None  # None: provider.disable_node_updaters and the class decide
    use_internal_ips: bool = False  # machines have no other addresses that are reached
    use_external_head_ip: bool = False  # but the head has one

    @property
    def launch_threads(self) -> int:
        return math.ceil(self.max_concurrent / self.max_launch_batch)


class ReadOnlyRefusal(ProviderMisconfigured, NotImplementedError):
    """A read-only provider was asked to change something."""


class V1Adapter(V1Machines, CloudProvider):
    """The port around one v1 provider object.

    Idempotent by request id within this process. Across restarts its traits ask for a wait: a launch that
    may have happened is not repeated before its machines must be listed, with their tags.
    """

    def __init__(
        self,
        node_provider: Any,  # noqa: ANN401 - duck typed
        launches: Callable[[], Mapping[str, NodeLaunch]],
        *,
        cluster_name: str,
        limits: AdapterLimits | None = None,
        pools: CallPools | None = None,
        clock: Clock | None = None,
    ) -> None:
        limits, clock = limits or AdapterLimits(), clock or SystemClock()
        super().__init__(
            node_provider,
            use_internal_ips=limits.use_internal_ips,
            use_external_head_ip=limits.use_external_head_ip,
        )
        self._calls = calls = V1Calls(node_provider, cluster_name)
        self._pools = pools or thread_pools(limits.launch_threads, clock)
        self._launches = V1LaunchQueue(
            calls, launches, self._pools.launch, limits.max_launch_batch, self._pools.pause, clock
        )
        self._terminations = TerminationQueue(
            calls.terminate, calls.living, self._pools.terminate, clock, given_up_s=limits.given_up_s
        )
        self._listing = InstanceLister(
            self._list, self._pools.new_listing, clock, limits.list_wait_s, limits.given_up_s
        )
        self._changes = OnChange(logger)
        self._limits = limits
        self._traits: ProviderTraits | None = None

    def traits(self) -> ProviderTraits:
        """Return the provider's traits, read once: they do not change while it lives."""
        if self._traits is None:
            known = self._limits.installs_runtime
            read_only = self._calls.read_only()
            self._traits = ProviderTraits(
                read_only=read_only,
                lists_nodes=read_only,
                installs_runtime=self._calls.installs_runtime() if known is None else known,
                buys_offers=self._calls.buys_offers(),
                ids_ignore_case=bool(getattr(self.v1, "ids_ignore_case", False)),
                listed_within_s=self._calls.listed_within_s,
            )
        return self._traits

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        machines = self._listing.read()
        self._launches.note_listed(tuple(machines.values()))
        return machines

    def _list(self) -> Mapping[CloudId, CloudInstance]:
        machines, problems = self._calls.listed()
        for node_id, problem in problems.items():
            self._changes.log(logging.WARNING, node_id, f"machine {node_id}: {problem}")
        return machines

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        self._refuse_if_read_only("launch")
        offer = offers[0] if offers and self.traits().buys_offers else None
        self._launches.take(request_id, shape, offer)

    def withdraw(self, request_id: RequestId) -> None:
        self._launches.withdraw(request_id)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self._refuse_if_read_only("terminate")
        self._terminations.take(request_id, cloud_ids, self._calls.max_terminate)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self._launches.requests.poll()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self._terminations.requests.poll()

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether the request is still being worked on, or has failures that were not polled."""
        queues = (self._launches.requests, self._terminations.requests)
        return any(requests.is_open(request_id) for requests in queues)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Take nothing more, and give calls under way a moment; a hung one is not waited for."""
        self._pools.launch.close(wait_s)
        self._pools.terminate.close(wait_s)
        self._listing.close()
        close = getattr(self.v1, "close", None)  # not Ray's; providers with threads have it
        try:
            if callable(close):
                provider_call(close)
        except Exception as error:  # noqa: BLE001 - what it held is lost with the process
            logger.warning("closing %s failed: %s", type(self.v1).__name__, error_text(error))

    def _refuse_if_read_only(self, what: str) -> None:
        if self.traits().read_only:
            raise ReadOnlyRefusal(f"{type(self.v1).__name__} is read-only: it cannot {what} machines")
