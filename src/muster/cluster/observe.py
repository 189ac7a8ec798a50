"""Read every port once and builds the Snapshot; a port that fails is noted and never fatal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timezone
from typing import TypeVar

from msgspec.structs import replace

from muster.base.clock import Boot, SteadyClock
from muster.base.forecast import Forecast, fault_of, in_time_of
from muster.base.ids import CloudId, InstanceId
from muster.base.rng import Ambient
from muster.base.untrusted import call_safely, describe, error_text
from muster.cluster.cost import MOST_CHARGED_S, unseen_s
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    InstallFailure,
    LaunchFailure,
    NodeKind,
    NodeReport,
    NodeStatus,
    Notice,
    ResizeFailure,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.plan import Launch, Terminate
from muster.cluster.ports import ForecastReport, Ledger, NoticeReport, PortErrors, Ports
from muster.cluster.snapshot import BootMark, ProviderTraits, Quarantined, Snapshot
from muster.cluster.validate import is_sound_machine, listed, usable_notices, usable_report

T = TypeVar("T")
MOST_SKEW_S = 30.0  # by which the clocks of tuner and head may differ
_RUNTIME = "runtime"  # the source of notes about the runtime's report
Failure = LaunchFailure | TerminateFailure | DrainFailure | InstallFailure | ResizeFailure
C = TypeVar("C", bound=CloudInstance | NodeReport | Notice | TerminateFailure | ResizeFailure)
F = TypeVar("F", LaunchFailure, TerminateFailure, DrainFailure, InstallFailure, ResizeFailure)


class FailureInbox:
    """Keeps failures until a decision about them is committed: no lost commit loses one.

    The observer puts in what it polled and the executor what was refused.
    """

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._offered: tuple[int, int] | None = None  # ledger version, how many failures

    def put(self, failure: Failure) -> None:
        """Add a failure that is not part of a decision yet."""
        self._failures.append(failure)

    def of(self, kind: type[F]) -> tuple[F, ...]:
        """Return the failures of one kind, oldest first."""
        return tuple(failure for failure in self._failures if isinstance(failure, kind))

    def offer(self, version: int, undecided: Collection[Failure] = ()) -> None:
        """Mark all but `undecided` as part of a decision to be committed at this version of the ledger."""
        self._failures.sort(key=lambda failure: failure in undecided)
        self._offered = (version, len(self._failures) - len(undecided))

    def resolve_offer(self, version: int) -> None:
        """Drop what was offered if the ledger is past the offer's version: then that commit was stored.

        A failure decided upon twice would fail a second machine, one that may be on its way.
        """
        if self._offered is not None and version > self._offered[0]:
            self.clear()
        self._offered = None

    def clear(self) -> None:
        """Drop what was offered: the decision about it is durable."""
        if self._offered is not None:
            del self._failures[: self._offered[1]]
        self._offered = None


class CloudIds:
    """What the ledger calls machines, where a provider spells their ids in different ways.

    The observer folds what it reads; the executor passes ids on as the provider listed them last.
    """

    def __init__(self) -> None:
        self.ignore_case = False
        self._spelled: dict[CloudId, CloudId] = {}

    def fold(self, given: C) -> C:
        """Return a machine, node, notice or failure with the id that the ledger has."""
        if not self.ignore_case or given.cloud_id is None:
            return given
        return replace(given, cloud_id=CloudId(given.cloud_id.lower()))

    def note(self, listed: Iterable[CloudId]) -> None:
        if self.ignore_case:
            self._spelled |= {CloudId(name.lower()): name for name in listed}

    def spell(self, cloud_id: CloudId) -> CloudId:
        return self._spelled.get(cloud_id, cloud_id)


class Observer:
    """Reads the world once per call. It keeps only what identifies an outdated report."""

    def __init__(
        self, ports: Ports, ambient: Ambient, inbox: FailureInbox, ids: CloudIds | None = None
    ) -> None:
        self._ports = ports
        self._ids = ids or CloudIds()
        self._ambient = ambient
        self._inbox = inbox
        self._clock: SteadyClock | None = None
        self._unseen_s = 0.0
        self._notes: list[Quarantined] = []
        self._spec = ClusterSpec()
        self._traits = ProviderTraits()
        self._runtime_version = -1
        self._runtime_at = float("-inf")
        self.errors = PortErrors()

    def observe(self) -> tuple[Snapshot, Ledger]:
        """Read the ledger and every port. Raises StoreError when the ledger cannot be read, nothing else."""
        self.errors = PortErrors()
        ledger = self._ports.store.load()
        self._inbox.resolve_offer(ledger.version)
        self._notes = list(ledger.damaged)
        if self._clock is None:
            self._clock = self._start_clock(ledger)
            self._runtime_version, self._runtime_at = ledger.memory.report_version, self._clock.now()
        now, boot = self._clock.now(), self._ambient.boot
        if _is_of(ledger.memory.clock, boot):
            self._unseen_s = 0.0  # what the first look found is written down
        traits = self._read_traits()
        self._ids.ignore_case = traits.ids_ignore_case
        self._poll_failures()
        cloud = self._read_cloud()  # before the spec: a machine that an edit asks for is not above its limits
        snapshot = Snapshot(
            tick_id=self._ambient.ids.fresh("t"),
            now=now,
            version=ledger.version,
            spec=self._read_spec(),
            instances=ledger.instances,
            cloud=cloud,
            runtime=self._read_runtime(now, ledger),
            launch_failures=self._inbox.of(LaunchFailure),
            terminate_failures=self._inbox.of(TerminateFailure),
            drain_failures=self._inbox.of(DrainFailure),
            install_failures=self._inbox.of(InstallFailure),
            resize_failures=self._inbox.of(ResizeFailure),
            notices=self._read_notices(now),
            forecasts=self._read_forecasts(now),
            traits=traits,
            memory=ledger.memory,
            clock=None if boot is None else BootMark(boot.boot_id, boot.elapsed(), now),
            unseen_s=self._unseen_s,
            recent_failures=ledger.recent_failures,
            quarantined=tuple(self._notes),
            unheard_terminates=_subjects(ledger, Terminate),
            open_launches=_subjects(ledger, Launch),
        )
        return snapshot, ledger

    def _start_clock(self, ledger: Ledger) -> SteadyClock:
        """Start the steady clock where that of the process before is by now, if the boot is the same.

        On another boot only the wall clock shows how much time has passed, and it may be wrong: what is more
        than a reboot takes is not charged.
        """
        boot, wall = self._ambient.boot, self._ambient.clock.now()
        mark = ledger.memory.clock if _is_of(ledger.memory.clock, boot) else None
        offset = mark.at - mark.elapsed_s if mark is not None else None
        clock = SteadyClock(self._ambient.clock, ledger.newest_at, boot, offset)
        passed_s = clock.now() - ledger.newest_at
        if boot is None or not ledger.newest_at or mark is not None:
            ahead_h = (wall - clock.now()) / 3600.0
            if abs(ahead_h) > 1.0:
                self._note(
                    "clock", f"it is {ahead_h:+.1f} h off muster's time, which follows it after a reboot"
                )
        elif passed_s > MOST_CHARGED_S:
            self._unseen_s = unseen_s(passed_s)
            text = f"{passed_s / 3600.0:.1f} h have passed by the clock of another boot of the head"
            self._note("clock", f"{text}: machines are charged for {MOST_CHARGED_S / 3600.0:g} h of them")
        return clock

    def _ask(self, source: str, question: Callable[[], T]) -> T | None:
        try:
            return call_safely(question)
        except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the loop
            if source == _RUNTIME:
                self.errors = replace(self.errors, runtime=error)
            self._note(source, error_text(error))
            return None

    def _note(self, source: str, message: str) -> None:
        self._notes.append(Quarantined(source=source, message=message))

    def _read_spec(self) -> ClusterSpec:
        answer: object = self._ask("config", self._ports.spec.current)
        match answer:
            case (ClusterSpec() as spec, str(fault)):
                self._spec, self.errors = spec, replace(self.errors, config=fault)
                if fault:
                    self._note("config", f"the newest edit is not used, the last good one stays: {fault}")
            case None:
                pass
            case _:
                self._note("config", f"not a spec, the last good one stays: {describe(answer)}")
        return self._spec

    def _read_traits(self) -> ProviderTraits:
        """A provider that cannot be read keeps its last traits: a read-only one must stay read-only.

        A machine that the runtime would not count again is not resized.
        """
        answer: object = self._ask("provider traits", self._ports.provider.traits)
        if isinstance(answer, ProviderTraits):
            can_count = self._ports.resizer is not None
            self._traits = answer if can_count else replace(answer, resizable=False)
        elif answer is not None:
            self._note("provider traits", f"not usable: {describe(answer)}")
        return self._traits

    def _read_cloud(self) -> Mapping[CloudId, CloudInstance] | None:
        listed: object = self._ask("provider list", self._ports.provider.list_instances)
        if not isinstance(listed, Mapping):
            if listed is not None:
                self._note("provider list", f"not a mapping: {describe(listed)}")
            return None
        if not all(is_sound_machine(key, machine) for key, machine in listed.items()):
            listed = {CloudId(key): self._machine(key, listed[key]) for key in listed if isinstance(key, str)}
        if not self._ids.ignore_case:
            return listed
        self._ids.note(listed)
        return {machine.cloud_id: machine for machine in map(self._ids.fold, listed.values())}

    def _machine(self, key: str, machine: object) -> CloudInstance:
        """An entry that cannot be read still shows that the machine exists: its record must not end."""
        if isinstance(machine, CloudInstance) and is_sound_machine(key, machine):
            return machine
        self._note(f"machine {key}", f"the provider's entry is not usable: {describe(machine)}")
        return CloudInstance(cloud_id=CloudId(key), node_type="", kind=NodeKind.UNMANAGED, is_running=False)

    def _read_runtime(self, now: float, ledger: Ledger) -> RuntimeReport | None:
        report: object = self._ask(_RUNTIME, self._ports.nodes.read)
        if report is None:
            return None
        if not isinstance(report, RuntimeReport) or not isinstance(report.version, int):
            self._note(_RUNTIME, f"not a report: {describe(report)}")
            return None
        # A report older than one already seen would make living nodes look gone. A runtime that restarted
        # counts from zero again, so the lower number is accepted after a while, or from an unknown head.
        usable = usable_report(report, self._note)
        is_young = now - self._runtime_at <= self._spec.timeouts.listing_grace_s
        if report.version < self._runtime_version and is_young and not _has_new_head(usable, ledger):
            self._note(_RUNTIME, f"report {report.version} is older than {self._runtime_version}: ignored")
            return None
        self._runtime_version, self._runtime_at = report.version, now
        if self._ids.ignore_case:
            usable = replace(usable, nodes=tuple(map(self._ids.fold, usable.nodes)))
        return usable

    def _read_notices(self, now: float) -> tuple[Notice, ...] | None:
        """Notices are by the wall clock; those of the snapshot are in its own time."""
        source = self._ports.notices
        if source is None:
            return ()
        report: object = self._ask("notices", source.read)
        if not isinstance(report, NoticeReport):
            if report is not None:
                self._note("notices", f"not a report: {describe(report)}")
            return None
        self._notes.extend(report.damaged)
        shift_s = now - self._ambient.clock.now()
        return tuple(
            replace(
                notice,
                written_at=notice.at,
                at=None if notice.at is None else notice.at + shift_s,
                deadline=None if notice.deadline is None else notice.deadline + shift_s,
            )
            for notice in map(self._ids.fold, usable_notices(report.notices, self._note))
        )

    def _read_forecasts(self, now: float) -> tuple[Forecast, ...]:
        """Forecast that are stale, damaged or of the future are reported and left out: no money for them."""
        source = self._ports.forecasts
        report: object = None if source is None else self._ask("forecasts", source.read)
        if not isinstance(report, ForecastReport):
            if report is not None:
                self._note("forecasts", f"not a report: {describe(report)}")
            return ()
        self._notes.extend(report.damaged)
        usable: dict[str, Forecast] = {}
        wall = self._ambient.clock.now()
        for forecast in report.forecasts:
            fault = fault_of(forecast) or _untimely(forecast, wall)
            if fault and not (forecast.trials or forecast.coming):
                continue  # of an experiment that is over: it expects nothing
            if fault:
                self._note(f"forecast {forecast.experiment}", f"{fault}: ignored")
            else:
                usable[forecast.experiment] = in_time_of(forecast, now - wall)
        return tuple(usable.values())

    def _poll_failures(self) -> None:
        ports = self._ports
        polls: list[tuple[str, Callable[[], Iterable[Failure]]]] = [
            ("launch failures", ports.provider.poll_launch_failures),
            ("terminate failures", ports.provider.poll_terminate_failures),
            ("drain failures", ports.drainer.poll),
        ]
        if ports.installer is not None:
            polls.append(("install failures", ports.installer.poll))
        if ports.resizer is not None:
            polls.append(("node resize failures", ports.resizer.poll))
        polls.append(("resize failures", ports.provider.poll_resize_failures))
        polled: list[Failure] = []
        for source, poll in polls:
            answers: object = self._ask(source, poll)
            for failure in listed(source, () if answers is None else answers, self._note):
                if isinstance(failure, Failure):
                    polled.append(failure)
                else:
                    self._note(source, f"not usable: {describe(failure)}")
        for failure in polled:
            of_machine = failure if isinstance(failure, TerminateFailure | ResizeFailure) else None
            self._inbox.put(failure if of_machine is None else self._ids.fold(of_machine))
        self.errors = replace(
            self.errors,
            launch=len({failure.request_id for failure in polled if isinstance(failure, LaunchFailure)}),
            terminate=sum(isinstance(failure, TerminateFailure) for failure in polled),
            drain=sum(isinstance(failure, DrainFailure) for failure in polled),
        )


def _subjects(ledger: Ledger, kind: type[Launch | Terminate]) -> frozenset[InstanceId]:
    """Return the records that have an effect of this kind in the outbox."""
    return frozenset(name for act in ledger.outbox if isinstance(act, kind) for name in act.instance_ids)


def _has_new_head(report: RuntimeReport, ledger: Ledger) -> bool:
    known = {record.node_id for record in ledger.instances.values() if record.kind is NodeKind.HEAD}
    alive = (node for node in report.nodes if node.is_head and node.status is not NodeStatus.DEAD)
    return any(node.node_id not in known for node in alive)


def _is_of(mark: BootMark | None, boot: Boot | None) -> bool:
    return mark is not None and boot is not None and mark.boot_id == boot.boot_id


def _untimely(forecast: Forecast, now: float) -> str:
    age_s = now - forecast.at
    written = datetime.fromtimestamp(forecast.at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    if age_s > forecast.valid_s:
        return (
            f"it was written at {written} and good for {forecast.valid_s:.0f} s; if its program still runs, "
            "set the clocks of its machine and of the head"
        )
    if age_s < -MOST_SKEW_S:
        return f"it was written at {written}, in the future; set the clocks of its machine and of the head"
    return ""
