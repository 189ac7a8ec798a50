from __future__ import annotations

import json
from io import StringIO

import msgspec
import pytest
from rich.console import Console
from tests.cli.conftest import CLUSTER
from tests.mistakes.views import assert_view

from muster.cli.plan.command import render_plan
from muster.cli.plan.report import PlanReport, build_report
from muster.cluster.planner.pack import what_if
from muster.config.demand_file import load_demand
from muster.config.to_spec import to_spec
from muster.providers.kind import load_config

FIVE = "demands:\n- {name: work, resources: {CPU: 4}, count: 5}\n"


def test_the_plan_of_a_served_demand_reads_as_written_here(plan):
    result = plan("demands:\n- {name: work, resources: {CPU: 4}, count: 2}\n")
    assert result.exit_code == 0
    assert_view("cli/plan", result.output)


def test_blocked_demand_exits_with_3_and_says_what_is_in_the_way(plan):
    result = plan("demands:\n- {name: huge, resources: {CPU: 64}}\n")
    assert result.exit_code == 3
    assert_view("cli/plan_blocked", result.output)


LONG_NAMES = """\
cluster_name: vision
provider: {type: aws}
max_workers: 9
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}}
  ray.worker.gpu-a100-spot:
    {node_config: {InstanceType: p4d.24xlarge}, price_per_hour: 32.77, market: spot, max_workers: 3}
  ray.worker.small: {node_config: {InstanceType: m5.xlarge}, price_per_hour: 0.192, max_workers: 4}
  ray.worker.of-a-size-that-nobody-knows: {resources: {}, node_config: {InstanceType: x9.huge}}
"""
LONG_DEMAND = """\
demands:
- {name: preprocessing-of-the-validation-set, resources: {CPU: 4, custom_resource_of_a_long_name: 1}}
- {name: train, resources: {CPU: 8, GPU: 1, "accelerator_type:A100": 0.001}, count: 40}
- {resources: {CPU: 1}, count: 30}
gangs:
- {id: placement-group-0123456789abcdef0123456789abcdef, strategy: STRICT_SPREAD,
   bundles: [{resources: {GPU: 8}, count: 5}]}
nodes:
- {id: i-0123456789abcdef0, type: ray.worker.small, idle_s: 4000, available: {CPU: 2}}
- {id: instance-of-a-cloud-with-long-ids-0123456789, type: ray.worker.small, idle_s: 4000}
"""


@pytest.mark.parametrize("width", [64, 80, 100, 200])
def test_no_word_is_broken_and_no_line_is_wider_than_the_page(tmp_path, width):
    (tmp_path / "c.yaml").write_text(LONG_NAMES, encoding="utf-8")
    (tmp_path / "d.yaml").write_text(LONG_DEMAND, encoding="utf-8")
    spec = to_spec(load_config(tmp_path / "c.yaml"))
    report = build_report(what_if(spec, load_demand(tmp_path / "d.yaml", spec)))
    pages = []
    for columns in (width, 10_000):
        page = Console(file=StringIO(), width=columns, highlight=False, markup=False, emoji=False)
        page.print(*render_plan(report), sep="\n")
        pages.append(page.file.getvalue())
    narrow, endless = pages
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= width
    assert sorted(narrow.split()) == sorted(endless.split())
    assert set(endless.split()) >= {
        "ray.worker.gpu-a100-spot",
        "placement-group-0123456789abcdef0123456789abcdef",
    }


def test_a_type_of_unknown_size_is_named_with_the_fix(plan):
    cluster = CLUSTER + "  unknown: {resources: {}, node_config: {InstanceType: x9.huge}}\n"
    result = plan(FIVE, cluster=cluster)
    assert_view("cli/plan_unknown_size", result.output)
    assert json.loads(plan(FIVE, "--json", cluster=cluster).output)["unknown_sizes"] == ["unknown"]
    assert "unknown" not in plan(FIVE).output


def test_no_line_is_wider_than_80_columns(plan):
    wide = "demands:\n" + "".join(
        f"- {{name: a-rather-long-name-{n}, resources: {{CPU: {n}, memory: 1000000}}}}\n"
        for n in range(1, 60)
    )
    result = plan(wide)
    assert result.exit_code == 3
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert "... and 39 " in result.output


def test_nodes_that_share_a_reason_share_a_line_and_idle_ones_are_stopped(plan):
    result = plan(
        "nodes:\n- {type: small, count: 5, available: {CPU: 0}}\n- {id: lazy, type: large, idle_s: 301}\n",
        cluster=CLUSTER.replace("max_workers: 4\nprovider", "max_workers: 9\nprovider").replace(
            "max_workers: 4\n    price", "max_workers: 8\n    price"
        ),
    )
    assert result.exit_code == 0
    assert_view("cli/plan_stop", result.output)


def test_a_type_without_a_price_is_left_out_of_the_sums_and_said_so(plan):
    result = plan(FIVE, cluster=CLUSTER.replace("    price_per_hour: 0.2\n", ""))
    assert_view("cli/plan_without_price", result.output)


def test_the_objective_can_be_overruled(plan):
    cost = json.loads(plan(FIVE, "--json").stdout)
    utilization = json.loads(plan(FIVE, "--json", "--objective", "utilization").stdout)
    assert (cost["objective"], utilization["objective"]) == ("cost", "utilization")
    assert {line["node_type"]: line["count"] for line in utilization["launch"]} == {"small": 1, "large": 1}
    assert cost["price"]["launch"] <= utilization["price"]["launch"]


