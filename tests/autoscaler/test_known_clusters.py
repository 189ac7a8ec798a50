"""Which cluster a word on the command line stands for."""

from __future__ import annotations

import pytest

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.known_clusters import find_cluster
from muster.config.load import NAME_RULE
from muster.errors import ClusterError, ConfigError

FILE = "cluster_name: vision\nprovider: {type: process}\navailable_node_types: {a: {resources: {CPU: 1}}}\n"


@pytest.fixture
def root(tmp_path):
    for name in ("vision", "made before the rule"):
        ClusterHome.of(name, tmp_path / "clusters").nodes.mkdir(parents=True)
    (tmp_path / "victim" / "nodes").mkdir(parents=True)
    (tmp_path / "file.yaml").write_text(FILE, encoding="utf-8")
    return tmp_path / "clusters"


@pytest.mark.parametrize("word", ["vision", "made before the rule"])
def test_a_cluster_is_found_by_the_name_of_its_directory(root, word):
    assert find_cluster(word, root).name == word


def test_a_cluster_is_found_by_its_file(root):
    assert find_cluster(str(root.parent / "file.yaml"), root).name == "vision"


@pytest.mark.parametrize(
    "word",
    ["../victim", "..", ".", "", "team/vision", "/etc", "~nobody-of-this-name/x", "x" * 5000, "-y", "a b"],
)
def test_a_word_that_can_be_neither_says_what_a_name_may_be(root, word):
    with pytest.raises(ClusterError) as caught:
        find_cluster(word, root)
    said = str(caught.value)
    assert said.startswith(repr(word)) and said.endswith(NAME_RULE)


def test_a_file_that_is_not_there_is_named(root):
    with pytest.raises(ConfigError) as missing:
        find_cluster("nowhere/c.yaml", root)
    assert missing.value.file == "nowhere/c.yaml"
