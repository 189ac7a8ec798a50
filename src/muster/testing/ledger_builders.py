"""Records, plans and effects as ledgers get them, for tests of stores: whole histories, every id set."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import Instance, StatusChange, StopCause
from muster.cluster.plan import Action, Drain, Install, Launch, Plan, Resize, Terminate
from muster.cluster.snapshot import Memory
from muster.cluster.states import InstanceState

NO_MEMORY = Memory()


def record(name: str, *states: InstanceState, at: float = NOW, **changes: object) -> Instance:
    """A new record that went through these states, one second apart, and knows all it could need."""
    steps = states or (InstanceState.QUEUED,)
    made = Instance(
        instance_id=InstanceId(name),
        node_type="cpu",
        state=steps[-1],
        cloud_id=CloudId(f"c-{name}"),
        node_id=NodeId(f"n-{name}"),
        launch_request_id=RequestId(f"r-{name}"),
        history=tuple(StatusChange(s, at + k, f"to {s.name}") for k, s in enumerate(steps)),
    )
    return replace(made, **changes)


def moved(
    known: Instance, *states: InstanceState, at: float = NOW, details: str = "", **changes: object
) -> Instance:
    """The same record after these further steps."""
    steps = tuple(StatusChange(s, at + k, details) for k, s in enumerate(states))
    return replace(known, state=states[-1], history=(*known.history, *steps), **changes)


def plan(
    *writes: Instance, at: float = NOW, actions: Sequence[Action] = (), memory: Memory = NO_MEMORY
) -> Plan:
    return Plan(tick_id=f"t-{at:g}", at=at, writes=writes, actions=tuple(actions), memory=memory)


def launch(name: str, **shape: int) -> Launch:
    return Launch(request_id=RequestId(name), shape=shape or {"cpu": 1}, instance_ids=(InstanceId("a"),))


def one_of_each() -> tuple[Action, ...]:
    """Every kind of effect, in no special order."""
    a, c = InstanceId("a"), CloudId("c-a")
    return (
        Terminate(request_id=RequestId("e-5"), cloud_ids=(c,), instance_ids=(a,)),
        launch("e-1", cpu=2, gpu=1),
        Install(request_id=RequestId("e-4"), instance_id=a, cloud_id=c, node_type="cpu"),
        Drain(
            request_id=RequestId("e-2"),
            instance_id=a,
            node_id=NodeId("n-a"),
            cause=StopCause.IDLE,
            deadline_s=60.0,
        ),
        Resize(request_id=RequestId("e-3"), instance_id=a, cloud_id=c, desired=Resources.of(CPU=2.5)),
    )
