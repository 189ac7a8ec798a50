"""Random planning problems with every feature, for property tests of any engine (hypothesis strategies)."""

from __future__ import annotations

from hypothesis import strategies as st

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, NodeType, Strategy
from muster.cluster.planner.request import PackNode, PackProblem, TypeOffer
from muster.cluster.states import InstanceState, ResizeLimits, ResizeStatus

IMPLICIT = "node:__internal_implicit_resource_x"
ZONES = ("a", "b")


def bags(names: tuple[str, ...], most: int) -> st.SearchStrategy[Resources]:
    quantity = st.integers(1, 4 * most).map(lambda quarters: quarters / 4)
    return st.dictionaries(st.sampled_from(names), quantity, max_size=3).map(Resources.of)


sizes = bags(("CPU", "GPU", "memory", "disk", "licence"), 8)
shapes = bags(("CPU", "CPU", "GPU", "memory", "disk", IMPLICIT), 3)
labels = st.dictionaries(st.sampled_from(("zone", "rack")), st.sampled_from(ZONES), max_size=2)
matches = st.builds(
    LabelMatch,
    st.sampled_from(("zone", "rack")),
    st.sampled_from(list(LabelOperator)),
    st.lists(st.sampled_from(ZONES), min_size=1, max_size=2).map(tuple),
)
selectors = st.lists(st.lists(matches, max_size=2).map(tuple), max_size=2).map(tuple)
avoids = st.none() | st.tuples(st.sampled_from(("zone", "mark")), st.sampled_from(ZONES))


@st.composite
def node_types(draw: st.DrawFn, index: int) -> NodeType:
    resources = draw(sizes)
    resize = None
    if draw(st.integers(0, 4)) == 0:
        more = {name: units * 2 for name, units in resources.items() if name in ("CPU", "memory")}
        resize = ResizeLimits(maximum=Resources(more))
    price = draw(st.none() | st.integers(0, 12).map(lambda quarters: quarters / 4))
    return NodeType(
        name=f"t{index}", resources=resources, labels=draw(labels), price_per_hour=price, resize=resize
    )


@st.composite
def nodes(draw: st.DrawFn, index: int, types: list[NodeType]) -> PackNode:
    of = draw(st.sampled_from(types))
    free = {name: draw(st.integers(0, units // 2500)) * 2500 for name, units in of.resources.items()}
    state = draw(st.sampled_from((InstanceState.RAY_RUNNING, InstanceState.ALLOCATED)))
    status = None
    if of.resize is not None:
        status = ResizeStatus(
            current=of.resources,
            desired=draw(st.sampled_from((of.resources, of.resize.maximum))),
            in_progress=draw(st.booleans()),
            failed=draw(st.booleans()),
        )
    mine = {**of.labels, **draw(labels), **({"_PG_g0": ""} if draw(st.integers(0, 5)) == 0 else {})}
    return PackNode(
        key=f"n{index}",
        node_type=of.name,
        total=of.resources,
        available=Resources(free) if state is InstanceState.RAY_RUNNING else of.resources,
        state=state,
        labels=mine,
        resize=status,
    )


demands = st.builds(Demand, shape=shapes, count=st.integers(1, 6), selectors=selectors, avoid=avoids)
bundles = st.builds(Demand, shape=shapes, count=st.integers(1, 3), selectors=selectors)


@st.composite
def gangs(draw: st.DrawFn, index: int) -> Gang:
    option = st.lists(bundles, min_size=1, max_size=3).map(tuple)
    return Gang(
        gang_id=f"g{index}",
        strategy=draw(st.sampled_from(list(Strategy))),
        options=draw(st.lists(option, min_size=1, max_size=2).map(tuple)),
        locality_label=draw(st.sampled_from(("", "", "zone"))),
    )


@st.composite
def problems(draw: st.DrawFn) -> PackProblem:
    types = [draw(node_types(i)) for i in range(draw(st.integers(1, 4)))]
    twins = draw(st.lists(gangs(0), max_size=1)) * draw(st.integers(1, 3))
    others = [draw(gangs(i)) for i in range(1, 1 + draw(st.integers(0, 2)))]
    return PackProblem(
        nodes=tuple(draw(nodes(i, types)) for i in range(draw(st.integers(0, 5)))),
        offers=tuple(TypeOffer(node_type=t, room=draw(st.integers(0, 5))) for t in types),
        room=draw(st.none() | st.integers(0, 8)),
        demands=tuple(draw(st.lists(demands, max_size=4))),
        constraints=tuple(draw(st.lists(demands, max_size=2))),
        gangs=tuple(
            Gang(gang_id=f"g{i}", strategy=g.strategy, options=g.options, locality_label=g.locality_label)
            for i, g in enumerate([*twins, *others])
        ),
        conserve_gpus=draw(st.booleans()),
    )
