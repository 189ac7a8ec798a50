"""Check verdicts: one reason per request, per node and per node type."""

from __future__ import annotations

import re

import pytest
from tests.mistakes.views import assert_line, assert_view
from tests.support.builders import (
    NOW,
    amounts,
    demand,
    gang,
    node_type,
    offer,
    pack_node,
    pack_nodes,
    pack_request,
    selector,
)

from muster.cluster.model import Constraint, FailureKind, NodeKind, Strategy
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.planner.explain import explain, rejections
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import DemandKind, PackSolution, Placement, Unplaced
from muster.cluster.states import InstanceState, ResizeLimits, ResizeStatus

BUSY = amounts({"CPU": 0})


def told(request, subject, engine=None):
    return [v for v in explain(request, pack(request, engine)) if v.subject is subject]


def of_demand(reason, count=1, subject_id="0", subject=Subject.DEMAND, **more):
    return Verdict(subject=subject, subject_id=subject_id, reason=reason, count=count, **more)


def blocked(of, kind=FailureKind.CAPACITY, until=NOW + 12, message="sold out"):
    return offer(of, blocked_kind=kind, blocked_until=until, blocked_message=message)


def test_nothing_asked_and_nothing_there_needs_no_words():
    request = pack_request([node_type()])
    assert explain(request, pack(request)) == ()


def test_requests_of_one_demand_have_a_reason_each():
    a = node_type("a", max_nodes=3)
    nodes = (pack_node("i-1", a), pack_node("i-2", a, state=InstanceState.ALLOCATED))
    request = pack_request([a], nodes=nodes, demands=(demand(count=5),))
    assert told(request, Subject.DEMAND) == [
        of_demand(Reason.PLACED, target="i-1"),
        of_demand(Reason.WAITING_FOR_NODE, target="i-2"),
        of_demand(Reason.WAITING_FOR_LAUNCH, target="a"),
        of_demand(
            Reason.BLOCKED_BY_TYPE_LIMIT,
            2,
            target="a",
            detail="every node type that can hold {CPU: 1} is at its maximum: a (3)",
        ),
    ]


def test_nodes_that_share_a_reason_share_a_verdict():
    request = pack_request([node_type("a")], nodes=pack_nodes(3, "a"), demands=(demand(count=3),))
    assert told(request, Subject.DEMAND) == [
        of_demand(Reason.PLACED, 3, target="i-1", detail="on i-1 and 2 more")
    ]


def test_a_demand_goes_by_its_name_and_else_by_its_place():
    demands = (demand(), demand({"GPU": 1}, name="train"), demand({"TPU": 1}))
    found = told(pack_request([node_type("a")], demands=demands), Subject.DEMAND)
    assert [verdict.subject_id for verdict in found] == ["0", "train", "2"]


def test_w18_an_impossible_shape_names_the_nearest_type_and_what_it_lacks():
    types = [
        node_type("m.large", {"CPU": 2}),
        node_type("m.16xlarge", {"CPU": 64}),
        node_type("g.xlarge", {"GPU": 1}),
    ]
    request = pack_request(types, demands=(demand({"CPU": 128}, 3),))
    assert told(request, Subject.DEMAND) == [
        of_demand(
            Reason.INFEASIBLE,
            3,
            target="m.16xlarge",
            lacks={"CPU": 64.0},
            detail="no node type can hold {CPU: 128}: nearest is m.16xlarge, which lacks CPU: 64",
        )
    ]


@pytest.mark.parametrize(
    ("types", "target", "lacks"),
    [
        # 1/8 + all of the GPU is more than 7/8 of the CPUs
        ([node_type("a", {"CPU": 7}), node_type("b", {"CPU": 1, "GPU": 1})], "b", {"CPU": 7.0}),
        # equally short: the one whose labels suit
        (
            [node_type("a", {"CPU": 8}), node_type("b", {"CPU": 8}, labels={"zone": "z"})],
            "b",
            {"GPU": 1.0},
        ),
        # equally short: the first
        ([node_type("a", {"CPU": 8}), node_type("b", {"CPU": 9})], "a", {"GPU": 1.0}),
    ],
)
def test_the_nearest_type_is_short_of_the_smallest_shares(types, target, lacks):
    asked = demand({"CPU": 8, "GPU": 1}, selectors=(selector(zone="z"),))
    found = told(pack_request(types, demands=(asked,)), Subject.DEMAND)
    assert [(v.reason, v.target, v.lacks) for v in found] == [(Reason.INFEASIBLE, target, lacks)]


