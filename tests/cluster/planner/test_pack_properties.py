"""Check what holds for every planning request: limits, the head, minimums, sums, repeatability."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.builders import NOW, demand, gang, node_type, offer, pack_node, pack_request

from muster.base.resources import Resources
from muster.cluster.model import Constraint, FailureKind, NodeKind, Objective, StopCause, Strategy
from muster.cluster.plan import Subject
from muster.cluster.planner.demand_classes import gang_size
from muster.cluster.planner.explain import explain
from muster.cluster.planner.pack import pack
from muster.cluster.states import InstanceState

pytestmark = pytest.mark.slow

many = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

NAMES = ("a", "b", "c")
STATES = (
    InstanceState.RAY_RUNNING,
    InstanceState.RAY_RUNNING,
    InstanceState.QUEUED,
    InstanceState.REQUESTED,
    InstanceState.ALLOCATED,
    InstanceState.RAY_INSTALLING,
)
quantities = st.fixed_dictionaries(
    {"CPU": st.sampled_from([1, 2, 4])}, optional={"GPU": st.sampled_from([1, 2])}
)
shapes = st.one_of(st.just({"CPU": 1}), quantities, st.just({"GPU": 1}), st.just({"CPU": 16}))
demands = st.lists(st.builds(demand, shapes, st.integers(0, 6)), max_size=4).map(tuple)
maximums = st.one_of(st.none(), st.integers(0, 8))


@st.composite
def offers(draw):
    made = []
    for name in NAMES[: draw(st.integers(1, 3))]:
        of = node_type(
            name,
            draw(quantities),
            min_nodes=draw(st.integers(0, 3)),
            max_nodes=draw(st.integers(0, 5)),
            idle_timeout_s=draw(st.sampled_from([None, 20.0])),
            price_per_hour=draw(st.sampled_from([1.0, 2.5])),
            launch_hash=draw(st.sampled_from(["", "h1", "h2"])),
        )
        kind = draw(st.sampled_from([None, None, None, FailureKind.CAPACITY, FailureKind.QUOTA]))
        made.append(offer(of, blocked_kind=kind, blocked_until=NOW + 5))
    return made


@st.composite
def nodes(draw, sold):
    made = []
    for index in range(draw(st.integers(0, 7))):
        of = draw(st.sampled_from([*(each.node_type for each in sold), node_type("gone")]))
        state = draw(st.sampled_from(STATES))
        runs = state is InstanceState.RAY_RUNNING
        made.append(
            pack_node(
                f"i-{index}",
                of,
                available={"CPU": 1} if runs and draw(st.booleans()) else None,
                state=state,
                idle_s=draw(st.sampled_from([0.0, 10.0, 50.0])) if runs else 0.0,
                launch_hash=draw(st.sampled_from(["", "h1", "h2"])),
            )
        )
    if made and draw(st.booleans()):
        made[0] = replace(made[0], kind=NodeKind.HEAD)
    return tuple(made)


@st.composite
def requests(draw):
    sold = draw(offers())
    gangs = [
        gang([draw(shapes)] * draw(st.integers(1, 3)), draw(st.sampled_from(Strategy)), f"g-{index}")
        for index in range(draw(st.integers(0, 2)))
    ]
    constraints = draw(st.lists(demands.map(lambda found: Constraint(demands=found)), max_size=2))
    return pack_request(
        sold,
        nodes=draw(nodes(sold)),
        max_nodes=draw(maximums),
        leaving=draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2), max_size=2)),
        constraints=tuple(constraints),
        gangs=tuple(gangs),
        demands=tuple(replace(each, name=f"d-{index}") for index, each in enumerate(draw(demands))),
        check_launch_hash=draw(st.booleans()),
        idle_timeout_s=draw(st.sampled_from([None, 30.0])),
        pending_idle_s=draw(st.sampled_from([None, -1.0, 5.0])),
        pending_idle=draw(
            st.dictionaries(st.sampled_from(NAMES), st.just((NOW - 60, NOW - 40, NOW - 1)), max_size=2)
        ),
        objective=draw(st.sampled_from([Objective.UTILIZATION, Objective.AUTO])),
    )


def gone(packing, *causes):
    return {r.instance_id for r in packing.removals if not causes or r.cause in causes}


@many
@given(requests())
def test_limits_hold_after_the_pass(request):
    packing = pack(request)
    limited = gone(packing, StopCause.OUTDATED, StopCause.MAX_NODES, StopCause.MAX_NODES_PER_TYPE)
    known = {each.node_type.name for each in request.offers}
    left = [node for node in request.nodes if node.key not in limited]
    of_removed_types = [n for n in left if n.node_type not in known and n.kind is not NodeKind.HEAD]
    assert all(node.runs for node in of_removed_types)
    kept = [node for node in left if node not in of_removed_types]
    heads = [node for node in kept if node.kind is NodeKind.HEAD]
    live = Counter(node.node_type for node in kept)
    for each in request.offers:
        name, maximum = each.node_type.name, each.node_type.max_nodes
        assert live[name] <= max(maximum, sum(head.node_type == name for head in heads))
        assert packing.launch.get(name, 0) <= max(0, maximum - live[name] - request.leaving.get(name, 0))
        assert each.blocked_kind is None or name not in packing.launch
    if request.max_nodes is not None:
        assert len(kept) <= max(request.max_nodes, len(heads))
        room = max(0, request.max_nodes - len(left) - sum(request.leaving.values()))
        assert sum(packing.launch.values()) <= room
    assert all(count > 0 for count in packing.launch.values())


@many
@given(requests())
def test_removals_are_lawful(request):
    packing = pack(request)
    nodes = {node.key: node for node in request.nodes}
    assert len(gone(packing)) == len(packing.removals)
    assert gone(packing).isdisjoint(packing.needed)
    assert all(nodes[key].kind is not NodeKind.HEAD for key in gone(packing))
    idle = gone(packing, StopCause.IDLE)
    assert all(nodes[key].state is not InstanceState.REQUESTED for key in idle)
    left = Counter(node.node_type for node in request.nodes if node.key not in gone(packing))
    for each in request.offers:
        name = each.node_type.name
        if any(nodes[key].node_type == name for key in idle):
            assert left[name] + packing.launch.get(name, 0) >= each.node_type.min_nodes


@many
@given(requests())
def test_every_request_is_counted_once_and_explained_once(request):
    packing = pack(request)
    bundles = [each for constraint in request.constraints for each in constraint.demands]
    expected = Counter({(Subject.DEMAND, each.name): each.count for each in request.demands})
    expected.update({(Subject.GANG, each.gang_id): gang_size(each) for each in request.gangs})
    expected.update({(Subject.CONSTRAINT, str(index)): each.count for index, each in enumerate(bundles)})
    verdicts = explain(request, packing)
    explained = Counter()
    for verdict in verdicts:
        if verdict.subject in (Subject.DEMAND, Subject.GANG, Subject.CONSTRAINT):
            explained[verdict.subject, verdict.subject_id] += verdict.count
    assert explained == +expected
    assert [v.subject_id for v in verdicts if v.subject is Subject.NODE] == [n.key for n in request.nodes]
    types = [v.subject_id for v in verdicts if v.subject is Subject.NODE_TYPE]
    assert len(types) == len(set(types))
    assert not any("did not use it" in verdict.detail for verdict in verdicts)


@many
@given(requests())
def test_no_node_is_given_more_than_it_has_free(request):
    packing = pack(request)
    nodes = {node.key: node for node in request.nodes}
    given_to = {}
    for outcome, asked in zip(packing.demands, request.demands, strict=True):
        for key, count in {**outcome.placed, **outcome.coming}.items():
            given_to[key] = given_to.get(key, Resources()).plus(asked.shape.times(count))
            assert nodes[key].runs == (key in outcome.placed)
    assert all(nodes[key].available.holds(amount) for key, amount in given_to.items())
    assert set(given_to) <= packing.needed


@many
@given(requests())
def test_the_same_question_has_the_same_answer(request):
    first, again = pack(request), pack(request)
    assert first == again
    assert list(first.launch.items()) == list(again.launch.items())
    assert explain(request, first) == explain(request, again)


@many
@given(requests(), st.randoms(use_true_random=False))
def test_the_order_of_demands_and_their_grouping_do_not_matter(request, random):
    request = replace(request, objective=Objective.UTILIZATION)
    singles = [replace(each, count=1) for each in request.demands for _ in range(each.count)]
    random.shuffle(singles)
    mixed = pack(replace(request, demands=tuple(singles)))
    packing = pack(request)
    assert dict(mixed.launch) == dict(packing.launch)
    assert sum(o.unplaced for o in mixed.demands) == sum(o.unplaced for o in packing.demands)


@many
@given(requests())
def test_what_the_next_pass_must_remember_fits_the_machines_on_their_way(request):
    packing = pack(request)
    removed = gone(packing)
    waiting = Counter(
        node.node_type
        for node in request.nodes
        if node.state is not InstanceState.RAY_RUNNING
        and node.kind is not NodeKind.HEAD
        and node.key not in removed
        and node.key not in packing.needed
    )
    assert {name: len(times) for name, times in packing.pending_idle.items()} == dict(waiting)
    assert all(list(times) == sorted(times) for times in packing.pending_idle.values())


IMPOSSIBLE = (
    Constraint(demands=(demand({"TPU": 1}),)),
    Constraint(demands=(demand({"CPU": 1}, 1000),)),
    Constraint(demands=(demand({"CPU": 1}, 1), demand({"CPU": 1}, 500))),
)


@settings(many, max_examples=300)
@given(requests(), st.sampled_from(IMPOSSIBLE), st.booleans())
def test_a_constraint_that_cannot_be_met_changes_nothing_else(request, impossible, is_first):
    more = (impossible, *request.constraints) if is_first else (*request.constraints, impossible)
    packing, plain = pack(replace(request, constraints=more)), pack(request)
    count = len(impossible.demands)
    others = packing.constraints[count:] if is_first else packing.constraints[:-count]
    moved = [replace(each, index=each.index - count * is_first) for each in others]
    assert moved == list(plain.constraints)
    assert replace(packing, constraints=()) == replace(plain, constraints=())
