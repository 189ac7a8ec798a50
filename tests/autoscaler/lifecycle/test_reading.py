"""How often a command reads the cluster file, and which lines its errors cite."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from muster.autoscaler.lifecycle.head_file import Overrides
from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cli.main import cli
from muster.config import document
from muster.errors import ConfigError

FILE = """\
# A comment, and an order of keys that no dump would keep.
provider:
  type: external
  module: tests.providers.v1.file_provider.FileNodeProvider
  disable_node_updaters: true

available_node_types:
  head: {resources: {CPU: 1}}
  worker:
    resources: {CPU: 2}
    min_workers: 1
max_workers: 3
head_node_type: head
cluster_name: mine
head_start_ray_commands: [ray start --head]
"""
WATCHED: dict[str, int] = {}  # path -> how often it was opened


def count(event, given):
    if event == "open" and WATCHED and str(given[0]) in WATCHED:
        WATCHED[str(given[0])] += 1


sys.addaudithook(count)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return path


def opened(tmp_path, file, **overrides):
    context = LaunchContext(tmp_path / "home", {}, SystemClock(), RandomIds())
    return OpenCluster(context, file, Overrides(**overrides))


def test_overrides_replace_keys_of_the_file(tmp_path, file):
    with opened(tmp_path, file, cluster_name="other", min_workers=2, max_workers=4) as cluster:
        config = cluster.config
    assert (config.cluster_name, config.max_workers) == ("other", 4)
    assert config.available_node_types["worker"].min_workers == 2


@pytest.mark.parametrize(
    ("overrides", "path", "line"),
    [
        ({"min_workers": 9}, "available_node_types.worker.min_workers", 11),
        ({"max_workers": 0}, "available_node_types.worker.min_workers", 11),
        ({"cluster_name": "a/b"}, "cluster_name", 14),
    ],
)
def test_an_error_with_overrides_cites_the_users_own_line(tmp_path, file, overrides, path, line):
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, file, **overrides)
    assert (caught.value.path, caught.value.line, caught.value.file) == (path, line, str(file))


def test_up_reads_the_file_twice_and_parses_it_once(tmp_path, file, monkeypatch):
    parsed = []
    parser = document._Parser
    monkeypatch.setattr(document, "_Parser", lambda *given: parsed.append(given[1]) or parser(*given))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(WATCHED, str(file), 0)
    done = CliRunner().invoke(cli, ["up", str(file), "--dry-run", "--no-check", "--max-workers", "2"])
    assert done.exit_code == 0, done.output
    assert WATCHED[str(file)] <= 2
    assert parsed == [str(file)]