def test_labels_that_no_type_has_are_infeasible_and_named():
    a = node_type("a", labels={"zone": "x"})
    request = pack_request([a], demands=(demand(selectors=(selector(zone="y"),)),))
    assert told(request, Subject.DEMAND) == [
        of_demand(
            Reason.INFEASIBLE,
            target="a",
            detail="no node type that can hold {CPU: 1} has labels zone in y: a has zone=x",
        )
    ]


def test_without_node_types_everything_is_infeasible():
    found = told(pack_request([], demands=(demand(),)), Subject.DEMAND)
    assert found == [
        of_demand(Reason.INFEASIBLE, detail="no node type can hold {CPU: 1}: the config has no node types")
    ]


def test_a_shape_that_only_the_head_can_hold_waits_for_the_head():
    head = pack_node("i-head", "h", kind=NodeKind.HEAD, total={"special": 1}, available={"special": 0})
    request = pack_request([node_type("a")], nodes=(head,), demands=(demand({"special": 1}),))
    assert told(request, Subject.DEMAND) == [
        of_demand(
            Reason.BLOCKED_BY_TYPE_LIMIT,
            target="i-head",
            detail="only nodes like i-head can hold {special: 1}, and none has that much free",
        )
    ]


def test_the_cluster_limit_is_named_when_types_still_have_room():
    request = pack_request([node_type("a")], max_nodes=2, demands=(demand(count=5),))
    assert told(request, Subject.DEMAND) == [
        of_demand(Reason.WAITING_FOR_LAUNCH, 2, target="a"),
        of_demand(
            Reason.BLOCKED_BY_CLUSTER_LIMIT,
            3,
            target="a",
            detail="the cluster is at its maximum of 2 nodes",
        ),
    ]


def test_back_off_is_named_with_the_type_that_is_tried_next():
    offers = [blocked(node_type("a"), until=NOW + 60), blocked(node_type("b"))]
    assert told(pack_request(offers, demands=(demand(count=2),)), Subject.DEMAND) == [
        of_demand(
            Reason.BLOCKED_BY_BACKOFF,
            2,
            target="b",
            detail="b failed (capacity: sold out); next try in 12 s",
        )
    ]


def test_a_type_that_is_backed_off_and_full_is_a_limit_not_a_back_off():
    a = node_type("a", max_nodes=1)
    nodes = pack_nodes(1, a, available=BUSY)
    found = told(pack_request([blocked(a)], nodes=nodes, demands=(demand(),)), Subject.DEMAND)
    assert [verdict.reason for verdict in found] == [Reason.BLOCKED_BY_TYPE_LIMIT]


def test_nodes_on_their_way_out_explain_a_full_type():
    a = node_type("a", max_nodes=1)
    found = told(pack_request([a], leaving={"a": 1}, demands=(demand(),)), Subject.DEMAND)
    assert [verdict.reason for verdict in found] == [Reason.BLOCKED_BY_TYPE_LIMIT]
    assert_view("cluster/type_limit", found[0].detail)


def test_a_node_that_only_now_turned_out_idle_explains_a_full_type():
    a = node_type("a", max_nodes=1)
    nodes = (pack_node("i-1", a, total={"CPU": 0.5}, idle_s=9.0),)
    request = pack_request([a], nodes=nodes, idle_timeout_s=1.0, demands=(demand(),))
    found = told(request, Subject.DEMAND)
    assert_view("cluster/type_limit", "\n".join(verdict.detail for verdict in found))
    assert [verdict.reason for verdict in told(request, Subject.NODE)] == [Reason.REMOVED_IDLE]


def test_a_node_that_must_go_leaves_room_so_the_cluster_limit_is_what_blocks():
    a = node_type("a", max_nodes=2, launch_hash="new")
    nodes = (pack_node("i-1", a, launch_hash="old"), pack_node("i-2", a, available=BUSY))
    request = pack_request([a], nodes=nodes, check_launch_hash=True, max_nodes=1, demands=(demand(),))
    found = told(request, Subject.DEMAND)
    assert [verdict.reason for verdict in found] == [Reason.BLOCKED_BY_CLUSTER_LIMIT]