def test_json_is_one_document_of_the_documented_type(plan):
    result = plan(FIVE + "gangs:\n- {id: g, strategy: SPREAD, bundles: [{resources: {CPU: 64}}]}\n", "--json")
    assert result.exit_code == 3
    data = json.loads(result.stdout)
    assert set(data) == {field.encode_name for field in msgspec.structs.fields(PlanReport)}
    assert next(iter(data)) == "format"
    assert data["satisfied"] is False
    assert data["gangs"] == [
        {
            "name": "g",
            "count": 1,
            "resources": None,
            "strategy": "SPREAD",
            "served": 0,
            "why": data["gangs"][0]["why"],
            "rejected": {},
        }
    ]
    assert [why["reason"] for why in data["gangs"][0]["why"]] == ["infeasible"]
    assert data["gangs"][0]["why"][0]["lacks"] == {"CPU": 48.0}


def test_the_counts_of_every_items_reasons_add_up_to_its_count(plan):
    data = json.loads(
        plan(
            FIVE
            + "- {name: more, resources: {CPU: 3}, count: 40}\n"
            + "constraints:\n- {resources: {CPU: 16}, count: 3}\n"
            + "nodes:\n- {type: small, available: {CPU: 3}}\n",
            "--json",
        ).stdout
    )
    items = [*data["demands"], *data["constraints"]]
    assert [item["count"] for item in items] == [5, 40, 3]
    assert [sum(why["count"] for why in item["why"]) for item in items] == [5, 40, 3]


def test_a_type_that_the_plan_fills_up_is_at_its_maximum_for_what_is_left_out(plan):
    cluster = CLUSTER.replace("max_workers: 4\n    price", "max_workers: 1\n    price")
    data = json.loads(
        plan(FIVE + "- {name: big, resources: {CPU: 9}, count: 2}\n", "--json", cluster=cluster).stdout
    )
    work, big = data["demands"]
    assert (work["served"], big["served"]) == (5, 0)
    assert data["launch"][0]["node_type"] == "small"
    assert big["rejected"] == {
        "head": "type-lacks-resources",
        "small": "type-lacks-resources",
        "large": "type-at-maximum",
    }


@pytest.mark.parametrize("objective", ["cost", "utilization"])
def test_a_gang_served_by_a_fallback_of_another_size_is_served(plan, objective):
    gang = "gangs:\n- {bundles: [{resources: {CPU: 64}}], fallbacks: [[{resources: {CPU: 4}, count: 3}]]}\n"
    result = plan(gang, "--json", "--objective", objective)
    told = json.loads(result.stdout)["gangs"][0]
    assert (result.exit_code, told["count"], told["served"]) == (0, 3, 3)


def test_nodes_may_come_from_their_own_file_but_not_from_two(muster, tmp_path):
    nodes = "nodes:\n- {type: small, id: n-1}\n"
    words = ("plan", "cluster", "--demand", "demand", "--nodes", "nodes")
    one = muster(*words, cluster=CLUSTER, demand="demands:\n- resources: {CPU: 4}\n", nodes=nodes)
    assert one.exit_code == 0
    assert "placed" in one.output
    two = muster(*words, cluster=CLUSTER, demand=nodes, nodes=nodes)
    assert two.exit_code == 2
    demand_file, nodes_file = tmp_path / "demand.yaml", tmp_path / "nodes.yaml"
    assert two.output.startswith(f"error: {demand_file}: nodes: ")
    assert str(nodes_file) in two.output


@pytest.mark.parametrize(
    ("cluster", "demand", "where"),
    [
        (CLUSTER.replace("max_workers: 4", "max_workers: .nan", 1), FIVE, "cluster.yaml:2: max_workers: nan"),
        (CLUSTER, FIVE.replace("CPU: 4", "CPU: -4"), "demand.yaml:2: demands[0].resources.CPU: -4"),
        (
            CLUSTER,
            FIVE.replace("count", "cuont"),
            "demand.yaml:2: demands[0].cuont: unknown key; did you mean 'count'?",
        ),
        (CLUSTER + "x: }\n", FIVE, "cluster.yaml:19: is not valid YAML"),
    ],
)
def test_bad_input_exits_with_2_and_one_line_that_names_the_place(plan, tmp_path, cluster, demand, where):
    result = plan(demand, cluster=cluster)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {tmp_path}/{where}")
    assert result.output.count("\n") == 1


OFFERS = """\
cluster_name: demo
max_workers: 9
provider: {type: process}
head_node_type: head
available_node_types:
  head: {resources: {CPU: 2}, price_per_hour: 0.1}
  gpu:
    resources: {CPU: 4, GPU: 1}
    max_workers: 9
    offers:
    - {zone: east-a, market: on-demand, price_per_hour: 1.0}
    - {zone: east-b, market: spot, price_per_hour: 0.25, max_workers: 2}
"""


def test_a_plan_shows_the_offers_that_are_bought_and_their_prices(plan):
    demand = "demands:\n- {name: work, resources: {GPU: 1}, count: 3}\n"
    result = plan(demand, cluster=OFFERS)
    assert_view("cli/plan_offers", result.output)


def test_the_json_of_a_plan_has_a_row_per_offer(plan):
    demand = "demands:\n- {name: work, resources: {GPU: 1}, count: 3}\n"
    rows = json.loads(plan(demand, "--json", cluster=OFFERS).output)["launch"]
    assert [(row["zone"], row["market"], row["count"], row["total_per_hour"]) for row in rows] == [
        ("east-b", "spot", 2, 0.5),
        ("east-a", "on-demand", 1, 1.0),
    ]
