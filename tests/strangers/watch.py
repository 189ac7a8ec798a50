"""Check what must hold in every world, from what is really there and never from the autoscaler's opinion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.strangers.truth import Machine, World

from muster.cluster.model import Instance, NodeKind, StopCause
from muster.cluster.plan import Drain, Plan
from muster.cluster.states import InstanceState

_S = InstanceState

# The transitions of the specification, written down here once more.
LEGAL: dict[InstanceState, set[InstanceState]] = {
    _S.QUEUED: {_S.REQUESTED, _S.TERMINATED},
    _S.REQUESTED: {_S.ALLOCATED, _S.QUEUED, _S.ALLOCATION_FAILED},
    _S.ALLOCATED: {
        *(_S.RAY_INSTALLING, _S.RAY_RUNNING, _S.ALLOCATION_TIMEOUT, _S.RAY_STOPPING),
        *(_S.RAY_STOPPED, _S.TERMINATING, _S.TERMINATED),
    },
    _S.RAY_INSTALLING: {
        *(_S.RAY_RUNNING, _S.RAY_INSTALL_FAILED, _S.RAY_STOPPING, _S.RAY_STOPPED),
        *(_S.TERMINATING, _S.TERMINATED),
    },
    _S.RAY_RUNNING: {_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING, _S.RAY_STOPPED, _S.TERMINATING, _S.TERMINATED},
    _S.RAY_STOP_REQUESTED: {_S.RAY_STOPPING, _S.RAY_STOPPED, _S.RAY_RUNNING, _S.TERMINATED},
    _S.ALLOCATION_TIMEOUT: {_S.TERMINATING, _S.TERMINATED},
    _S.RAY_STOPPING: {_S.RAY_STOPPED, _S.TERMINATING, _S.TERMINATED},
    _S.RAY_STOPPED: {_S.TERMINATING, _S.TERMINATED},
    _S.TERMINATING: {_S.TERMINATED, _S.TERMINATION_FAILED},
    _S.TERMINATION_FAILED: {_S.TERMINATING, _S.TERMINATED},
    _S.RAY_INSTALL_FAILED: {_S.TERMINATING, _S.TERMINATED},
    _S.TERMINATED: set(),
    _S.ALLOCATION_FAILED: set(),
}
SETTLING_S = 60.0  # after something was wanted last, a decision about it may still be on its way
ENDING_S = 60.0  # a budget keeps the money for so long a termination


@dataclass(frozen=True)
class Violation:
    """Something that must never happen."""

    kind: str
    at: float
    text: str


class Watch:
    """Collects violations, the first of each kind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found: dict[str, Violation] = {}
        self.shapes: dict[str, Mapping[str, int]] = {}
        self.unanswered: dict[str, tuple[float, Mapping[str, int]]] = {}  # launches that may have got lost
        self.excused = 0.0  # $ that no autoscaler could have saved

    def report(self, kind: str, text: str) -> None:
        self.found.setdefault(kind, Violation(kind, self.world.t, text))

    # What the autoscaler asks for.

    def launch(self, request_id: str, shape: Mapping[str, int]) -> None:
        self.unanswered.setdefault(request_id, (self.world.t, shape))
        known = self.shapes.setdefault(request_id, shape)
        if known != shape:
            self.report("request-changed", f"{request_id}: {dict(known)}, then {dict(shape)}")
        elif known is shape and not self._is_needed(shape):
            self.report("unneeded", f"{request_id}: {dict(shape)}, and nothing has been wanted")

    def _is_needed(self, shape: Mapping[str, int]) -> bool:
        world = self.world
        is_moving = any(n.work and n.machine.taken_at is not None for n in world.nodes if n.lives)
        if is_moving or world.t - world.needed_at <= SETTLING_S:
            return True
        known = (m for m in world.alive() if "node-without-both" not in m.quirks and not self._goes(m))
        serving = Counter(m.node_type for m in known if world.node_on(m))
        types = (world.spec.node_type(name) for name in shape)
        return any(known is not None and serving[known.name] < known.min_nodes for known in types)

    def _goes(self, machine: Machine) -> bool:
        """Return whether the autoscaler may replace a machine, also one whose idle drain got lost."""
        asked_at, limit_s = machine.idle_drain_at, self.world.spec.timeouts.stop_requested_s + 30
        return self._leaves(machine) or (asked_at is not None and self.world.t - asked_at <= limit_s)

    def made(self, request_id: str, machines: list[Machine]) -> None:
        """Compare what exists now with the limits; what is on its way out may be replaced."""
        self.unanswered.pop(request_id, None)
        world, spec = self.world, self.world.spec
        staying = [m for m in world.alive() if not self._leaves(m) and self._is_shown(m)]
        for name, count in Counter(m.node_type for m in staying).items():
            known = spec.node_type(name)
            is_new = any(m.node_type == name for m in machines)
            if is_new and count > (known.max_nodes if known else 0):
                self.report("type-limit", f"{request_id}: {count} of {name}")
        if machines and spec.max_nodes is not None and len(staying) > spec.max_nodes:
            self.report("cluster-limit", f"{request_id}: {len(staying)} machines of {spec.max_nodes}")
        most = spec.budget.per_hour if spec.budget else None
        per_hour = sum(m.price for m in staying)
        if machines and most is not None and per_hour > most + 1e-9:
            self.report("per-hour", f"{request_id}: ${per_hour:.2f} an hour of ${most}")

    def _leaves(self, machine: Machine) -> bool:
        world = self.world
        limit_s = world.spec.timeouts.stop_requested_s + 30
        if machine.drain_asked_at is not None and world.t - machine.drain_asked_at <= limit_s:
            return True
        nodes = [n for n in world.nodes if n.machine is machine]
        is_dead = bool(nodes) and not any(n.lives and not n.is_draining for n in nodes)
        return machine.asked_at is not None or machine.taken_at is not None or is_dead

    def _is_shown(self, machine: Machine) -> bool:
        """A machine that somebody else started is known once a list has shown it."""
        return machine.request_id is not None or machine.is_head or machine.was_listed

    def terminate(self, cloud_ids: Sequence[str]) -> None:
        world = self.world
        for cloud_id in cloud_ids:
            machine = world.machine(cloud_id)
            if machine is None or not machine.exists:
                continue
            machine.asked_at = world.t if machine.asked_at is None else machine.asked_at
            if machine.is_head:
                self.report("head-terminated", cloud_id)
            # A node that starts on a machine after its end was decided goes with it.
            decided_at = machine.asked_at if machine.ordered_at is None else machine.ordered_at
            nodes = [n for n in world.nodes if n.machine is machine and n.lives]
            busy = [n for n in nodes if n.work and n.joined_at <= decided_at]
            limit_s = world.spec.timeouts.drain_deadline_s
            is_unpaid = machine.unpaid_at is not None and world.t - machine.unpaid_at >= limit_s
            if busy and machine.taken_at is None and not is_unpaid and not self._is_unpaid():
                quirks = ", ".join(sorted(machine.quirks)) or "no quirks"
                self.report("busy-terminated", f"{cloud_id} ({quirks}) with {len(busy[0].work)} at work")

    def _is_unpaid(self) -> bool:
        """Return whether what is left of the budget only just pays for the end of what may exist."""
        world, budget = self.world, self.world.spec.budget
        if budget is None or budget.total is None:
            return False
        ending_s = world.spec.timeouts.drain_deadline_s + ENDING_S
        least = 0.0
        for machine in world.machines:  # one that is gone costs, as far as lists show, while they show it
            gone_s = 0.0 if machine.gone_at is None else world.t - machine.gone_at
            if gone_s <= (0.0 if machine.exists else machine.listed_for_s + SETTLING_S):
                least += machine.price * (gone_s + ending_s) / 3600.0 + _unit(machine)
        for asked_at, shape in self.unanswered.values():
            waited_s = world.t - asked_at
            if waited_s <= world.spec.timeouts.request_s + SETTLING_S:
                types = (*world.spec.node_types, *world.retired)
                price = sum((one.price_per_hour or 0.0) * shape.get(one.name, 0) for one in types)
                least += price * (waited_s + ending_s) / 3600.0
        return world.spend() + least > 0.9 * budget.total

    def drain(self, action: Drain) -> None:
        node = next((n for n in self.world.nodes if n.node_id == action.node_id), None)
        if node is not None and node.is_head and node.machine.exists:
            self.report("head-drained", action.node_id)
        if node is not None and action.cause is StopCause.IDLE:
            node.machine.idle_drain_at = self.world.t
        elif node is not None:
            node.machine.drain_asked_at = self.world.t
        if node is not None and action.cause is StopCause.BUDGET and node.machine.unpaid_at is None:
            node.machine.unpaid_at = self.world.t

    def commit(self, plan: Plan, known: Mapping[str, Instance]) -> None:
        for record in plan.writes:
            before = known.get(record.instance_id)
            steps = [change.state for change in record.history[len(before.history) if before else 0 :]]
            state = before.state if before else None
            for step in steps:
                if state is not None and step not in LEGAL[state]:
                    self.report("illegal", f"{record.instance_id}: {state.name} to {step.name}")
                state = step
            machine = self.world.machine(record.cloud_id or "")
            if machine is not None and record.state is _S.TERMINATING and machine.ordered_at is None:
                machine.ordered_at = self.world.t
            if record.kind is NodeKind.HEAD and record.state is _S.TERMINATING:
                self.report("head-terminating", record.instance_id)

    # What time does.

    def tick(self, seconds: float, *, is_blind: bool) -> None:
        """Excuse what machines cost while nobody could see them or end them, and compares the rest."""
        world, budget = self.world, self.world.spec.budget
        for machine in world.alive():
            is_ending = machine.asked_at is not None and world.t - machine.asked_at > ENDING_S
            is_unseen = world.t < max(machine.listed_from, machine.hidden_until)
            if is_blind or is_ending or is_unseen or machine.is_head:
                self.excused += machine.price * seconds / 3600.0
        if budget is None or budget.total is None or budget.period_s is not None:
            return
        units = sum(_unit(m) for m in world.machines)
        if world.spend() > budget.total + units + self.excused + 1e-6:
            text = f"${world.spend():.2f} of ${budget.total:.2f}, ${units + self.excused:.2f} excused"
            self.report("overspent", text)

    def leftovers(self) -> list[str]:
        """Return what is wrong with the machines that exist when nothing is wanted any more."""
        world = self.world
        kept = world.kept_for_unknown()
        workers = Counter(m.node_type for m in world.alive() if not m.is_head and m not in kept)
        serving = Counter(m.node_type for m in world.alive() if not m.is_head and world.node_on(m))
        known = {one.name: one.min_nodes for one in world.spec.node_types}
        wrong = []
        for name in sorted({*workers, *known}):
            least = known.get(name, 0)
            if workers[name] > least:
                wrong.append(f"{workers[name]} machines of {name}, {least} wanted")
            elif serving[name] < least and not kept:  # those that are kept may take the last places
                wrong.append(f"only {serving[name]} nodes of {name}, {least} wanted")
        return wrong


def _unit(machine: Machine) -> float:
    """Return the $ of one billing unit."""
    offer = machine.offer
    unit_s = max(offer.billing_minimum_s, offer.billing_granularity_s) if offer else 0.0
    return machine.price * unit_s / 3600.0