def test_a_gang_has_one_reason_for_all_its_bundles():
    a = node_type("a", {"CPU": 2}, max_nodes=3)
    gangs = (
        gang([{"CPU": 2}] * 2, Strategy.STRICT_SPREAD, "fits"),
        gang([{"CPU": 2}] * 2, Strategy.STRICT_PACK, "too-big"),
        gang([{"CPU": 2}] * 2, Strategy.SPREAD, "too-many"),
    )
    found = told(pack_request([a], gangs=gangs), Subject.GANG)
    assert found == [
        of_demand(Reason.WAITING_FOR_LAUNCH, 2, "fits", Subject.GANG, target="a"),
        of_demand(
            Reason.INFEASIBLE,
            2,
            "too-big",
            Subject.GANG,
            target="a",
            lacks={"CPU": 2.0},
            detail="no node type can hold {CPU: 4}: nearest is a, which lacks CPU: 2",
        ),
        of_demand(
            Reason.BLOCKED_BY_GANG,
            2,
            "too-many",
            Subject.GANG,
            detail="the 2 bundles of this SPREAD gang fit one by one, but not together; "
            "the cluster may get any number of more nodes",
        ),
    ]


@pytest.mark.parametrize(
    ("types", "maximum", "reason"),
    [
        ([node_type("a", max_nodes=0)], None, Reason.BLOCKED_BY_TYPE_LIMIT),
        ([node_type("a")], 0, Reason.BLOCKED_BY_CLUSTER_LIMIT),
        ([blocked(node_type("a"))], None, Reason.BLOCKED_BY_BACKOFF),
        ([node_type("a", {"GPU": 1})], None, Reason.INFEASIBLE),
    ],
)
def test_a_gang_of_which_no_bundle_fits_shows_the_reason_of_the_bundle(types, maximum, reason):
    found = told(pack_request(types, max_nodes=maximum, gangs=(gang(),)), Subject.GANG)
    assert [(verdict.reason, verdict.count) for verdict in found] == [(reason, 2)]


def test_a_gang_shows_its_most_hopeful_alternative():
    options = ((demand({"TPU": 1}),), (demand(),))
    request = pack_request([node_type("a")], max_nodes=0, gangs=(gang(options=options),))
    assert [v.reason for v in told(request, Subject.GANG)] == [Reason.BLOCKED_BY_CLUSTER_LIMIT]


def test_a_gang_whose_locality_no_type_has_is_infeasible():
    found = told(pack_request([node_type("a")], gangs=(gang(locality_label="rack"),)), Subject.GANG)
    assert [(verdict.reason, " rack " in verdict.detail) for verdict in found] == [(Reason.INFEASIBLE, True)]


def test_constraint_bundles_have_their_own_verdicts():
    constraints = (Constraint(demands=(demand(name="floor"), demand({"GPU": 1}, 2))),)
    found = told(pack_request([node_type("a")], constraints=constraints), Subject.CONSTRAINT)
    assert [(v.subject_id, v.reason, v.count, v.lacks) for v in found] == [
        ("floor", Reason.WAITING_FOR_LAUNCH, 1, {}),
        ("1", Reason.INFEASIBLE, 2, {"GPU": 1.0}),
    ]


def test_requests_on_a_machine_that_is_enlarged_wait_for_that():
    a = node_type("a", {"CPU": 2}, resize=ResizeLimits(maximum=amounts({"CPU": 4})))
    status = ResizeStatus(current=amounts({"CPU": 2}), desired=amounts({"CPU": 2}))
    request = pack_request([a], nodes=(pack_node("i-1", a, resize=status),), demands=(demand({"CPU": 4}),))
    assert told(request, Subject.DEMAND) == [of_demand(Reason.WAITING_FOR_RESIZE, target="i-1")]


def test_a_shape_that_only_an_enlarged_machine_can_hold_is_feasible():
    a = node_type("a", {"CPU": 2}, resize=ResizeLimits(maximum=amounts({"CPU": 4})), max_nodes=0)
    found = told(pack_request([a], demands=(demand({"CPU": 4}), demand({"CPU": 5}))), Subject.DEMAND)
    assert [(v.reason, v.lacks) for v in found] == [
        (Reason.BLOCKED_BY_TYPE_LIMIT, {}),
        (Reason.INFEASIBLE, {"CPU": 1.0}),
    ]


