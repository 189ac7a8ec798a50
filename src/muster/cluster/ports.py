"""What the loop asks of the outside world. Adapters implement these; the simulator is one of them.

No method here may block for long: slow work runs on the adapter's own threads and comes back through
`poll_*` or the next look. Every effect carries a request id, and repeating it must change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from msgspec import Struct

from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    InstallFailure,
    Instance,
    LaunchFailure,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.plan import Action, Drain, Install, Plan, ScalingReport
from muster.cluster.snapshot import FailedLaunch, Memory, ProviderTraits, Quarantined, Snapshot


class CloudProvider(Protocol):
    """Machines. Raises a ProviderError subclass when it refuses a whole call for a known reason;
    any other exception means "unknown outcome" and the call is repeated with the same request id."""

    def traits(self) -> ProviderTraits: ...

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Every machine of this cluster that is not terminated, the head included. Eventually consistent."""
        ...

    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        """Start buying. Idempotent: a request id seen before buys nothing more. Units that are refused
        later come back from `poll_launch_failures`, one record each."""
        ...

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        """Start giving back. Idempotent; machines already gone are a success."""
        ...

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        """Change a machine in place; called only when `traits().resizable`."""
        ...

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        """Units refused since the last poll."""
        ...

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        """Machines not terminated since the last poll."""
        ...


@runtime_checkable
class WorksInBackground(Protocol):
    """A provider or drainer whose calls return before anything reached the other side may offer this.

    An effect under way stays in the outbox, so that it is repeated if the process dies before it is done.
    """

    def under_way(self, request_id: RequestId) -> bool: ...


class NodeSource(Protocol):
    """The runtime's view: nodes, idle times, demand."""

    def read(self) -> RuntimeReport: ...

    def publish(self, version: int, report: ScalingReport) -> None:
        """Tell the runtime what we are doing. A version lower than one published before is ignored there."""
        ...


class Drainer(Protocol):
    """Empties nodes. Returns at once; refusals come back from `poll`. Unknown nodes count as drained."""

    def drain(self, action: Drain) -> None: ...

    def poll(self) -> Sequence[DrainFailure]: ...


class Installer(Protocol):
    """Sets machines up. Returns at once; idempotent per request id; success is seen as a running node."""

    def start(self, action: Install) -> None: ...

    def poll(self) -> Sequence[InstallFailure]: ...


class SpecSource(Protocol):
    """The current wishes; re-read every tick."""

    def current(self) -> tuple[ClusterSpec, str]:
        """The last good spec, and what is wrong with the newest edit ("" when nothing is)."""
        ...


class Ledger(Struct, frozen=True, kw_only=True):
    """What a store holds when a tick starts."""

    version: int
    instances: Mapping[InstanceId, Instance]  # live records only
    memory: Memory
    outbox: tuple[Action, ...]  # committed effects not yet handed over, oldest first
    recent_failures: tuple[FailedLaunch, ...]
    newest_at: float  # the newest time ever written: the clock may not start before it
    damaged: tuple[Quarantined, ...] = ()  # rows that could not be read; the rest is here


class PortErrors(Struct, frozen=True, kw_only=True):
    """A PortErrors counts what the ports refused or could not do during one tick, at once or later."""

    launch: int = 0  # launch calls
    terminate: int = 0  # terminate calls and machines
    drain: int = 0  # drain calls and nodes
    config: str = ""  # what is wrong with the newest edit of the configuration
    runtime: Exception | None = None  # why the runtime's report could not be read


class TickResult(Struct, frozen=True, kw_only=True):
    """A TickResult is everything that one tick saw, decided and left behind."""

    plan: Plan
    snapshot: Snapshot | None  # None: the ledger could not be read, so nothing was observed
    ledger: Ledger | None  # as the tick left it, but with the damage and failures it was loaded with
    port_errors: PortErrors = PortErrors()


class InstanceStore(Protocol):
    """The ledger: one writer, compare-and-swap by version, effects in an outbox."""

    def load(self) -> Ledger: ...

    def commit(self, version: int, plan: Plan) -> int:
        """Write records, memory, decision record and outbox in one transaction; the new version.

        Raises VersionConflict when the ledger is not at `version`; then nothing was written. A plan that
        changes nothing writes nothing and returns `version`.
        """
        ...

    def handed_over(self, request_ids: Sequence[RequestId]) -> None:
        """These effects reached their port (or are no longer wanted): take them out of the outbox."""
        ...

    def raise_version(self, at_least: int) -> int:
        """Move the version up, for a runtime that remembers a higher one than ours; the new version."""
        ...


@dataclass(frozen=True)
class Ports:
    """Everything a controller is connected to. Without an installer, machines must bring the runtime."""

    provider: CloudProvider
    nodes: NodeSource
    drainer: Drainer
    installer: Installer | None
    store: InstanceStore
    spec: SpecSource
