"""From the cluster file to a provider, and from every mistake to the key that has to be changed."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from dataclasses import fields

import pytest
from msgspec.structs import replace
from tests.providers.v1.dict_provider import DictNodeProvider
from tests.support.builders import node_report

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cluster.model import NodeKind, NodeStatus, RuntimeReport
from muster.config.document import Document
from muster.config.schema import ProviderConfig
from muster.config.to_spec import node_launches
from muster.errors import ConfigError, ProviderError
from muster.providers.kind import KINDS, NOT_BUILT, ProviderContext, build_provider, kind_named, parse_config

YAML = """
cluster_name: mine
provider: {{{provider}}}
available_node_types:
  cpu: {{resources: {{CPU: 2}}, node_config: {{InstanceType: small}}, max_workers: 3}}
"""


def config_of(tmp_path, provider):
    path = tmp_path / "cluster.yaml"
    path.write_text(YAML.format(provider=provider))
    return parse_config(Document.load(path))


def surroundings(tmp_path, **more):
    return ProviderContext(
        cluster_name="mine", home=tmp_path, address="", clock=ManualClock(), ids=CountingIds(), **more
    )


def build(tmp_path, provider, **more):
    config = config_of(tmp_path, provider)
    return build_provider(config, lambda: node_launches(config), surroundings(tmp_path, **more))


def test_an_external_class_is_found_made_and_adapted(tmp_path):
    provider = (
        "type: external, module: tests.providers.v1.file_provider.FileNodeProvider,"
        " disable_node_updaters: true,"
        f" state_dir: {tmp_path / 'state'}"
    )
    port = build(tmp_path, provider)
    try:
        assert port.v1.provider_config["state_dir"] == str(tmp_path / "state")
        port.launch("r-1", {"cpu": 1})
        for _ in range(1000):
            if port.list_instances():
                break
        assert [(m.node_type, m.request_id) for m in port.list_instances().values()] == [("cpu", "r-1")]
        assert port.traits().installs_runtime
    finally:
        port.close()


def test_the_size_of_a_create_call_is_the_files(tmp_path, monkeypatch):
    sizes, create = [], DictNodeProvider.create_node

    def noted(self, node_config, tags, count):
        sizes.append(count)
        return create(self, node_config, tags, count)

    monkeypatch.setattr(DictNodeProvider, "create_node", noted)
    config = config_of(
        tmp_path,
        "type: external, module: tests.providers.v1.dict_provider.DictNodeProvider,"
        " disable_node_updaters: true}\n"
        "muster: {limits: {max_launch_batch: 2}",
    )
    port = build_provider(config, lambda: node_launches(config), surroundings(tmp_path))
    port.launch("r-1", {"cpu": 3})
    while len(port.list_instances()) < 3 or port.under_way("r-1"):
        time.sleep(0.01)
    port.close()
    assert sorted(sizes) == [1, 2]


def test_without_commands_the_machines_must_bring_the_runtime_and_that_is_said(tmp_path, caplog):
    port = build(tmp_path, "type: external, module: tests.providers.v1.dict_provider.DictNodeProvider")
    port.close()
    assert port.traits().installs_runtime
    assert caplog.messages == [
        "provider.disable_node_updaters is not true, but there are no worker_start_ray_commands: the"
        " machines of tests.providers.v1.dict_provider.DictNodeProvider must start their node themselves"
    ]


def mistaken(tmp_path, kind, module=None):
    """A config as code could make it; a file with such a provider is refused before it gets here."""
    config = config_of(tmp_path, "type: process")
    return replace(config, provider=ProviderConfig(type=kind, module=module))


@pytest.mark.parametrize(
    ("kind", "module", "complaint"),
    [
        ("external", None, "provider.module: is missing; name your class"),
        ("external", "MyProvider", "provider.module: 'MyProvider' must be a dotted path to a class"),
        (
            "external",
            "no_such_package.Mine",
            "provider.module: .* there is no module 'no_such_package'; install",
        ),
        (
            "external",
            "tests.providers.v1.no_such.Mine",
            "provider.module: .* there is no module 'tests.providers.v1.no_such'",
        ),
        (
            "external",
            "tests.providers.v1.dict_provider.DictNodeProvide",
            "module tests.providers.v1.dict_provider has no class 'DictNodeProvide'; "
            "did you mean 'DictNodeProvider'?",
        ),
        ("external", "collections.OrderedDict", "OrderedDict lacks create_node, external_ip, internal_ip"),
        (
            "external",
            "tests.providers.v1.file_provider.FileNodeProvider",
            r"provider: FileNodeProvider\(provider_config, cluster_name\) failed: KeyError: 'state_dir'",
        ),
        ("proces", None, "provider.type: 'proces' is not a provider; did you mean 'process'?"),
        (
            "cray",
            None,
            "provider.type: 'cray' is not a provider; there are .*external, .*local, process, readonly",
        ),
        ("readonly", None, "provider.type: 'readonly' shows the nodes of a running cluster"),
        *(
            (kind, None, f"provider.type: '{kind}' is not built yet; use type: external")
            for kind in NOT_BUILT
        ),
    ],
)
def test_a_mistake_is_told_with_its_key_and_what_to_do(tmp_path, kind, module, complaint):
    config = mistaken(tmp_path, kind, module)
    with pytest.raises(ConfigError, match=complaint):
        build_provider(config, dict, surroundings(tmp_path))


def test_a_module_that_breaks_when_imported_is_told_with_what_it_raised(tmp_path, monkeypatch):
    (tmp_path / "h4_broken_module.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "h4_needs_module.py").write_text("import h4_nobody_has_this")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"h4_broken_module.*RuntimeError"):
        build(tmp_path, "type: external, module: h4_broken_module.Mine")
    with pytest.raises(ConfigError, match=r"h4_needs_module.*h4_nobody_has_this"):
        build(tmp_path, "type: external, module: h4_needs_module.Mine")


def test_readonly_lists_the_living_nodes_of_the_runtime_and_refuses_the_rest(tmp_path):
    report = RuntimeReport(
        version=1,
        nodes=(
            node_report("n-1", is_head=True, cloud_id=None, node_type=""),
            node_report("n-2", cloud_id="c-2", node_type="cpu", ip="10.0.0.2"),
            node_report("n-3", status=NodeStatus.DEAD),
        ),
    )
    port = build(tmp_path, "type: readonly", runtime=lambda: report)
    shown = [(m.cloud_id, m.node_type, m.kind, m.internal_ip) for m in port.list_instances().values()]
    assert shown == [("n-1", "node_n-1", NodeKind.HEAD, ""), ("c-2", "cpu", NodeKind.WORKER, "10.0.0.2")]
    assert port.traits().read_only
    for call in (
        lambda: port.launch("r-1", {"cpu": 1}),
        lambda: port.terminate("t-1", ["c-2"]),
    ):
        with pytest.raises(ProviderError):
            call()
        with pytest.raises(NotImplementedError):
            call()
    assert (port.poll_launch_failures(), port.poll_terminate_failures()) == ((), ())
    port.close()


def test_process_is_built_from_its_surroundings(tmp_path):
    port = build(tmp_path, "type: process")
    try:
        assert type(port).__name__ == "ProcessProvider"
        assert port.list_instances() == {}
    finally:
        port.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit('no licence')", "importing broken_cloud failed: SystemExit: no licence"),
        ("import asyncio\nraise asyncio.CancelledError", "importing broken_cloud failed: CancelledError"),
        ("def __getattr__(name):\n    raise SystemExit(name)", "cannot be read: SystemExit: "),
        (
            "class Cloud:\n    def __init__(self, *_):\n        raise SystemExit('no key')\n"
            "    create_node = external_ip = internal_ip = is_running = node_tags = __init__\n"
            "    non_terminated_nodes = terminate_node = __init__",
            r"Cloud\(provider_config, cluster_name\) failed: SystemExit: no key",
        ),
    ],
)
def test_a_class_that_ends_the_program_is_a_mistake_in_the_file(tmp_path, monkeypatch, source, message):
    (tmp_path / "broken_cloud.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_cloud", raising=False)
    with pytest.raises(ConfigError, match=message):
        build(tmp_path, "type: external, module: broken_cloud.Cloud")
    sys.modules.pop("broken_cloud", None)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_kind_imports_later_exists(name):
    kind = kind_named(name)
    assert kind.name == name
    for field in fields(kind):
        given = (
            inspect.getclosurevars(value).nonlocals if callable(value := getattr(kind, field.name)) else {}
        )
        if {"module", "name"} <= set(given):
            module = importlib.import_module(given["module"], "muster.providers")
            assert callable(getattr(module, given["name"]))
