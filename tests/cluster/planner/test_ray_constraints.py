"""What Ray 2.60 launches and removes with `request_resources`, within the limits and beyond them.

`ray_constraints.json` has random problems with Ray's answers, recorded from its scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import offer, pack_request

from muster.base.resources import Resources
from muster.cluster.model import (
    Constraint,
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeType,
    Objective,
    Strategy,
)
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import PackNode, PackRequest
from muster.cluster.states import InstanceState

PROBLEMS = json.loads(Path(__file__).with_name("ray_constraints.json").read_text(encoding="utf-8"))


def as_demand(shape: dict[str, float], count: int, selectors: Sequence[Any]) -> Demand:
    return Demand(
        shape=Resources.of(shape),
        count=count,
        selectors=tuple(
            tuple(
                LabelMatch(key, LabelOperator(operator), tuple(values)) for key, operator, values in selector
            )
            for selector in selectors
        ),
    )


def as_node(name: str, *given: Any) -> PackNode:
    node_type, total, available, idle_ms, state, labels = given
    return PackNode(
        key=name,
        node_type=node_type,
        total=Resources.of(total),
        available=Resources.of(available if state == "RAY_RUNNING" else total),
        idle_s=idle_ms / 1000,
        state=InstanceState[state],
        labels=labels,
    )


def as_request(problem: dict[str, Any]) -> PackRequest:
    types = [
        NodeType(name=name, resources=Resources.of(resources), min_nodes=least, max_nodes=most, labels=labels)
        for name, resources, least, most, labels in problem["types"]
    ]
    gangs = [
        Gang(
            gang_id=name,
            strategy=Strategy(strategy),
            options=(tuple(as_demand(shape, 1, selectors) for shape, selectors in bundles),),
        )
        for name, strategy, bundles in problem["gangs"]
    ]
    return pack_request(
        [offer(known) for known in types],
        nodes=tuple(as_node(*node) for node in problem["nodes"]),
        max_nodes=problem["max_nodes"],
        constraints=(Constraint(demands=tuple(as_demand(*each) for each in problem["constraint"])),),
        gangs=tuple(gangs),
        demands=tuple(as_demand(*each) for each in problem["demands"]),
        objective=Objective.UTILIZATION,
        idle_timeout_s=300.0,
    )


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: str(problem["seed"]))
def test_the_answer_is_rays(problem):
    request = as_request(problem)
    packing = pack(request)
    unserved = [request.gangs[outcome.index].gang_id for outcome in packing.gangs if outcome.unplaced]
    assert problem["ray"] == {
        "launch": dict(packing.launch),
        "unserved": sum(outcome.unplaced for outcome in packing.demands),
        "unserved_gangs": sorted(unserved),
        "removed": sorted(removal.instance_id for removal in packing.removals),
    }


def test_many_constraints_are_beyond_the_limits():
    outcomes = [pack(as_request(problem)).constraints for problem in PROBLEMS]
    assert sum(any(each.unplaced for each in outcome) for outcome in outcomes) == 25