def test_a_type_is_never_smaller_than_it_is_sold():
    a = node_type("a", {"CPU": 4}, resize=ResizeLimits(maximum=amounts({"CPU": 2})), max_nodes=0)
    found = told(pack_request([a], demands=(demand({"CPU": 4}),)), Subject.DEMAND)
    assert [verdict.reason for verdict in found] == [Reason.BLOCKED_BY_TYPE_LIMIT]


@pytest.mark.parametrize(
    ("minimum", "maximum", "missing"),
    [
        (2, 5, True),  # the outdated one is gone, one is left
        (5, 2, True),
        (1, 5, False),
        (0, 5, False),
    ],
)
def test_a_verdict_of_a_backed_off_type_has_what_its_minimum_lacks(minimum, maximum, missing):
    a = node_type("a", min_nodes=minimum, max_nodes=maximum, launch_hash="new")
    nodes = (pack_node("i-1", a), pack_node("i-2", a, launch_hash="old"))
    request = pack_request([blocked(a)], nodes=nodes, check_launch_hash=True)
    (verdict,) = told(request, Subject.NODE_TYPE)
    said = f"minimum {minimum}" if missing else "minimum reached"
    assert_line("cluster", f"backed off type, {said}", verdict.detail)


def test_a_removed_node_has_a_reason():
    a, b = node_type("a", launch_hash="new"), node_type("b", max_nodes=1)
    nodes = (
        pack_node("i-old", a, launch_hash="old"),
        pack_node("i-b1", b),
        pack_node("i-b2", b, available=BUSY),
        pack_node("i-a1", a, idle_s=50.0),
        pack_node("i-a2", a, idle_s=40.0),
    )
    request = pack_request([a, b], nodes=nodes, check_launch_hash=True, max_nodes=2, idle_timeout_s=30.0)
    assert [(v.subject_id, v.reason) for v in told(request, Subject.NODE)] == [
        ("i-old", Reason.REMOVED_OUTDATED),
        ("i-b1", Reason.REMOVED_MAX_NODES_PER_TYPE),
        ("i-b2", Reason.KEPT_BUSY),
        ("i-a1", Reason.REMOVED_MAX_NODES),
        ("i-a2", Reason.REMOVED_IDLE),
    ]
    assert_view("cluster/removed_nodes", "\n".join(v.detail for v in told(request, Subject.NODE)))


def test_a_kept_node_has_a_reason():
    a, never = node_type("a", min_nodes=1, idle_timeout_s=30.0), node_type("never")
    nodes = (
        pack_node("i-head", never, kind=NodeKind.HEAD, available=BUSY, idle_s=99.0),
        pack_node("i-busy", never, available=BUSY),
        pack_node("i-pending", never, state=InstanceState.REQUESTED, total={"x": 1}),
        pack_node("i-needed", never, total={"GPU": 1}, idle_s=99.0),
        pack_node("i-min", a, idle_s=40.0),
        pack_node("i-fresh", never, idle_s=40.0),
    )
    request = pack_request([a, never], nodes=nodes, demands=(demand({"GPU": 1}),))
    found = told(request, Subject.NODE)
    assert [(v.subject_id, v.reason) for v in found] == [
        ("i-head", Reason.KEPT_HEAD),
        ("i-busy", Reason.KEPT_BUSY),
        ("i-pending", Reason.KEPT_PENDING),
        ("i-needed", Reason.KEPT_NEEDED),
        ("i-min", Reason.KEPT_MIN_NODES),
        ("i-fresh", Reason.KEPT_NOT_IDLE_LONG_ENOUGH),
    ]
    assert_view("cluster/kept_nodes", "\n".join(f"{v.subject_id}: {v.detail}" for v in found))


def test_a_node_that_is_not_idle_long_enough_shows_how_long():
    request = pack_request([node_type("a")], nodes=pack_nodes(1, "a", idle_s=12.0), idle_timeout_s=60.0)
    (verdict,) = told(request, Subject.NODE)
    assert (verdict.reason, re.findall(r"\d+", verdict.detail)) == (
        Reason.KEPT_NOT_IDLE_LONG_ENOUGH,
        ["12", "60"],
    )


