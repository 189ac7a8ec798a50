from __future__ import annotations

import pytest
from tests.config.conftest import GOOD

from muster.autoscaler.config_reload import retention_of
from muster.config.document import Document
from muster.config.to_spec import NodeLaunch, launch_hash, node_launches, to_spec
from muster.providers.kind import parse_config
from muster.stores.ledger.state import DEFAULT_RETENTION, Retention

CONFIG = parse_config(Document(GOOD, "c.yaml"))


def test_a_provider_gets_all_of_a_type_in_the_order_of_the_file():
    auth = {"ssh_user": "ubuntu"}
    assert list(node_launches(CONFIG).values()) == [
        NodeLaunch(
            node_type="head",
            node_config={"InstanceType": "m5.large"},
            resources={"CPU": 2.0},
            launch_hash=launch_hash({"InstanceType": "m5.large"}, auth),
            machine_type="m5.large",
        ),
        NodeLaunch(
            node_type="cpu",
            resources={"CPU": 8.0, "memory": 3.2e10},
            launch_hash=launch_hash({}, auth),
        ),
    ]


def test_the_planner_compares_the_hashes_that_providers_get():
    told = {name: launch.launch_hash for name, launch in node_launches(CONFIG).items()}
    assert {t.name: t.launch_hash for t in to_spec(CONFIG).node_types} == told


def test_retention_reaches_the_ledger_and_its_defaults_are_the_ledgers():
    assert retention_of(CONFIG) == DEFAULT_RETENTION
    text = GOOD + (
        "muster: {retention: {max_age_s: 60, max_records: 5, max_decisions: 6, max_decision_bytes: 7}}\n"
    )
    assert retention_of(parse_config(Document(text, "c.yaml"))) == Retention(
        max_age_s=60.0, max_ended=5, max_decisions=6, max_decision_bytes=7
    )


@pytest.mark.parametrize(
    ("max_workers", "types", "memory"),
    [
        # 7 GB can be promised: the head and two of the largest workers have 5 CPUs
        (2, {"small": "{CPU: 1}", "big": "{CPU: 2}"}, {"head": 1.4e9, "small": 1.4e9, "big": 2.8e9}),
        # what a type names is its own, as often as it may exist
        (2, {"own": "{CPU: 4, memory: 2000000000}", "rest": "{}"}, {"head": 1e9, "own": 2e9, "rest": 1e9}),
        (400, {"small": "{CPU: 1}"}, {"head": 1e8, "small": 1e8}),
    ],
)
def test_nodes_on_this_computer_share_its_memory(max_workers, types, memory, monkeypatch):
    monkeypatch.setattr("muster.host.machine.memory_bytes", lambda: 10_000_000_000)
    text = (
        f"cluster_name: c\nprovider: {{type: process}}\nmax_workers: {max_workers}\nhead_node_type: head\n"
        "available_node_types:\n  head: {resources: {CPU: 1}}\n"
    ) + "".join(f"  {name}: {{resources: {resources}}}\n" for name, resources in types.items())
    config = parse_config(Document(text, "c.yaml"))
    shares = {name: launch.resources["memory"] for name, launch in node_launches(config).items()}
    assert shares == memory
    assert "memory" not in to_spec(config).node_types[0].resources  # the planner counts what was given


def test_machines_of_others_keep_what_the_file_says():
    assert "memory" not in node_launches(CONFIG)["head"].resources
