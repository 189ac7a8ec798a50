"""`python -m bench up`: what its figures are made of."""

from __future__ import annotations

from bench.up import compared


def taken(wall_s: float, cpu_s: float, nodes: int, mean_node_s: float) -> dict[str, float]:
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "nodes": nodes,
        "mean_node_s": mean_node_s,
        "scripted_s": 10.0,
        "steps": 5,
    }


def test_overheads_are_per_node_and_step_and_cpu_is_over_the_wall_time():
    figures = compared({"one": [taken(10.5, 0.1, 1, 10.5)], "many": [taken(12.6, 2.52, 50, 11.0)]})
    assert {name: round(value, 6) for name, value in figures.items()} == {
        "wall_over_one": 1.2,
        "launcher_cpu_percent": 20.0,
        "wall_s.one": 10.5,
        "wall_s.many": 12.6,
        "overhead_ms.one": 100.0,
        "overhead_ms": 200.0,
        "cpu_ms.one": 20.0,
        "cpu_ms.many": 10.08,
    }
