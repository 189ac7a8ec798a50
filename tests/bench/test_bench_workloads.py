from __future__ import annotations

import pytest

from bench import planner_gangs, planner_large, workloads


def test_every_recorded_workload_loads_and_has_a_recorded_answer_of_ray():
    bounds = workloads.load_bounds()
    loaded = [workloads.load(name) for name in workloads.names()]
    assert len(loaded) == 17
    assert [workload.name for workload in loaded] == sorted(bounds)


def test_only_the_workload_with_binding_limits_has_no_cost_bound():
    unbounded = [
        name for name, known in workloads.load_bounds().items() if known.cost_lower_bound_per_hour is None
    ]
    assert unbounded == ["tight_60n_3000p_10s"]


def test_a_recorded_price_is_the_price_of_the_recorded_launches():
    for name, known in workloads.load_bounds().items():
        price = workloads.load(name).price(known.ray_2_60.launch)
        assert price == pytest.approx(known.ray_2_60.cost_per_hour, abs=0.001), name


def test_an_unknown_workload_is_an_error_that_names_those_that_exist():
    with pytest.raises(FileNotFoundError, match="nosuch"):
        workloads.load("nosuch")


def test_a_workload_with_an_unknown_key_is_refused(tmp_path, monkeypatch):
    (tmp_path / "workloads").mkdir()
    text = (workloads.DATA / "workloads" / "zero_0n_100p_1s.json").read_text()
    (tmp_path / "workloads" / "odd.json").write_text(text.replace('"gangs"', '"gangz"'))
    monkeypatch.setattr(workloads, "DATA", tmp_path)
    with pytest.raises(workloads.msgspec.ValidationError, match="gangz"):
        workloads.load("odd")


def test_the_large_case_has_the_size_the_issue_asks_for():
    big = workloads.large()
    shapes = {tuple(sorted(demand.shape.items())) for demand in big.demands}
    sizes = (len(big.nodes), big.requests, len(big.demands), len(shapes), len(big.node_types))
    assert sizes == (10_000, 100_000, 200, 200, 400)


@pytest.mark.slow
def test_the_largest_case_has_the_size_the_issue_asks_for():
    big = planner_large.million()
    states = {(node.type, *sorted(node.available.items())) for node in big.nodes}
    sizes = (len(big.nodes), len(states), big.requests, len(big.demands), len(big.node_types))
    assert sizes == (100_000, 5_000, 1_000_000, 200, 400)


def test_no_two_nodes_and_no_two_gangs_of_the_mixed_case_are_alike():
    made = planner_gangs.mixed(50, nodes=500)
    nodes = {(node.type, *sorted(node.available.items())) for node in made.nodes}
    gangs = {str(gang.bundles) for gang in made.gangs}
    assert (len(nodes), len(gangs)) == (500, 50)
    assert {gang.strategy for gang in made.gangs} == set(planner_gangs.STRATEGIES)


def test_generated_nodes_are_about_half_full_and_never_overfull():
    made = workloads.large(nodes=400, demands=2_000, shapes=20, types=40)
    shares = []
    for node in made.nodes:
        assert all(0 <= node.available[name] <= quantity for name, quantity in node.total.items())
        shares.append(node.available["CPU"] / node.total["CPU"])
    assert 0.35 < sum(shares) / len(shares) < 0.65
    assert len({tuple(sorted(node.available.items())) for node in made.nodes}) > 100


def test_the_same_problem_is_generated_every_time():
    assert workloads.series(500) == workloads.series(500)


def test_the_growth_series_doubles_nodes_and_demands_and_keeps_shapes_and_types():
    steps = [workloads.series(nodes) for nodes in (500, 1000, 2000)]
    assert [len(step.nodes) for step in steps] == [500, 1000, 2000]
    assert [step.requests for step in steps] == [5_000, 10_000, 20_000]
    assert [len(step.demands) for step in steps] == [20, 20, 20]
    assert [demand.shape for demand in steps[0].demands] == [demand.shape for demand in steps[2].demands]
    for small, big in zip(steps[0].demands, steps[2].demands, strict=True):
        assert abs(small.count * 4 - big.count) <= 4
    assert steps[2].nodes[:500] == steps[0].nodes
    assert all(step.node_types == steps[0].node_types for step in steps)


def test_unseen_problems_differ_from_each_other():
    shapes = {str([demand.shape for demand in workloads.unseen(number).demands]) for number in range(10)}
    types = {str(workloads.unseen(number).node_types) for number in range(10)}
    assert (len(shapes), len(types)) == (10, 10)


def test_generated_quantities_are_quarters_so_that_no_rounding_decides():
    made = workloads.large(nodes=50, demands=1_000, shapes=100, types=20)
    bags = [demand.shape for demand in made.demands] + [node.available for node in made.nodes]
    assert all(quantity * 4 == int(quantity * 4) for bag in bags for quantity in bag.values())
