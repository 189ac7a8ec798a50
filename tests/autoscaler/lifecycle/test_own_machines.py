"""`up` with a user's own provider class: its runner runs the commands, the head gets what it completed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import yaml

from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster
from muster.autoscaler.lifecycle.up import ClusterUp, UpOptions
from muster.autoscaler.status_files import read_record
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.errors import ClusterError, ConfigError
from muster.providers.v1.tags import NODE_KIND_WORKER, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

pytestmark = pytest.mark.slow
RAY = Path(sys.executable).parent / "ray"
PRICES = "type,zone,on_demand,spot\nm5.large,us-east-1a,0.1,0.03\n"


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "own.yaml"
    made.write_text(
        f"""cluster_name: own
provider: {{type: external, module: tests.autoscaler.lifecycle.own_machines.OwnMachines, folder: {tmp_path}}}
available_node_types: {{head: {{resources: {{CPU: 1}}}}, big: {{resources: {{CPU: 8}}, max_workers: 3}}}}
head_node_type: head
muster: {{prices: prices.csv}}
file_mounts: {{~/notes: {tmp_path}/notes}}
setup_commands: ["echo set up >> {tmp_path}/steps"]
head_start_ray_commands:
- cp ~/ray_bootstrap_config.yaml {tmp_path}/seen.yaml; cp ~/muster_prices.csv {tmp_path}/seen.csv
- env > {tmp_path}/environment; exit 5
- {RAY} start --head
""",
        encoding="utf-8",
    )
    (tmp_path / "notes").write_text("hello", encoding="utf-8")
    (tmp_path / "prices.csv").write_text(PRICES, encoding="utf-8")
    return made


def context_of(tmp_path, report=lambda node, step: None):
    root = tmp_path / "clusters"
    return LaunchContext(root=root, environment={}, clock=SystemClock(), ids=RandomIds(), report=report)


def test_a_mistake_in_the_price_file_is_found_before_anything_is_asked(file, tmp_path):
    (tmp_path / "prices.csv").write_text("type,zone\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="on_demand"):
        OpenCluster(context_of(tmp_path), file)


def test_the_class_runs_the_commands_completes_the_heads_file_and_gets_its_machine_back(file, tmp_path):
    steps: list[tuple[str, str]] = []
    context = context_of(tmp_path, lambda node, step: steps.append((node, step.partition(":")[0])))
    with OpenCluster(context, file) as session:
        session.bootstrap()
        with pytest.raises(ClusterError, match=r"\bstart\b.*\bm-1\b"):
            asyncio.run(ClusterUp(session, UpOptions(login_shells=False)).run())
    seen = yaml.safe_load((tmp_path / "seen.yaml").read_text())
    assert seen["provider"] == {
        "type": "external",
        "module": "tests.autoscaler.lifecycle.own_machines.OwnMachines",
        "folder": str(tmp_path),
        "subnet": "s-1",
        "from_head": True,
        "muster_bootstrapped": True,
    }
    assert seen["available_node_types"]["big"]["node_config"] == {"image": "ubuntu"}
    assert seen["muster"] == {"prices": "~/muster_prices.csv"}
    assert (tmp_path / "seen.csv").read_text() == PRICES
    assert seen["file_mounts"] == {"~/notes": "~/notes"}
    environment = dict(
        line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line
    )
    assert environment["RAY_CLOUD_INSTANCE_ID"] == "m-1"
    assert environment["RAY_AUTH_TOKEN_PATH"] == f"{tmp_path}/m-1/.muster/clusters/own/auth_token"
    assert (tmp_path / "m-1" / "notes").read_text() == "hello"
    assert (tmp_path / "steps").read_text() == "set up\n"
    assert ("127.0.0.1", "setting up") in steps and ("127.0.0.1", "starting Ray") in steps
    assert json.loads((tmp_path / "nodes.json").read_text()) == {}  # released
    assert read_record(session.home) is None


def test_workers_of_a_type_that_the_file_no_longer_has_are_noted(file, tmp_path):
    kind = {TAG_RAY_NODE_KIND: NODE_KIND_WORKER}
    nodes = {name: {**kind, TAG_RAY_USER_NODE_TYPE: of} for name, of in (("m-1", "old"), ("m-2", "big"))}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes), encoding="utf-8")
    with OpenCluster(context_of(tmp_path), file) as session:
        (note,) = session.notes_on_removed_types()
    assert "1 worker of type old" in note
