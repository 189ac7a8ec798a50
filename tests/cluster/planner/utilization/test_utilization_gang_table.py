"""Gangs on many nodes are placed from arrays: the same choices, without a look at every node for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.ours.planner import request_of
from bench.planner_gangs import equal_packs, equal_spreads, mixed, unseen_gangs
from bench.unseen import gang_answer
from bench.workloads import Workload
from tests.cluster.planner.utilization.naive import solve_naively
from tests.cluster.planner.utilization.problems import gang_problem, random_problem
from tests.cluster.planner.utilization.test_utilization_naive import comparable
from tests.series import length
from tests.support.builders import demand, gang, node_type, pack_node

from muster.cluster.model import Objective, Strategy
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import PackProblem
from muster.cluster.planner.utilization import gang_table, solve, solve_utilization
from muster.cluster.planner.utilization.fill import Filler

RECORDED = Path(__file__).with_name("ray_gangs.json")  # `python -m bench.unseen` writes it, with Ray


@pytest.fixture
def in_table(monkeypatch):
    """The table is used whatever the size, and rows are scored as arrays even if there are few."""
    use_table(monkeypatch, True)
    monkeypatch.setattr(gang_table, "_FEW", 2)


def use_table(monkeypatch, always: bool) -> None:
    monkeypatch.setattr(solve.Fleet, "_has_many_candidates", lambda self: always)


def problem_of(workload: Workload) -> PackProblem:
    asked: list[PackProblem] = []

    def engine(problem: PackProblem):
        asked.append(problem)
        return solve_utilization(problem)

    pack(request_of(workload, Objective.UTILIZATION), engine)
    return asked[0]


def test_gangs_are_placed_exactly_as_by_the_plain_rule(in_table):
    for seed in range(12):
        problem = gang_problem(seed)
        assert comparable(solve_utilization(problem)) == comparable(solve_naively(problem)), seed


@pytest.mark.slow
@pytest.mark.parametrize("few", [0, 3, 16])
def test_gangs_are_placed_exactly_as_by_the_plain_rule_on_many_problems(in_table, few, monkeypatch):
    monkeypatch.setattr(gang_table, "_FEW", few)
    for seed in range(100 + 100 * few, 160 + 100 * few):
        for problem in (gang_problem(seed), random_problem(seed)):
            assert comparable(solve_utilization(problem)) == comparable(solve_naively(problem)), seed


@pytest.mark.slow
@pytest.mark.parametrize("workload", [mixed(60, 400), equal_packs(300), equal_spreads(200, 100)])
def test_the_table_and_the_queue_place_gangs_alike(workload, monkeypatch):
    problem = problem_of(workload)
    use_table(monkeypatch, True)
    from_table = comparable(solve_utilization(problem))
    use_table(monkeypatch, False)
    assert from_table == comparable(solve_utilization(problem))


def test_answers_that_were_dropped_to_save_memory_are_computed_again(in_table, monkeypatch):
    problem = problem_of(mixed(30, 100))
    kept = comparable(solve_utilization(problem))
    monkeypatch.setattr(gang_table, "_MOST_CELLS", 100)
    assert comparable(solve_utilization(problem)) == kept


@pytest.mark.slow
@pytest.mark.parametrize("always", [True, False])
def test_launches_lost_gangs_and_nodes_in_use_are_those_of_ray(always, monkeypatch):
    use_table(monkeypatch, always)
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) == 60
    numbers = range(0, len(recorded), 60 // length(20, 60))
    ours = [gang_answer(unseen_gangs(number)) for number in numbers]
    shown = [[launch, lost, list(gangs), sorted(idle)] for launch, lost, gangs, idle in ours]
    assert shown == [recorded[number] for number in numbers]


@pytest.mark.parametrize(("workload", "fills"), [(mixed(60, 400), 8_000), (equal_packs(300), 8_000)])
def test_one_gang_does_not_look_at_every_node_one_by_one(workload, fills, monkeypatch):
    calls = []
    fill = Filler.fill
    monkeypatch.setattr(Filler, "fill", lambda *given: calls.append(1) or fill(*given))
    solve_utilization(problem_of(workload))
    assert len(calls) < fills  # 60 x 400 or 300 x 300 and more, if each gang tries each node


def test_nodes_that_differ_only_in_what_no_gang_asks_for_are_one_row(in_table, monkeypatch):
    pinned = [node_type(f"t{number}", {"CPU": 8, f"node:{number}": 1}) for number in range(30)]
    nodes = tuple(pack_node(f"i-{number}", of) for number, of in enumerate(pinned))
    problem = PackProblem(
        nodes=nodes,
        offers=(),
        room=None,
        gangs=tuple(gang([{"CPU": 1}] * 2, Strategy.STRICT_SPREAD, f"g-{number}") for number in range(5)),
        demands=tuple(demand({f"node:{number}": 1}) for number in range(30)),
    )
    tables = []
    made = gang_table.CandidateTable.__init__
    monkeypatch.setattr(
        gang_table.CandidateTable,
        "__init__",
        lambda self, columns: tables.append(self) or made(self, columns),
    )
    solution = solve_utilization(problem)
    assert comparable(solution) == comparable(solve_naively(problem))
    assert len(tables[0].row_of) == 30
    assert len(set(tables[0].row_of.tolist())) == 2  # those that hold bundles, and those that do not
