"""Small random problems full of ties, labels, gangs and limits; and large seeded ones."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, NodeType, Strategy
from muster.cluster.planner.request import PackNode, PackProblem, TypeOffer
from muster.cluster.states import InstanceState, ResizeLimits, ResizeStatus

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
            TypeOffer(
                node_type=t, room=draw(st.integers(0, 5)), availability=draw(rank), recoverable=draw(rank)
            )
            for t in types
        ),
        room=draw(st.one_of(st.none(), st.integers(0, 8))),
        constraints=tuple(draw(st.lists(demands(6), max_size=2))),
        gangs=tuple(draw(st.lists(gangs, max_size=3))),
        demands=tuple(draw(st.lists(demands(12), max_size=5))),
        conserve_gpus=draw(st.sampled_from([True, True, False])),
    )


def random_problem(seed: int) -> PackProblem:
    """Like `problems`, drawn much faster and with more that fits."""
    stream = random.Random(seed)
    types = [_any_type(stream, number) for number in range(stream.randint(1, 5))]
    kinds = [_any_node(stream, stream.choice(types)) for _ in range(stream.randint(1, 4))]
    picky = stream.choice([0.0, 0.0, 0.5])
    return PackProblem(
        nodes=tuple(stream.choice(kinds) for _ in range(stream.randint(0, 8))),
        offers=tuple(
            TypeOffer(
                node_type=t, room=stream.choice([0, 1, 2, 9]), recoverable=stream.choice([1.0, 1.0, 0.5])
            )
            for t in types
        ),
        room=stream.choice([None, None, stream.randint(0, 10)]),
        constraints=tuple(_any_demand(stream, picky) for _ in range(stream.choice([0, 0, 1, 2]))),
        gangs=tuple(_any_gang(stream, number, picky) for number in range(stream.choice([0, 1, 3]))),
        demands=tuple(_any_demand(stream, picky, 20) for _ in range(stream.randint(0, 5))),
    )


def _any_type(stream: random.Random, number: int) -> NodeType:
    resources = {"CPU": stream.choice([1, 2, 4, 8])}
    for name, share in (("memory", 0.6), ("GPU", 0.3), ("custom", 0.2)):
        if stream.random() < share:
            resources[name] = stream.choice([1, 2, 4, 8])
    limits = ResizeLimits(maximum=Resources.of(CPU=6))
    return NodeType(
        name=f"t{number}",
        resources=Resources.of(resources),
        labels=_any_labels(stream),
        priority=stream.choice([0, 0, 1]),
        resize=stream.choice([None, None, None, limits]),
    )


def _any_node(stream: random.Random, node_type: NodeType) -> PackNode:
    total = node_type.resources
    pending = stream.random() < 0.4
    free = {name: units if pending else units * stream.randint(0, 4) // 4 for name, units in total.items()}
    status = ResizeStatus(
        current=total, desired=Resources.of(CPU=stream.choice([1, 3])), in_progress=stream.random() < 0.3
    )
    return PackNode(
        key="" if pending else "i",
        node_type=node_type.name,
        total=total,
        available=Resources(free),
        state=InstanceState.QUEUED if pending else InstanceState.RAY_RUNNING,
        labels=node_type.labels if pending else _any_labels(stream),
        resize=stream.choice([None, status]) if node_type.resize else None,
    )


def _any_labels(stream: random.Random) -> dict[str, str]:
    return {key: stream.choice(values) for key, values in LABELS.items() if stream.random() < 0.3}


def _any_demand(stream: random.Random, picky: float, most: int = 6) -> Demand:
    shape = {"CPU": stream.choice([0.25, 0.5, 1, 1, 2, 3])}
    for name, share in (("memory", 0.4), ("GPU", 0.2), ("custom", 0.1), (IMPLICIT, 0.1)):
        if stream.random() < share:
            shape[name] = stream.choice([0.5, 1])
    selectors: tuple = ()
    if stream.random() < picky:
        selectors = tuple(
            tuple(_any_match(stream) for _ in range(stream.randint(0, 2)))
            for _ in range(stream.randint(1, 2))
        )
    avoid = stream.choice([("_PG_g1", ""), ("other", "x")]) if stream.random() < 0.1 else None
    return Demand(shape=Resources.of(shape), count=stream.randint(0, most), selectors=selectors, avoid=avoid)


def _any_match(stream: random.Random) -> LabelMatch:
    key = stream.choice(sorted(LABELS))
    return LabelMatch(key, stream.choice(list(LabelOperator)), (stream.choice(LABELS[key]),))


def _any_gang(stream: random.Random, number: int, picky: float) -> Gang:
    option = tuple(_any_demand(stream, picky, 2) for _ in range(stream.randint(1, 3)))
    return Gang(
        gang_id=f"g{number}",
        strategy=stream.choice(list(Strategy)),
        options=(option,) if stream.random() < 0.7 else (option, option[:1]),
        locality_label=stream.choice(["", "", "", "zone"]),
    )


def gang_problem(seed: int) -> PackProblem:
    """Like `random_problem`, with more nodes and many gangs: some equal, some with bundles of their own."""
    stream = random.Random(f"gangs/{seed}")
    types = [replace(_any_type(stream, number), resize=None) for number in range(stream.randint(1, 5))]
    kinds = [_any_node(stream, stream.choice(types)) for _ in range(stream.randint(1, 12))]
    picky = stream.choice([0.0, 0.0, 0.3])
    pool = [_any_bundle(stream, picky) for _ in range(4)]
    gangs: list[Gang] = []
    for number in range(stream.randint(1, 10)):
        few = range(stream.randint(1, 4))
        option = tuple(
            _any_bundle(stream, picky) if stream.random() < 0.5 else stream.choice(pool) for _ in few
        )
        for copy in range(stream.choice([1, 1, 2, 3])):
            gangs.append(
                Gang(
                    gang_id=f"g{number}-{copy}",
                    strategy=gangs[-1].strategy if copy else stream.choice(list(Strategy)),
                    options=(option,),
                    locality_label=stream.choice(["", "", "", "", "", "zone"]),
                )
            )
    return PackProblem(
        nodes=tuple(stream.choice(kinds) for _ in range(stream.randint(1, 20))),
        offers=tuple(
            TypeOffer(
                node_type=t, room=stream.choice([0, 1, 2, 9]), recoverable=stream.choice([1.0, 1.0, 0.5])
            )
            for t in types
        ),
        room=stream.choice([None, None, stream.randint(0, 10)]),
        constraints=tuple(_any_demand(stream, picky) for _ in range(stream.choice([0, 0, 0, 1]))),
        gangs=tuple(gangs),
        demands=tuple(_any_demand(stream, picky, 20) for _ in range(stream.randint(0, 5))),
    )


def _any_bundle(stream: random.Random, picky: float) -> Demand:
    shape = {"CPU": stream.choice([0.25, 0.5, 1, 1, 2, 3])}
    for name, share in (("memory", 0.5), ("GPU", 0.2), ("custom", 0.1), (IMPLICIT, 0.03)):
        if stream.random() < share:
            shape[name] = stream.choice([0.25, 0.5, 1, 2])
    selectors = stream.choice([(), ((),), _any_demand(stream, picky).selectors])
    count = stream.choice([1, 1, 1, 2, 3])
    return Demand(shape=Resources.of(shape), count=count, selectors=selectors)


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


def _random_offer(stream: random.Random, number: int) -> TypeOffer:
    cpus = stream.choice([2, 4, 8, 16, 32, 48, 64, 96, 128])
    resources = {"CPU": cpus, "memory": cpus * stream.choice([2, 4, 8]) * GIB}
    if stream.random() < 0.25:
        resources["GPU"] = stream.choice([1, 2, 4, 8])
    return TypeOffer(node_type=NodeType(name=f"t{number}", resources=Resources.of(resources)), room=10_000)


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
