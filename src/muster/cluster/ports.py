"""Define the interfaces between the loop and the outside world; adapters and the simulator implement them.

No method here may block for long: slow work runs on the adapter's own threads and comes back through `poll_*`
or the next tick. Every effect carries a request id, and repeating it must change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from muster.base.forecast import Forecast
from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    IdlePolicy,
    InstallFailure,
    Instance,
    LaunchFailure,
    NodeType,
    Notice,
    Offer,
    ResizeFailure,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.plan import Action, Drain, Install, Plan, ResizeNode, ScalingReport
from muster.cluster.snapshot import FailedLaunch, Memory, ProviderTraits, Quarantined, Snapshot
from muster.errors import ProviderMisconfigured


class CloudProvider(Protocol):
    """List, launch and terminate the machines of one cluster; implementations derive from it.

    A method raises a ProviderError subclass when it refuses a whole call for a known reason; any other
    exception means "unknown outcome", and the call is repeated with the same request id.
    """

    def traits(self) -> ProviderTraits: ...

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Return every machine of this cluster that is not terminated, the head included; may be late."""
        ...

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        """Start a launch. Idempotent: a request id seen before launches nothing more.

        With offers, `shape` has one type, and machines come from the first offer that has some left; a
        provider whose `traits().buys_offers` is false ignores them, one without `takes_next_offer` tries the
        first. Units that are refused later come back from `poll_launch_failures`, one record each.
        """
        ...

    def withdraw(self, request_id: RequestId) -> None:
        """Drop what is left to do of a launch that no record waits for any more."""
        return  # a provider that hands every launch over at once has nothing left to do

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        """Start to terminate machines. Idempotent; machines already gone are a success."""
        ...

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        """Return the units refused since the last poll."""
        return ()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        """Return the machines that could not be terminated since the last poll."""
        return ()

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        """Start to change a machine in place, up or down; called only when `traits().resizable`.

        Progress is seen in the `resize` of the listed machine. Idempotent: it says the size, not the change.
        """
        raise ProviderMisconfigured("this provider cannot resize machines: traits().resizable is False")

    def poll_resize_failures(self) -> Sequence[ResizeFailure]:
        """Return the resizes refused since the last poll, after their call had returned."""
        return ()

    def end_idle_cluster(self, request_id: RequestId, policy: IdlePolicy) -> None:
        """Start to suspend or delete the whole cluster, where `traits().idle_policies` has the policy.

        Idempotent: called again until the cluster ends.
        """
        raise ProviderMisconfigured(f"this provider cannot {policy.value} a cluster")

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether a call has returned before its effect reached the other side.

        Such an effect stays in the outbox, so that it is repeated if the process dies before it is done.
        """
        return False

    def notice_source(self) -> NoticeSource | None:
        """Return who announces the end of machines, where that is not the machines themselves."""
        return None


class NodeSource(Protocol):
    """The runtime's view: nodes, idle times, demand."""

    def read(self) -> RuntimeReport: ...

    def publish(self, version: int, report: ScalingReport) -> None:
        """Publish the report to the runtime, which ignores a version lower than an earlier one."""
        ...


class Drainer(Protocol):
    """Empties nodes. Refusals come from `poll`; unknown nodes count as drained."""

    def drain(self, action: Drain) -> None: ...

    def poll(self) -> Sequence[DrainFailure]: ...

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether the drain has not reached the node yet; see `CloudProvider.under_way`."""
        return False


class NodeResizer(Protocol):
    """Lets the runtime count another size of a node. It returns at once, and is idempotent.

    What the node counts is seen in the report: less than asked for where running work needs more. Refusals
    come from `poll`.
    """

    def resize(self, action: ResizeNode) -> None: ...

    def poll(self) -> Sequence[ResizeFailure]: ...


class Installer(Protocol):
    """Sets machines up. It returns at once; success is seen as a running node. Idempotent."""

    def start(self, action: Install) -> None: ...

    def poll(self) -> Sequence[InstallFailure]: ...

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether the installation still runs; see `CloudProvider.under_way`."""
        return False


class NoticeReport(Struct, frozen=True, kw_only=True):
    """Every notice that is there now, and what cannot be read of them."""

    notices: tuple[Notice, ...] = ()  # at most one for each machine
    damaged: tuple[Quarantined, ...] = ()


