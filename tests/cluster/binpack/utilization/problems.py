"""Small random problems full of ties, labels, gangs and limits; and large seeded ones."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from muster.base.resources import Resources
from muster.cluster.binpack.request import Offer, PackNode, PackProblem
from muster.cluster.model import (
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeType,
    ResizeLimits,
    ResizeStatus,
    Strategy,
)
from muster.cluster.states import InstanceState

IMPLICIT = "node:__internal_implicit_resource_x"
LABELS = {"zone": ("a", "b"), "disk": ("fast", "slow"), "_PG_g1": ("",)}
GIB = 2**30


def _quantities(*names: str) -> st.SearchStrategy[dict[str, float]]:
    amounts = {
        "CPU": st.sampled_from([0, 0.5, 1, 1, 2, 3, 4]),
        "GPU": st.sampled_from([0, 0.5, 1, 2]),
        "memory": st.sampled_from([1, 2, 4]),
        "custom": st.sampled_from([1, 2]),
        IMPLICIT: st.sampled_from([0.25, 0.5, 1]),
    }
    return st.fixed_dictionaries({}, optional={name: amounts[name] for name in names})


labels = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in LABELS.items()})
matches = st.sampled_from(sorted(LABELS)).flatmap(
    lambda key: st.builds(
        LabelMatch,
        st.just(key),
        st.sampled_from(LabelOperator),
        st.lists(st.sampled_from(LABELS[key]), min_size=1, max_size=2, unique=True).map(tuple),
    )
)
selectors = st.one_of(
    st.just(()),
    st.just(((),)),
    st.lists(st.lists(matches, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple),
)
shapes = _quantities("CPU", "GPU", "memory", "custom", IMPLICIT).map(Resources.of)
avoids = st.sampled_from([None, None, None, ("_PG_g1", ""), ("zone", "a"), ("other", "x")])


def demands(most: int) -> st.SearchStrategy[Demand]:
    return st.builds(Demand, shape=shapes, count=st.integers(0, most), selectors=selectors, avoid=avoids)


gangs = st.builds(
    Gang,
    gang_id=st.sampled_from(["g1", "g2", "g3"]),
    strategy=st.sampled_from(Strategy),
    options=st.lists(st.lists(demands(3), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2).map(
        tuple
    ),
    locality_label=st.sampled_from(["", "", "", "zone"]),
)


@st.composite
def node_types(draw: st.DrawFn) -> tuple[NodeType, ...]:
    made = []
    for number in range(draw(st.integers(0, 4))):
        resources = draw(_quantities("CPU", "GPU", "memory", "custom"))
        limits = {"CPU": draw(st.sampled_from([2, 6]))}
        made.append(
            NodeType(
                name=f"t{number}",
                resources=Resources.of(resources),
                labels=draw(labels),
                priority=draw(st.sampled_from([0, 0, 1])),
                resize=draw(st.sampled_from([None, None, ResizeLimits(maximum=Resources.of(limits))])),
            )
        )
    return tuple(made)


@st.composite
def nodes(draw: st.DrawFn, types: tuple[NodeType, ...]) -> PackNode:
    names = [t.name for t in types] + ["unknown"]
    total = draw(_quantities("CPU", "GPU", "memory", "custom"))
    share = draw(st.sampled_from([0, 0.5, 1, 1]))
    free = {name: quantity * share for name, quantity in total.items()}
    if free and draw(st.integers(0, 5)) == 0:
        del free[next(iter(free))]  # the runtime said nothing about it
    if draw(st.integers(0, 9)) == 0:
        total[IMPLICIT] = 1
    pending = draw(st.booleans())
    return PackNode(
        key="" if pending else "i",
        node_type=draw(st.sampled_from(names)),
        total=Resources.of(total),
        available=Resources.of(total if pending else free),
        state=InstanceState.QUEUED if pending else InstanceState.RAY_RUNNING,
        labels=draw(labels),
        resize=draw(st.one_of(st.none(), st.none(), resizes(Resources.of(total)))),
    )


@st.composite
def resizes(draw: st.DrawFn, total: Resources) -> ResizeStatus:
    size = st.sampled_from([1, 2, 4, 8]).map(lambda cpus: Resources.of(CPU=cpus))
    return ResizeStatus(
        current=draw(st.sampled_from([total, Resources.of(CPU=1)])),
        desired=draw(size),
        in_progress=draw(st.booleans()),
        failed=draw(st.sampled_from([False, False, True])),
        suggested_maximum=draw(st.one_of(st.none(), size)),
    )


@st.composite
def problems(draw: st.DrawFn) -> PackProblem:
    types = draw(node_types())
    rank = st.sampled_from([1.0, 1.0, 0.5])
    kinds = draw(st.lists(nodes(types), max_size=4))
    return PackProblem(
        nodes=tuple(draw(st.lists(st.sampled_from(kinds), max_size=8))) if kinds else (),
        offers=tuple(
            Offer(node_type=t, room=draw(st.integers(0, 5)), availability=draw(rank), recoverable=draw(rank))
            for t in types
        ),
        room=draw(st.one_of(st.none(), st.integers(0, 8))),
        constraints=tuple(draw(st.lists(demands(6), max_size=2))),
        gangs=tuple(draw(st.lists(gangs, max_size=3))),
        demands=tuple(draw(st.lists(demands(12), max_size=5))),
        conserve_gpus=draw(st.sampled_from([True, True, False])),
    )


def large_problem(seed: int, demands: int, shapes: int, nodes: int, types: int) -> PackProblem:
    """Half-full nodes of many types, and about three times more demand than they can hold."""
    stream = random.Random(seed)
    offers = [_random_offer(stream, number) for number in range(types)]
    made = []
    for number in range(nodes):
        node_type = offers[stream.randrange(types)].node_type
        free = {name: _half_full(stream, name, units) for name, units in node_type.resources.items()}
        made.append(
            PackNode(
                key=f"i-{number}",
                node_type=node_type.name,
                total=node_type.resources,
                available=Resources(free),
            )
        )
    made.sort(key=lambda node: int(node.node_type[1:]))
    found: dict[Resources, None] = {}
    while len(found) < shapes:
        found[_random_shape(stream)] = None
    counts = [demands // shapes] * shapes
    return PackProblem(
        nodes=tuple(made),
        offers=tuple(offers),
        room=None,
        demands=tuple(Demand(shape=s, count=c) for s, c in zip(found, counts, strict=True)),
    )


def _random_offer(stream: random.Random, number: int) -> Offer:
    cpus = stream.choice([2, 4, 8, 16, 32, 48, 64, 96, 128])
    resources = {"CPU": cpus, "memory": cpus * stream.choice([2, 4, 8]) * GIB}
    if stream.random() < 0.25:
        resources["GPU"] = stream.choice([1, 2, 4, 8])
    return Offer(node_type=NodeType(name=f"t{number}", resources=Resources.of(resources)), room=10_000)


def _half_full(stream: random.Random, name: str, units: int) -> int:
    step = 10_000 * (GIB if name == "memory" else 1)
    return int(stream.randint(0, units // step) * step)


def _random_shape(stream: random.Random) -> Resources:
    cpus = stream.choice([0.5, 1, 1, 2, 3, 4, 6, 8])
    shape = {"CPU": cpus}
    if stream.random() < 0.8:
        shape["memory"] = stream.randint(1, 32) * GIB / 2
    if stream.random() < 0.15:
        shape["GPU"] = stream.choice([0.5, 1, 2])
    return Resources.of(shape)
