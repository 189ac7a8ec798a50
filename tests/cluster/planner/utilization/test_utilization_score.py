"""Check the score of one filled node."""

from __future__ import annotations

import pytest
from tests.support.builders import demand, pack_node, selector

from muster.base.resources import Resources
from muster.cluster.planner.request import DemandKind, PackProblem
from muster.cluster.planner.utilization.fill import Filler
from muster.cluster.planner.utilization.grouping import (
    NodeGrouping,
    RelevantColumns,
    demand_requests,
    runs_of,
)
from muster.cluster.planner.utilization.select import key_of

IMPLICIT = "node:__internal_implicit_resource_abc"


def score_of(total, wanted, kind=DemandKind.DEMAND, **changes):
    """(label, gpu ok, types, lowest, mean) of one node that takes what it can of these demands."""
    node = pack_node("i", "any", total=total, **changes)
    problem = PackProblem(nodes=(node,), offers=(), room=None, demands=tuple(wanted))
    grouping = NodeGrouping(problem)
    filler = Filler(runs_of(demand_requests(problem.demands)), grouping.columns)
    state = grouping.node_state(0, kind)
    fill = filler.fill(state, filler.fitting(state.free, state.frame.pins))
    head, lowest, mean, _ = key_of(state, fill, filler)
    return -head >> 21, bool(-head >> 20 & 1), -head & (1 << 20) - 1, -lowest, -mean


@pytest.mark.parametrize("kind", list(DemandKind))
@pytest.mark.parametrize(
    ("total", "shape", "score"),
    [
        ({"CPU": 1}, {"CPU": 1}, (0, True, 1, 1, 1)),
        ({"GPU": 4}, {"GPU": 2}, (0, True, 1, 0.5, 0.5)),
        ({"GPU": 2}, {"GPU": 2}, (0, True, 1, 2, 2)),
        ({"CPU": 64}, {"CPU": 32}, (0, True, 1, 8, 8)),
        ({"GPU": 2, "TPU": 1}, {"GPU": 2}, (0, True, 1, 0, 1)),
        ({"GPU": 1, "CPU": 1}, {"CPU": 1}, (0, False, 1, 0, 0.5)),
        ({"CPU": 0, "custom": 1}, {"custom": 1}, (0, True, 1, 1, 1)),
        ({"CPU": 1}, {IMPLICIT: 1}, (0, True, 0, 0, 0)),
    ],
)
def test_sd20_reference_values_on_both_books(total, shape, score, kind):
    assert score_of(total, [demand(shape)], kind) == score


def test_a_resource_missing_from_what_is_free_is_left_out():
    wanted = [demand({"CPU": 1})]
    assert score_of({"CPU": 2, "disk": 4}, wanted, available={"CPU": 2}) == (0, True, 1, 0.25, 0.25)
    assert score_of({"CPU": 2, "disk": 4}, wanted, available={"CPU": 2, "disk": 4}) == (
        0,
        True,
        1,
        0.0,
        0.125,
    )


def test_work_that_runs_already_counts_as_used():
    assert score_of({"CPU": 4}, [demand({"CPU": 1})], available={"CPU": 3}) == (0, True, 1, 0.5, 0.5)


@pytest.mark.parametrize(("zone", "score"), [("a", 3), ("b", 2), ("c", 1)])
def test_sd21_an_earlier_selector_scores_higher(zone, score):
    wanted = demand(selectors=(selector(zone="a"), selector(zone="b"), selector(zone="c")))
    assert score_of({"CPU": 1}, [wanted], labels={"zone": zone})[0] == score


def test_the_empty_selector_of_a_plain_task_scores_one():
    assert score_of({"CPU": 1}, [demand(selectors=((),))])[0] == 1


def test_the_first_placed_request_with_a_selector_that_holds_gives_the_label_score():
    lead = ((selector(zone="b"),), (selector(zone="b"), selector(zone="a")), (selector(zone="a"),) * 5)
    filler = Filler((), RelevantColumns(PackProblem(nodes=(), offers=(), room=None)))
    assert filler.label_score(lead, (("zone", "a"),)) == 1
    assert filler.label_score((), (("zone", "a"),)) == 0


@pytest.mark.parametrize(
    ("free", "wanted", "takes", "rest"),
    [
        ({"CPU": 1}, [({"CPU": 1}, 1)], ((0, 1),), {"CPU": 0}),
        ({"CPU": 1}, [({"CPU": 1}, 2)], ((0, 1),), {"CPU": 0}),
        ({"CPU": 4}, [({"CPU": 1}, 2)], ((0, 2),), {"CPU": 2}),
        ({"CPU": 4}, [({"CPU": 3}, 1), ({"CPU": 2}, 1), ({"CPU": 1}, 1)], ((0, 1), (2, 1)), {"CPU": 0}),
        (
            {"CPU": 2, "GPU": 1},
            [({"CPU": 1, "GPU": 1}, 2), ({"CPU": 1}, 2)],
            ((0, 1), (1, 1)),
            {"CPU": 0, "GPU": 0},
        ),
        ({"CPU": 1}, [({}, 7)], ((0, 7),), {}),
        ({"CPU": 1}, [({"CPU": 0, "GPU": 0}, 7)], ((0, 7),), {}),
        ({"CPU": 0.5}, [({"CPU": 1}, 1)], None, {}),
    ],
)
def test_sd19_what_one_node_takes_and_what_is_left_of_it(free, wanted, takes, rest):
    node = pack_node("i", "any", total={"CPU": 4, "GPU": 1}, available=free)
    demands = tuple(demand(shape, count) for shape, count in wanted)
    grouping = NodeGrouping(PackProblem(nodes=(node,), offers=(), room=None, demands=demands))
    filler = Filler(runs_of(demand_requests(demands)), grouping.columns)
    state = grouping.node_state(0, DemandKind.DEMAND)
    fill = filler.fill(state, filler.fitting(state.free, state.frame.pins))
    assert (fill and fill.takes) == takes
    if fill:
        left = {name: fill.free[column] for name, column in grouping.columns.index.items()}
        assert left == dict(Resources.of(rest))
