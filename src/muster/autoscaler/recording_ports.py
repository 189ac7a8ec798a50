"""Ports that remember what passed through them, so that the monitor can tell about it after a tick.

The composition root puts them around the real ports; the loop does not know that they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from msgspec import structs

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    LaunchFailure,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.plan import Drain, ScalingReport
from muster.cluster.ports import CloudProvider, Drainer, NodeSource, Ports, SpecSource, WorksInBackground
from muster.cluster.snapshot import ProviderTraits
from muster.cluster.validate import (
    is_sound_constraint,
    is_sound_demand,
    is_sound_gang,
    is_sound_node,
)


@dataclass
class Sightings:
    """What was seen and what went wrong since the tick began."""

    runtime: RuntimeReport | None = None
    runtime_error: Exception | None = None
    spec: ClusterSpec = field(default_factory=ClusterSpec)
    config_problem: str = ""
    traits: ProviderTraits = field(default_factory=ProviderTraits)
    launch_errors: int = 0  # calls refused or broken, at once or later
    terminate_errors: int = 0
    drain_errors: int = 0

    def clear(self) -> None:
        """A tick begins. Spec and traits stay what they were until they are read again."""
        self.runtime, self.runtime_error, self.config_problem = None, None, ""
        self.launch_errors = self.terminate_errors = self.drain_errors = 0


def watched(ports: Ports, seen: Sightings) -> Ports:
    """The same ports, under observation."""
    return replace(
        ports,
        provider=_WatchedProvider(ports.provider, seen),
        nodes=_WatchedNodes(ports.nodes, seen),
        drainer=_WatchedDrainer(ports.drainer, seen),
        spec=_WatchedSpec(ports.spec, seen),
    )


class _WatchedNodes:
    def __init__(self, inner: NodeSource, seen: Sightings) -> None:
        self._inner, self._seen = inner, seen

    def read(self) -> RuntimeReport:
        try:
            report = self._inner.read()
        except Exception as error:
            self._seen.runtime_error = error
            raise
        self._seen.runtime = sound(report)
        return report

    def publish(self, version: int, report: ScalingReport) -> None:
        self._inner.publish(version, report)


class _WatchedSpec:
    def __init__(self, inner: SpecSource, seen: Sightings) -> None:
        self._inner, self._seen = inner, seen

    def current(self) -> tuple[ClusterSpec, str]:
        self._seen.spec, self._seen.config_problem = self._inner.current()
        return self._seen.spec, self._seen.config_problem


class _WatchedDrainer:
    def __init__(self, inner: Drainer, seen: Sightings) -> None:
        self._inner, self._seen = inner, seen

    def drain(self, action: Drain) -> None:
        with _counted(self._seen, "drain_errors"):
            self._inner.drain(action)

    def under_way(self, request_id: RequestId) -> bool:
        return isinstance(self._inner, WorksInBackground) and self._inner.under_way(request_id)

    def poll(self) -> Sequence[DrainFailure]:
        failures = tuple(self._inner.poll())
        self._seen.drain_errors += len(failures)
        return failures


class _WatchedProvider:
    def __init__(self, inner: CloudProvider, seen: Sightings) -> None:
        self._inner, self._seen = inner, seen

    def traits(self) -> ProviderTraits:
        self._seen.traits = self._inner.traits()
        return self._seen.traits

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        return self._inner.list_instances()

    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        with _counted(self._seen, "launch_errors"):
            self._inner.launch(request_id, shape)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        with _counted(self._seen, "terminate_errors"):
            self._inner.terminate(request_id, cloud_ids)

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        self._inner.resize(request_id, cloud_id, desired)

    def under_way(self, request_id: RequestId) -> bool:
        return isinstance(self._inner, WorksInBackground) and self._inner.under_way(request_id)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        failures = tuple(self._inner.poll_launch_failures())
        self._seen.launch_errors += len({failure.request_id for failure in failures})
        return failures

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        failures = tuple(self._inner.poll_terminate_failures())
        self._seen.terminate_errors += len(failures)
        return failures


def sound(report: object) -> RuntimeReport | None:
    """What can be told on: rows that make no sense are left out, as the loop itself leaves them out."""
    if not isinstance(report, RuntimeReport):
        return None
    return structs.replace(
        report,
        nodes=tuple(filter(is_sound_node, report.nodes)),
        demands=tuple(filter(is_sound_demand, report.demands)),
        gangs=tuple(filter(is_sound_gang, report.gangs)),
        constraints=tuple(filter(is_sound_constraint, report.constraints)),
    )


@contextmanager
def _counted(seen: Sightings, counter: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        setattr(seen, counter, getattr(seen, counter) + 1)
        raise
