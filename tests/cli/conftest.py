"""Run `muster` in this process and keep what it printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from muster.cli.main import cli

CLUSTER = """\
cluster_name: demo
max_workers: 4
provider: {type: aws}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 0}
    price_per_hour: 0.1
  small:
    resources: {CPU: 4}
    node_config: {InstanceType: m5.xlarge}
    max_workers: 4
    price_per_hour: 0.2
  large:
    resources: {CPU: 16}
    max_workers: 1
    price_per_hour: 1.0
    market: spot
"""


@pytest.fixture
def muster(tmp_path: Path) -> Callable[..., Result]:
    """`muster("plan", cluster=..., demand=...)`: texts become files, other words are passed on."""

    def run(*words: str, **files: str) -> Result:
        paths = {}
        for name, text in files.items():
            paths[name] = tmp_path / f"{name}.yaml"
            paths[name].write_text(text, encoding="utf-8")
        given = [str(paths[word]) if word in paths else word for word in words]
        return CliRunner().invoke(cli, given)

    return run


@pytest.fixture
def plan(muster: Callable[..., Result]) -> Callable[..., Result]:
    """`plan("demands: ...", "--json")` for the cluster above."""

    def run(demand: str, *words: str, cluster: str = CLUSTER) -> Result:
        return muster("plan", "cluster", "--demand", "demand", *words, cluster=cluster, demand=demand)

    return run


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`tune("ls", path, "--json", columns=60)`: `muster tune` in a terminal of so many columns."""

    def run(*words: object, columns: int = 80) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(cli, ["tune", *map(str, words)])

    return run