def test_every_type_has_a_reason_why_it_was_bought_or_not():
    wants_zone = demand(selectors=(selector(zone="z"),))
    here = {"zone": "z"}
    offers = [
        node_type("chosen", labels=here, price_per_hour=0.5),
        node_type("not-best", {"CPU": 8, "GPU": 1}, labels=here),
        node_type("small", {"CPU": 0.5}, labels=here),
        node_type("elsewhere"),
        node_type("full", labels=here, max_nodes=0),
        blocked(node_type("sold-out", labels=here)),
        blocked(node_type("over-quota", min_nodes=2), FailureKind.QUOTA, message="vCPU limit"),
    ]
    found = told(pack_request(offers, demands=(wants_zone,)), Subject.NODE_TYPE)
    assert [(v.subject_id, v.reason) for v in found] == [
        ("chosen", Reason.TYPE_CHOSEN),
        ("not-best", Reason.TYPE_NOT_BEST),
        ("small", Reason.TYPE_LACKS_RESOURCES),
        ("elsewhere", Reason.TYPE_LABELS_DIFFER),
        ("full", Reason.TYPE_AT_MAXIMUM),
        ("sold-out", Reason.TYPE_BACKED_OFF),
        ("over-quota", Reason.TYPE_NEEDS_USER_ACTION),
    ]
    assert_view("cluster/node_types", "\n".join(f"{v.subject_id}: {v.detail}" for v in found))


def test_types_are_silent_when_no_machine_is_wanted():
    request = pack_request([node_type("a")], nodes=pack_nodes(1, "a"), demands=(demand(),))
    assert told(request, Subject.NODE_TYPE) == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.CAPACITY, Reason.TYPE_BACKED_OFF),
        (FailureKind.THROTTLED, Reason.TYPE_BACKED_OFF),
        (FailureKind.UNKNOWN, Reason.TYPE_BACKED_OFF),
        (FailureKind.QUOTA, Reason.TYPE_NEEDS_USER_ACTION),
        (FailureKind.PERMISSION, Reason.TYPE_NEEDS_USER_ACTION),
        (FailureKind.CONFIG, Reason.TYPE_NEEDS_USER_ACTION),
    ],
)
def test_a_failure_that_retries_cannot_fix_needs_a_user(kind, reason):
    found = told(pack_request([blocked(node_type("a"), kind)]), Subject.NODE_TYPE)
    assert [verdict.reason for verdict in found] == [reason]


def test_rejections_give_each_unused_type_its_code():
    offers = (
        offer(node_type("chosen")),
        offer(node_type("other", {"CPU": 2})),
        offer(node_type("small", {"CPU": 0.5})),
        offer(node_type("tagged", labels={"team": "x"})),
        offer(node_type("full"), room=0),
        blocked(node_type("sold-out")),
        blocked(node_type("denied"), FailureKind.PERMISSION),
    )
    asked = demand(avoid=("team", "x"))
    assert rejections(asked, offers, 5, ("chosen",)) == {
        "other": Reason.TYPE_NOT_BEST,
        "small": Reason.TYPE_LACKS_RESOURCES,
        "tagged": Reason.TYPE_LABELS_DIFFER,
        "full": Reason.TYPE_AT_MAXIMUM,
        "sold-out": Reason.TYPE_BACKED_OFF,
        "denied": Reason.TYPE_NEEDS_USER_ACTION,
    }
    assert rejections(asked, offers[:1], 0, ()) == {"chosen": Reason.TYPE_AT_MAXIMUM}


def test_a_request_left_although_a_type_had_room_is_reported_as_that():
    request = pack_request([node_type("a")], demands=(demand(count=2),))
    lazy = PackSolution(
        launch={"a": 1},
        placements=(Placement(DemandKind.DEMAND, False, 0, -1, "a", 1),),
        unplaced=(Unplaced(DemandKind.DEMAND, False, 0, 1),),
    )
    found = told(request, Subject.DEMAND, lambda problem: lazy)
    assert [verdict.detail for verdict in found] == [
        "",
        "a could hold it and has room; the planner did not use it",
    ]
