"""Provide a correct cluster file, and a way to write variants of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
cluster_name: demo
max_workers: 10
provider:
  type: aws
  region: eu-west-1
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 2}
    node_config: {InstanceType: m5.large}
  cpu:
    resources: {CPU: 8, memory: 3.2e+10}
    min_workers: 1
    max_workers: 6
    price_per_hour: 0.4
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text to a file of this test and return its path."""

    def write_file(text: str, name: str = "cluster.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
