from __future__ import annotations

from bench.check import problems
from bench.workloads import DemandData, GangData, NodeData, NodeTypeData, Workload

from muster.cluster.planner.request import ItemOutcome, Packing


def workload(**changes) -> Workload:
    fields = {
        "name": "w",
        "seed": 0,
        "description": "",
        "max_num_nodes": 4,
        "idle_timeout_s": 300.0,
        "node_types": [NodeTypeData(name="cpu", resources={"CPU": 4.0}, max_workers=3, price_per_hour=1.0)],
        "nodes": [NodeData(id="n1", type="cpu", total={"CPU": 4.0}, available={"CPU": 2.0})],
        "demands": [DemandData(shape={"CPU": 1.0}, count=5)],
    }
    return Workload(**(fields | changes))


def packing(launch: dict[str, int], *outcomes: ItemOutcome, **more) -> Packing:
    return Packing(launch=launch, demands=outcomes, **more)


def test_a_right_answer_has_no_problems():
    answer = packing({"cpu": 1}, ItemOutcome(index=0, placed={"n1": 2}, launched={"cpu": 3}))
    assert problems(workload(), answer) == []


def test_a_lost_request_is_found():
    answer = packing({"cpu": 1}, ItemOutcome(index=0, launched={"cpu": 4}))
    assert problems(workload(), answer) == ["demand 0: 5 asked, 4 accounted for"]


def test_an_overfull_node_is_found():
    answer = packing({"cpu": 1}, ItemOutcome(index=0, placed={"n1": 3}, launched={"cpu": 2}))
    assert problems(workload(), answer) == ["node n1: {'CPU': 3.0} on {'CPU': 2.0}"]


def test_too_few_new_machines_are_found():
    answer = packing({"cpu": 1}, ItemOutcome(index=0, launched={"cpu": 5}))
    assert problems(workload(), answer) == ["1 new cpu cannot hold {'CPU': 5.0}"]


def test_machines_beyond_the_limits_are_found():
    answer = packing({"cpu": 4}, ItemOutcome(index=0, launched={"cpu": 5}))
    assert problems(workload(), answer) == ["5 cpu, at most 3 allowed", "5 nodes, at most 4 allowed"]


def test_a_torn_gang_is_found():
    asked = workload(demands=[], gangs=[GangData(id="g", strategy="PACK", bundles=[{"CPU": 1.0}] * 3)])
    torn = packing({"cpu": 1}, gangs=(ItemOutcome(index=0, launched={"cpu": 2}, unplaced=1),))
    assert problems(asked, torn) == ["gang g: torn apart"]


def test_constraints_are_held_against_totals():
    asked = workload(demands=[], constraints=[DemandData(shape={"CPU": 1.0}, count=4)])
    fits = packing({}, constraints=(ItemOutcome(index=0, placed={"n1": 4}),))
    assert problems(asked, fits) == []