class NoticeSource(Protocol):
    """Has what clouds announced about machines. A notice stays until it is long over."""

    def read(self) -> NoticeReport: ...


class ForecastReport(Struct, frozen=True, kw_only=True):
    """Every forecast that is there now, and what cannot be read of them."""

    forecasts: tuple[Forecast, ...] = ()  # at most one for each experiment; stale ones are left out later
    damaged: tuple[Quarantined, ...] = ()


class ForecastSource(Protocol):
    """Has what tuners said about their trials and about what is still to come."""

    def read(self) -> ForecastReport: ...


class SpecSource(Protocol):
    """Holds the current cluster file; it is read every tick."""

    def current(self) -> tuple[ClusterSpec, str]:
        """Return the last good spec, and what is wrong with the newest edit ("" when nothing is)."""
        ...


class Ledger(Struct, frozen=True, kw_only=True):
    """What a store holds when a tick starts."""

    version: int = 0
    instances: Mapping[InstanceId, Instance] = {}  # live records only
    memory: Memory = Memory()
    outbox: tuple[Action, ...] = ()  # committed effects not yet handed over, oldest first
    recent_failures: tuple[FailedLaunch, ...] = ()
    newest_at: float = 0.0  # the newest time ever written: the clock may not start before it
    damaged: tuple[Quarantined, ...] = ()  # rows that could not be read; the rest is here


class PortErrors(Struct, frozen=True, kw_only=True):
    """Counts what the ports refused or could not do during one tick, at once or later."""

    launch: int = 0  # launch calls
    terminate: int = 0  # terminate calls and machines
    drain: int = 0  # drain calls and nodes
    config: str = ""  # what is wrong with the newest edit of the configuration
    runtime: Exception | None = None  # why the runtime's report could not be read


class TickResult(Struct, frozen=True, kw_only=True):
    """Everything that one tick saw, decided and left behind."""

    plan: Plan
    snapshot: Snapshot
    ledger: Ledger  # as the tick left it, but with the damage and failures it was loaded with
    is_observed: bool = True  # False: the ledger could not be read; snapshot and ledger are empty
    is_decided: bool = True  # False: the ledger could not be used, so nothing was decided or done
    port_errors: PortErrors = PortErrors()
    took_s: float = 0.0
    config_version: object = None  # of the cluster file: another one means that the file was written
    interval_s: float = 0.0  # until the next tick

    @property
    def spec(self) -> ClusterSpec:
        return self.snapshot.spec

    @property
    def runtime(self) -> RuntimeReport | None:
        """Return the runtime's report, or None when it could not be read or used this time."""
        return self.snapshot.runtime

    @property
    def records(self) -> tuple[Instance, ...]:
        return tuple(self.ledger.instances.values())

    @property
    def types_with_offers(self) -> tuple[NodeType, ...]:
        """Return the node types whose offers are used; none when the provider cannot choose among them."""
        can_choose = self.snapshot.traits.buys_offers
        return tuple(known for known in self.spec.node_types if known.offers and can_choose)


class InstanceStore(Protocol):
    """The ledger: one writer, compare-and-swap by version, effects in an outbox."""

    def load(self) -> Ledger: ...

    def commit(self, version: int, plan: Plan) -> int:
        """Write records, memory, decision and outbox in one transaction and returns the new version.

        Raises VersionConflict when the ledger is not at `version`; then nothing was written. A plan that
        changes nothing writes nothing and returns `version`.
        """
        ...

    def handed_over(self, request_ids: Sequence[RequestId]) -> None:
        """Remove effects from the outbox that reached their port or are no longer wanted."""
        ...

    def raise_version(self, at_least: int) -> int:
        """Raise the version to that of a runtime that remembers a higher one, and returns it."""
        ...


@dataclass(frozen=True)
class Ports:
    """Everything a controller is connected to.

    Without an installer, machines bring the runtime; without a resizer, none changes its size; without
    a source of notices, none are announced; without one of forecasts, nothing is known of what will come.
    """

    provider: CloudProvider
    nodes: NodeSource
    drainer: Drainer
    installer: Installer | None
    store: InstanceStore
    spec: SpecSource
    resizer: NodeResizer | None = None
    notices: NoticeSource | None = None
    forecasts: ForecastSource | None = None
