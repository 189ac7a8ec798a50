"""Snapshot: everything one tick may look at, the time included; and what the planner remembers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from muster.base.ids import CloudId, InstanceId
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    FailureKind,
    InstallFailure,
    Instance,
    LaunchFailure,
    RuntimeReport,
    TerminateFailure,
)


class ProviderTraits(Struct, frozen=True, kw_only=True):
    """What a provider is like, as data: planning never asks for its class."""

    read_only: bool = False  # nothing may be launched or terminated
    installs_runtime: bool = True  # machines come up with the runtime; False: our installer does it
    declarative: bool = False  # takes one shape per tick
    resizable: bool = False  # can change a machine's size in place
    max_batch: int | None = None  # largest launch call


class Quarantined(Struct, frozen=True, kw_only=True):
    """An input that was set aside so that the rest of the tick could go on."""

    source: str  # "record i-17", "cloud", "demand 3", "rule timeouts"
    message: str


class TypeHealth(Struct, frozen=True, kw_only=True):
    """What experience says about buying one node type; kept in the ledger, so restarts do not forget."""

    failures: float = 0.0  # decayed count
    failed_at: float = 0.0
    blocked_until: float = 0.0
    kind: FailureKind = FailureKind.UNKNOWN
    message: str = ""
    timed_out_at: float | None = None  # the newest ALLOCATION_TIMEOUT, for Ray's availability score


class Memory(Struct, frozen=True, kw_only=True):
    """What planning carries from tick to tick besides the instances."""

    health: Mapping[str, TypeHealth] = field(default_factory=dict)
    # Per type: since when at least k+1 machines on their way have been unneeded (spec 3.8).
    pending_idle: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    spent: float = 0.0  # $ of machines that are gone; live ones are added by `spend.spend_so_far`
    # Nodes of ended records that the runtime still lists: never adopted anew. Value: when the record ended.
    ended_nodes: Mapping[str, float] = field(default_factory=dict)
    # Since when each verdict says what it says: subject and code -> time.
    verdict_since: Mapping[str, float] = field(default_factory=dict)


class FailedLaunch(Struct, frozen=True, kw_only=True):
    """A launch that failed lately, for the report (the record itself is terminal and out of sight)."""

    instance_id: InstanceId
    node_type: str
    started_at: float
    failed_at: float
    reason: str


class Snapshot(Struct, frozen=True, kw_only=True):
    """One tick's whole world. `instances` holds live records only: terminal ones cannot cost time."""

    tick_id: str
    now: float
    version: int
    spec: ClusterSpec
    instances: Mapping[InstanceId, Instance] = field(default_factory=dict)
    cloud: Mapping[CloudId, CloudInstance] | None = None  # None: the list could not be read this time
    runtime: RuntimeReport | None = None  # None: the report could not be read this time
    launch_failures: tuple[LaunchFailure, ...] = ()
    terminate_failures: tuple[TerminateFailure, ...] = ()
    drain_failures: tuple[DrainFailure, ...] = ()
    install_failures: tuple[InstallFailure, ...] = ()
    traits: ProviderTraits = ProviderTraits()
    memory: Memory = Memory()
    recent_failures: tuple[FailedLaunch, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
