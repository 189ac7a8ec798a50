"""What a provider class fills in of the cluster file: asked when a monitor starts, and only then."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner
from tests.providers.v1.dict_provider import DictNodeProvider

from muster.base.resources import Resources
from muster.cli.main import cli
from muster.config.document import Document
from muster.config.to_spec import node_launches
from muster.errors import ConfigError
from muster.providers.bootstrap import CompletedConfig, plain_config
from muster.providers.kind import kind_of, parse_config, watch_file

FILE = """
cluster_name: mine
provider: {{type: external, module: {module}, disable_node_updaters: true, region: here}}
max_workers: 4
head_node_type: head
available_node_types:
  head: {{resources: {{CPU: 1}}}}
  small: {{resources: {{}}, node_config: {{InstanceType: s}}}}
  large: {{resources: {{CPU: 8}}, node_config: {{InstanceType: l}}}}
"""
CALLED: list[str] = []


class Filling(DictNodeProvider):
    """Knows the size of its types, and makes a key and a network."""

    @staticmethod
    def fillout_available_node_types_resources(cluster_config):
        CALLED.append("fillout")
        cluster_config["available_node_types"]["small"]["resources"] = {"CPU": 2, "memory": 2**30}
        return cluster_config

    @staticmethod
    def bootstrap_config(cluster_config):
        CALLED.append("bootstrap")
        cluster_config["provider"]["network"] = "n-1"
        cluster_config["auth"]["ssh_private_key"] = "/keys/mine.pem"
        for entry in cluster_config["available_node_types"].values():
            entry["node_config"]["SubnetId"] = "subnet-1"
        return cluster_config


class Refusing(DictNodeProvider):
    @staticmethod
    def bootstrap_config(cluster_config):
        raise SystemExit("no credentials")


class Forgetful(DictNodeProvider):
    @staticmethod
    def bootstrap_config(cluster_config):
        cluster_config["provider"]["network"] = "n-1"


class Absurd(DictNodeProvider):
    @staticmethod
    def fillout_available_node_types_resources(cluster_config):
        cluster_config["available_node_types"]["small"]["resources"] = {"CPU": "two"}
        return cluster_config


@pytest.fixture(autouse=True)
def _nothing_called():
    CALLED.clear()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.format(module=f"{__name__}.Filling"), encoding="utf-8")
    return path


def completed(config):
    return CompletedConfig(asked=config, answer=kind_of(config).fill_in(config, None))


def config_of(name):
    return parse_config(Document(FILE.format(module=f"{__name__}.{name}"), "mine.yaml"))


def test_sizes_first_then_the_rest_and_both_are_in_force(file):
    source = watch_file(file)
    source.complete_with(completed(source.config).apply)
    assert CALLED == ["fillout", "bootstrap"]
    launches = node_launches(source.config)
    assert dict(launches["small"].node_config) == {"InstanceType": "s", "SubnetId": "subnet-1"}
    assert source.config.provider.settings()["network"] == "n-1"
    assert source.config.auth.settings()["ssh_private_key"] == "/keys/mine.pem"
    spec, _ = source.current()
    assert spec.node_type("small").resources == Resources.of(CPU=2, memory=2**30)
    assert spec.node_type("large").resources == Resources.of(CPU=8)


def test_an_edit_is_completed_from_the_same_answers_and_what_it_changed_is_as_written(file):
    source = watch_file(file)
    source.complete_with(completed(source.config).apply)
    text = (
        file.read_text()
        .replace("max_workers: 4", "max_workers: 9")
        .replace("InstanceType: l", "InstanceType: xl")
    )
    file.write_text(text + "  new: {resources: {GPU: 1}, node_config: {InstanceType: g}}\n")
    for _ in range(2):
        spec, problem = source.current()
    assert (problem, spec.max_nodes, CALLED) == ("", 10, ["fillout", "bootstrap"])
    made = {name: dict(launch.node_config) for name, launch in node_launches(source.config).items()}
    assert made["small"] == {"InstanceType": "s", "SubnetId": "subnet-1"}
    assert made["large"] == {"InstanceType": "xl"}
    assert made["new"] == {"InstanceType": "g"}
    assert spec.node_type("small").resources == Resources.of(CPU=2, memory=2**30)


def test_the_class_gets_rays_keys_and_may_change_what_it_gets():
    config = config_of("Filling")
    data = plain_config(config)
    assert set(data) >= {"cluster_name", "provider", "auth", "max_workers", "head_node_type", "docker"}
    assert "muster" not in data
    assert data["available_node_types"]["head"] == {
        **data["available_node_types"]["head"],
        "resources": {"CPU": 1},
        "node_config": {},
    }
    assert isinstance(data["available_node_types"]["head"]["resources"]["CPU"], int)
    before = plain_config(config)
    completed(config)
    assert plain_config(config) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Refusing", r"Refusing\.bootstrap_config\(cluster_config\) failed: SystemExit: no credentials"),
        ("Forgetful", r"Forgetful\.bootstrap_config must return the cluster file .* it returned None"),
        ("Absurd", r"Absurd: node type 'small': resources \{'CPU': 'two'\}"),
    ],
)
def test_what_goes_wrong_names_the_method(name, message):
    with pytest.raises(ConfigError, match=f"^provider.module: {message}"):
        completed(config_of(name))


def test_a_class_without_them_and_other_providers_change_nothing():
    for config in (config_of("Filling"), parse_config(Document(FILE.format(module="x.Y"), "f"))):
        own = parse_config(Document(FILE.format(module="x").replace("type: external", "type: process"), "f"))
        assert completed(own).apply(config) == config
    assert CALLED == []
    plain = parse_config(
        Document(FILE.format(module="tests.providers.v1.file_provider.FileNodeProvider"), "f")
    )
    filled = completed(plain).apply(plain)
    assert [dict(one.resources) for one in filled.available_node_types.values()] == [
        {"CPU": 1},
        {},
        {"CPU": 8},
    ]


def test_what_only_plans_or_shows_never_calls_them(file, tmp_path):
    demand = tmp_path / "demand.yaml"
    demand.write_text("demands: [{resources: {CPU: 4}, count: 1}]\n", encoding="utf-8")
    environment = {"MUSTER_HOME": str(tmp_path)}
    for words in (
        ["plan", str(file), "--demand", str(demand)],
        ["status", str(file)],
        ["why", "x", str(file)],
    ):
        CliRunner().invoke(cli, words, env={**os.environ, **environment})
    up = CliRunner().invoke(cli, ["up", str(file)], env={**os.environ, **environment}, input="n\n")
    assert (CALLED, up.exit_code) == ([], 1)  # nothing is made before the user has said yes
