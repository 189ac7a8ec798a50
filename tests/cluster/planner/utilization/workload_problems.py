"""The recorded workloads of bench/data as planning problems, the way the frame hands them to an engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, NodeType, Strategy
from muster.cluster.planner.request import PackNode, PackProblem, TypeOffer

DATA = (
    next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists()) / "bench/data"
)


def recorded() -> dict[str, dict]:
    """Workload name -> what Ray 2.60 answered, for those where it answered."""
    bounds = json.loads((DATA / "bounds.json").read_text())
    return {name: known["ray_2_60"] for name, known in bounds.items() if known.get("ray_2_60")}


def load(name: str) -> PackProblem:
    return as_problem(json.loads((DATA / "workloads" / f"{name}.json").read_text()))


def as_problem(data: dict) -> PackProblem:
    existing = Counter(node["type"] for node in data["nodes"])
    by_type: dict[str, list[PackNode]] = {}
    for node in data["nodes"]:
        by_type.setdefault(node["type"], []).append(
            PackNode(
                key=node["id"],
                node_type=node["type"],
                total=Resources.of(node["total"]),
                available=Resources.of(node["available"]),
                labels=node["labels"],
            )
        )
    offers = tuple(
        TypeOffer(
            node_type=NodeType(
                name=t["name"],
                resources=Resources.of(t["resources"]),
                max_nodes=t["max_workers"],
                labels=t["labels"],
            ),
            room=max(0, t["max_workers"] - existing[t["name"]]),
        )
        for t in data["node_types"]
    )
    cap = data["max_num_nodes"]
    return PackProblem(
        nodes=tuple(node for nodes in by_type.values() for node in nodes),
        offers=offers,
        room=None if cap is None else max(0, cap - len(data["nodes"])),
        constraints=tuple(as_demand(d) for d in data.get("constraints", ())),
        gangs=tuple(as_gang(g) for g in data.get("gangs", ())),
        demands=tuple(as_demand(d) for d in data["demands"]),
    )


def as_demand(data: dict) -> Demand:
    return Demand(shape=Resources.of(data["shape"]), count=data["count"])


def as_gang(data: dict) -> Gang:
    bundles = tuple(Demand(shape=Resources.of(shape)) for shape in data["bundles"])
    return Gang(gang_id=data["id"], strategy=Strategy(data["strategy"]), options=(bundles,))
