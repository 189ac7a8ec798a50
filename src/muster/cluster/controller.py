"""Run one tick: observe, reconcile, commit, execute. Decides nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace
from typing_extensions import assert_never

from muster.base.ids import InstanceId, RequestId
from muster.base.log import OnChange, fields
from muster.base.rng import Ambient
from muster.base.untrusted import call_safely, error_text, message_text
from muster.cluster.backoff import is_blocked
from muster.cluster.model import (
    DrainFailure,
    FailureKind,
    InstallFailure,
    Instance,
    LaunchFailure,
    ResizeFailure,
    StopCause,
    TerminateFailure,
    merged_records,
)
from muster.cluster.observe import CloudIds, FailureInbox, Observer
from muster.cluster.plan import (
    Action,
    Drain,
    EndCluster,
    Install,
    Launch,
    Plan,
    Reason,
    Resize,
    ResizeNode,
    Terminate,
    attempt_of,
    base_id,
)
from muster.cluster.ports import CloudProvider, Drainer, Installer, Ledger, PortErrors, Ports, TickResult
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Quarantined, Snapshot
from muster.cluster.states import InstanceState
from muster.errors import MusterError, ProviderError, VersionConflict


class Executor:
    """Hands committed effects to their ports, in order, each on its own."""

    def __init__(self, ports: Ports, inbox: FailureInbox, ids: CloudIds | None = None) -> None:
        self._ports = ports
        self._inbox = inbox
        self._ids = ids or CloudIds()
        self._changes = OnChange(logger)
        self.errors: Counter[type[Action]] = Counter()  # calls of this tick that were refused or broke
        self.turned_away: set[RequestId] = set()  # repeated launches that wait for the end of the back-off

    def execute(
        self,
        actions: Iterable[Action],
        instances: Mapping[InstanceId, Instance],
        decided: Collection[RequestId] | None = None,
    ) -> frozenset[RequestId]:
        """Call the ports and return the effects that were handed over or that no record wants any more.

        The others stay in the outbox and are repeated in the next tick: their outcome is not known. `decided`
        are those of this tick; None: all are.
        """
        given = tuple(actions)
        newest = {(type(action), i): action.request_id for action in given for i in _subjects(action)}
        done: list[RequestId] = []
        for action in given:
            # A leftover that this tick decided again is dropped: one call, not two.
            is_newest = any(newest[type(action), i] == action.request_id for i in _subjects(action))
            is_repeat = decided is not None and action.request_id not in decided
            is_void = isinstance(action, EndCluster) and is_repeat
            wanted = is_newest and not is_void and is_wanted(action, instances)
            if not wanted:
                self._withdraw(action)
            if not wanted or self._hand_over(narrowed(action, instances), is_repeat):
                done.append(action.request_id)
        if done:
            self._ports.store.handed_over(done)
        return frozenset(done)

    def _withdraw(self, action: Action) -> None:
        """Let the provider drop a launch that still waits there; others need no call."""
        if isinstance(action, Launch):
            try:
                call_safely(lambda: self._ports.provider.withdraw(action.request_id))
            except Exception as error:  # noqa: BLE001 - its machines are removed when they come
                text = f"withdrawing {action.request_id} failed: {error_text(error)}"
                self._changes.log(logging.WARNING, "withdraw", text)

    def _hand_over(self, action: Action, is_repeat: bool) -> bool:
        """Return whether the effect is over. A refused one leaves the outbox with its record.

        A repeated launch that was turned away unread may have happened the first time: it stays.
        """
        try:
            call_safely(lambda: self._call(action))
            return not call_safely(lambda: self._is_under_way(action))
        except ProviderError as error:
            self.errors[type(action)] += 1
            # An adapter may raise its own error class.
            try:
                kind = FailureKind(error.kind)
            except Exception:  # noqa: BLE001 - an unknown kind, or one that cannot be read
                kind = FailureKind.UNKNOWN
            if is_repeat and isinstance(action, Launch) and kind in _TURNED_AWAY:
                text = f"Launch {action.request_id}: {message_text(error)}; it may have worked before"
                self._changes.log(logging.WARNING, "Launch", text)
                self.turned_away.add(action.request_id)
                self._refuse(action, kind, message_text(error), is_repeat=True)
                return False
            self._refuse(action, kind, message_text(error))
            return isinstance(action, Resize | ResizeNode | EndCluster)  # their rules ask again
        except Exception as error:  # noqa: BLE001 - unknown outcome: repeated with the same request id
            self.errors[type(action)] += 1
            text = f"{type(action).__name__} {action.request_id}: {error_text(error)}"
            self._changes.log(logging.WARNING, type(action).__name__, text)
            return False

    def _is_under_way(self, action: Action) -> bool:
        port: CloudProvider | Drainer | Installer | None = self._ports.provider
        if not isinstance(action, Launch | Terminate):
            port = self._ports.drainer if isinstance(action, Drain) else self._ports.installer
        is_long = isinstance(action, Launch | Terminate | Drain | Install)
        return is_long and port is not None and port.under_way(action.request_id)

    def _call(self, action: Action) -> None:
        spell = self._ids.spell
        match action:
            case Launch():
                self._ports.provider.launch(action.request_id, action.shape, action.offers)
            case Terminate():
                self._ports.provider.terminate(action.request_id, tuple(map(spell, action.cloud_ids)))
            case Drain():
                self._ports.drainer.drain(action)
            case Install():
                self._install(replace(action, cloud_id=spell(action.cloud_id)))
            case Resize():
                cloud_id, desired = spell(action.cloud_id), action.desired.to_floats()
                self._ports.provider.resize(action.request_id, cloud_id, desired)
            case ResizeNode():
                if self._ports.resizer is not None:  # otherwise it is from before a change of provider
                    self._ports.resizer.resize(action)
            case EndCluster():
                self._ports.provider.end_idle_cluster(action.request_id, action.policy)
            case _:
                assert_never(action)

    def _install(self, action: Install) -> None:
        if self._ports.installer is None:
            raise NoInstaller("the runtime is to be installed on machines, but no installer is configured")
        self._ports.installer.start(action)

    def _refuse(self, action: Action, kind: FailureKind, message: str, *, is_repeat: bool = False) -> None:
        match action:
            case Launch():
                for node_type, count in action.shape.items():
                    refusal = LaunchFailure(
                        request_id=action.request_id,
                        node_type=node_type,
                        kind=kind,
                        message=message,
                        is_repeat=is_repeat,
                    )
                    for _ in range(count):
                        self._inbox.put(refusal)
            case Terminate():
                for cloud_id in action.cloud_ids:
                    self._inbox.put(TerminateFailure(cloud_id=cloud_id, kind=kind, message=message))
            case Drain():
                self._inbox.put(DrainFailure(instance_id=action.instance_id, message=message))
            case Install():
                self._inbox.put(InstallFailure(instance_id=action.instance_id, message=message))
            case Resize() | ResizeNode():
                failure = ResizeFailure(
                    cloud_id=action.cloud_id,
                    kind=kind,
                    message=message,
                    is_of_node=isinstance(action, ResizeNode),
                )
                self._inbox.put(failure)
                self._changes.log(
                    logging.WARNING, "resize", f"resize of {action.cloud_id} refused: {message}"
                )
            case EndCluster():
                text = f"the cluster could not be ended ({action.policy.value}): {message}"
                self._changes.log(logging.WARNING, "end cluster", text)
            case _:
                assert_never(action)


# Refusals of a call that the provider has not looked at.
_TURNED_AWAY = frozenset({FailureKind.THROTTLED, FailureKind.PERMISSION})


class NoInstaller(ProviderError, MusterError):
    """A NoInstaller error means that machines wait for an installer that is not configured."""

    kind = "config"


def _subjects(action: Action) -> tuple[InstanceId, ...]:
    """Return the records that an effect is for."""
    if isinstance(action, EndCluster):
        return (InstanceId(""),)
    return action.instance_ids if isinstance(action, Launch | Terminate) else (action.instance_id,)


def narrowed(action: Action, instances: Mapping[InstanceId, Instance]) -> Action:
    """Return a repeated terminate without the machines that serve under a new record by now."""
    if not isinstance(action, Terminate):
        return action
    pairs = zip(action.instance_ids, action.cloud_ids, strict=True)
    left = [pair for pair in pairs if _is(instances.get(pair[0]), InstanceState.TERMINATING)]
    return replace(action, instance_ids=tuple(i for i, _ in left), cloud_ids=tuple(c for _, c in left))


def is_wanted(action: Action, instances: Mapping[InstanceId, Instance]) -> bool:
    """Return whether a record still waits for this effect: an outbox may be older than the records."""
    match action:
        case Launch():
            return any(_awaits_launch(instances.get(i), action.request_id) for i in action.instance_ids)
        case Terminate():
            return any(_is(instances.get(i), InstanceState.TERMINATING) for i in action.instance_ids)
        case Drain():
            drained = instances.get(action.instance_id)
            # A machine that leaves has another node: its runtime was restarted.
            is_other = drained is not None and drained.node_id != action.node_id
            later = InstanceState.TERMINATING if is_other else InstanceState.RAY_STOPPING
            is_later = action.cause is StopCause.NOTICE and _is(drained, later)
            return is_later or _is(drained, InstanceState.RAY_STOP_REQUESTED)
        case Install():
            return _is(instances.get(action.instance_id), InstanceState.RAY_INSTALLING)
        case Resize() | ResizeNode():
            return _is_resizing(instances.get(action.instance_id), action)
        case EndCluster():
            return True
        case _:
            assert_never(action)


def _is(instance: Instance | None, state: InstanceState) -> bool:
    return instance is not None and instance.state is state


def _is_resizing(instance: Instance | None, action: Resize | ResizeNode) -> bool:
    """Return whether the change is still under way: one that was given up must not happen after all."""
    if instance is None or instance.state is not InstanceState.RAY_RUNNING:
        return False
    change = instance.resize
    if change is None:
        return True
    is_same = isinstance(action, ResizeNode) or change.desired == action.desired
    return change.since is not None and is_same


def _awaits_launch(instance: Instance | None, request_id: RequestId) -> bool:
    if instance is None or instance.state is not InstanceState.REQUESTED or instance.cancelled:
        return False
    attempt = len(instance.entered(InstanceState.REQUESTED))
    return instance.launch_request_id == base_id(request_id) and attempt == attempt_of(request_id)


__all__ = ["ClusterController", "Ports"]

logger = logging.getLogger(__name__)

LEDGER_SOURCE = "ledger"  # the source of the note in a plan that was made without a ledger


class ClusterController:
    """Drives one cluster. All durable state is in the store, so another may take over."""

    def __init__(self, ports: Ports, ambient: Ambient) -> None:
        self._ports = ports
        self._ambient = ambient
        self._inbox = FailureInbox()
        ids = CloudIds()
        self._observer = Observer(ports, ambient, self._inbox, ids)
        self._executor = Executor(ports, self._inbox, ids)
        self._changes = OnChange(logger)
        self._set_aside: set[str] = set()
        self._stuck: set[InstanceId] = set()
        self._unlogged: tuple[Ledger, Plan] | None = None  # a plan that may be stored, and what it changes
        self._started_at: float | None = None  # when this process first decided
        self._own: set[RequestId] = set()  # effects in the outbox that this process decided on

    def tick(self) -> TickResult:
        """Run one round. Without a usable ledger nothing is decided or done; the next tick tries again."""
        self._executor.errors.clear()
        now = self._ambient.clock.now()
        result = TickResult(
            plan=Plan(tick_id="", at=now),
            snapshot=Snapshot(tick_id="", now=now),
            ledger=Ledger(),
            is_observed=False,
            is_decided=False,
        )
        try:
            snapshot, ledger = self._observer.observe()
            self._log_transitions(ledger.version)
            result = replace(result, snapshot=snapshot, ledger=ledger, is_observed=True)
            plan = reconcile(snapshot)
            self._inbox.offer(snapshot.version, plan.undecided)
            self._started_at = snapshot.now if self._started_at is None else self._started_at
            self._own &= {action.request_id for action in ledger.outbox}
            self._own |= {action.request_id for action in plan.actions}
            self._unlogged = (ledger, plan)
            version = self._ports.store.commit(snapshot.version, plan)
            self._inbox.clear()
            self._log_transitions(version)
            result = replace(result, ledger=_committed(ledger, plan, version))
            result = replace(
                result, ledger=self._carry_out(result.ledger, plan, snapshot), plan=plan, is_decided=True
            )
        except VersionConflict as error:
            self._inbox.resolve_offer(error.expected)  # nothing was written, so nothing of it is decided
            self._unlogged = None
            result = replace(result, plan=self._without_ledger(error))
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the next tick tries again
            result = replace(result, plan=self._without_ledger(error))
        else:
            try:
                call_safely(lambda: self._ports.nodes.publish(version, plan.report))
            except Exception as error:  # noqa: BLE001 - a runtime that cannot listen must not stop the loop
                self._changes.log(logging.WARNING, "publish", f"report not delivered: {error_text(error)}")
            self._log(plan, result.ledger.instances)
        return replace(result, port_errors=self._port_errors())

    def _carry_out(self, ledger: Ledger, plan: Plan, snapshot: Snapshot) -> Ledger:
        """The effects that an earlier tick or process left in the outbox are handed over first.

        An install waits while a node may run on the machine unseen: repeated, it would end that node's work.
        A launch that may have happened is not repeated where that would launch again: it waits in the outbox
        until its machines must be listed, and then its request expires. One that was turned away waits for
        the end of its type's back-off.
        """
        if not ledger.outbox:
            return ledger
        decided = {action.request_id for action in plan.actions}
        within_s = snapshot.traits.listed_within_s
        launches = [action for action in ledger.outbox if isinstance(action, Launch)]
        foreign = (a for a in launches if within_s and a.request_id not in self._own)
        launched = frozenset(a.request_id for a in foreign if is_wanted(a, ledger.instances))
        refused = (a for a in launches if a.request_id in self._executor.turned_away)
        health, now = plan.memory.health, plan.at
        paused = {a.request_id for a in refused if any(is_blocked(health.get(t), now) for t in a.shape)}
        older = (a for a in ledger.outbox if isinstance(a, Install) and a.request_id not in decided)
        withheld = launched | paused | {a.request_id for a in older if a.instance_id in plan.occupied}
        actions = [action for action in ledger.outbox if action.request_id not in withheld]
        done = self._executor.execute(actions, ledger.instances, decided)
        if launched and snapshot.now - (self._started_at or 0.0) > within_s:
            self._ports.store.handed_over(tuple(launched))
            done |= launched
        return replace(ledger, outbox=tuple(a for a in ledger.outbox if a.request_id not in done))

    def _port_errors(self) -> PortErrors:
        polled, calls = self._observer.errors, self._executor.errors
        return replace(
            polled,
            launch=polled.launch + calls[Launch],
            terminate=polled.terminate + calls[Terminate],
            drain=polled.drain + calls[Drain],
        )

    def _without_ledger(self, error: Exception) -> Plan:
        self._changes.log(logging.ERROR, "store", f"the ledger could not be used: {message_text(error)}")
        note = Quarantined(source=LEDGER_SOURCE, message=error_text(error))
        now = self._ambient.clock.now()
        return Plan(tick_id=self._ambient.ids.fresh("t"), at=now, quarantined=(note,))

    def _log_transitions(self, version: int) -> None:
        """Log each change of state when the ledger shows that it is stored, also after an unclear commit."""
        unlogged, self._unlogged = self._unlogged, None
        if unlogged is None or version <= unlogged[0].version or not logger.isEnabledFor(logging.INFO):
            return
        before, plan = unlogged
        for record in plan.writes:
            known = before.instances.get(record.instance_id)
            state = known.state.name if known is not None else "-"
            for change in record.history[len(known.history) if known is not None else 0 :]:
                text = f"{state} -> {change.state.name}: {change.details or '-'}"
                logger.info("%s %s", _described(record), text)
                state = change.state.name

    def _log(self, plan: Plan, instances: Mapping[InstanceId, Instance]) -> None:
        if plan.writes or plan.actions:
            logger.info("tick %s", fields(plan.fields()))
        for note in plan.quarantined:
            self._changes.log(logging.WARNING, note.source, f"set aside: {note.source}: {note.message}")
        sources = {note.source for note in plan.quarantined}
        for gone in self._set_aside - sources:
            self._changes.forget(gone)  # logged again when it returns
        self._set_aside = sources
        waits = {InstanceId(v.subject_id): v.detail for v in plan.verdicts if v.reason is Reason.STUCK}
        stuck = {name: text for name, text in waits.items() if name in instances}  # others ended just now
        for instance_id, text in stuck.items():
            if instance_id not in self._stuck:
                logger.warning("stuck: %s: %s", _described(instances[instance_id]), text)
        self._stuck = set(stuck)


def _described(record: Instance) -> str:
    """Return what names an instance in the log."""
    return fields(
        {"instance": record.instance_id, "machine": record.cloud_id or "-", "type": record.node_type}
    )


def _committed(ledger: Ledger, plan: Plan, version: int) -> Ledger:
    """Return the ledger as the store holds it after the commit, so that it need not be read again."""
    if version == ledger.version:
        return ledger  # a plan that changes nothing is not written
    known = {action.request_id for action in plan.actions}
    leftover = (action for action in ledger.outbox if action.request_id not in known)
    return replace(
        ledger,
        version=version,
        instances=merged_records(ledger.instances, [replace(r, version=version) for r in plan.writes]),
        memory=plan.memory,
        outbox=(*leftover, *plan.actions),
        newest_at=max(ledger.newest_at, plan.at),
    )
