from __future__ import annotations

import pytest
from tests.config.conftest import GOOD
from tests.mistakes.views import assert_line

from muster.config.document import Document
from muster.config.load import check_written
from muster.errors import ConfigError
from muster.providers.kind import load_config, parse_config


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(Document(text, "c.yaml"))
    return str(caught.value)


def test_a_good_file_loads_and_keeps_the_order_of_its_types(write):
    config = load_config(write(GOOD))
    assert list(config.available_node_types) == ["head", "cpu"]
    assert config.available_node_types["cpu"].resources == {"CPU": 8.0, "memory": 3.2e10}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "max_workers: 10",
            "max_worker: 10",
            "c.yaml:2: max_worker: unknown key; did you mean 'max_workers'?",
        ),
        (
            "min_workers: 1",
            "min_worker: 1",
            "c.yaml:13: available_node_types.cpu.min_worker: unknown key; did you mean 'min_workers'?",
        ),
        ("max_workers: 10", "max_workers: ten", "c.yaml:2: max_workers: must be a whole number, not 'ten'"),
        ("max_workers: 10", "max_workers: 2.5", "c.yaml:2: max_workers: must be a whole number, not 2.5"),
        ("max_workers: 10", "max_workers: true", "c.yaml:2: max_workers: must be a whole number, not True"),
        (
            "max_workers: 10",
            "max_workers: -1",
            "c.yaml:2: max_workers: -1 must be at least 0 and at most 1e+06",
        ),
        (
            "max_workers: 10",
            "max_workers: 99999999",
            "c.yaml:2: max_workers: 99999999 must be at least 0 and at most 1e+06",
        ),
        (
            "CPU: 8,",
            "CPU: .nan,",
            "c.yaml:12: available_node_types.cpu.resources.CPU: nan must be at least 0 and at most 9e+14",
        ),
        (
            "CPU: 8,",
            "CPU: -8,",
            "c.yaml:12: available_node_types.cpu.resources.CPU: -8 must be at least 0 and at most 9e+14",
        ),
        (
            "CPU: 8,",
            "CPU: 1e20,",
            "c.yaml:12: available_node_types.cpu.resources.CPU: must be a number, not '1e20'; "
            "YAML reads this as text, write 1e+20",
        ),
        (
            "price_per_hour: 0.4",
            "price_per_hour: .inf",
            "c.yaml:15: available_node_types.cpu.price_per_hour: inf must be at least 0 and at most 1e+06",
        ),
        (
            "price_per_hour: 0.4",
            "market: spt",
            "c.yaml:15: available_node_types.cpu.market: 'spt' is not one of on-demand, spot, reserved; "
            "did you mean 'spot'?",
        ),
        (
            "resources: {CPU: 8, memory: 3.2e+10}",
            "labels: {}",
            "c.yaml:11: available_node_types.cpu: 'resources' is missing; add it",
        ),
        (
            "resources: {CPU: 8, memory: 3.2e+10}",
            "node_config: {InstanceType: x9.big}",
            "c.yaml:11: available_node_types.cpu: 'resources' is missing, and the size of x9.big is not",
        ),
        ("  type: aws\n", "", "c.yaml:3: provider: 'type' is missing; add it"),
        *(
            (
                "  cpu:",
                f"  {name}:",
                f"c.yaml:11: available_node_types.{shown}: cannot be the name of a node type; ",
            )
            for name, shown in {r'"a\0"': r"'a\x00'", "''": "''", "x" * 129: f"{'x' * 77}..."}.items()
        ),
        *(
            (
                "cluster_name: demo",
                f"cluster_name: {name}",
                f"c.yaml:1: cluster_name: {shown} cannot be the name of",
            )
            for name, shown in {
                "../../victim": "'../../victim'",
                "team/vision": "'team/vision'",
                "..": "'..'",
                ".hidden": "'.hidden'",
                "-y": "'-y'",
                "''": "''",
                "/etc": "'/etc'",
                r'"a\0b"': r"'a\x00b'",
                r'"a\nb"': r"'a\nb'",
                "größe": "'größe'",
                "a" * 64: f"'{'a' * 56}...",
            }.items()
        ),
        (
            "  type: aws",
            "  type: asw",
            "c.yaml:4: provider.type: 'asw' is not a provider; did you mean 'aws'? "
            "(your own class: type external, and its name as module)",
        ),
        (
            "  type: aws",
            "  type: external",
            "c.yaml:3: provider: 'module' is missing; name the class as package.module.Class",
        ),
        (
            "  type: aws",
            "  type: external\n  module: Mine",
            "c.yaml:5: provider.module: 'Mine' is not the path of a class; write it as package.module.Class",
        ),
        (
            "    price_per_hour: 0.4",
            "    setup_commands: []",
            "c.yaml:15: available_node_types.cpu.setup_commands: unknown key; did you mean "
            "'worker_setup_commands'?",
        ),
        (
            "max_workers: 10",
            "max_workers: 10\nhead_node: {resources: {CPU: x}}",
            "c.yaml:3: head_node.resources.CPU: must be a number, not 'x'",
        ),
        (
            "max_workers: 10",
            "setup_commands: pip install it",
            "c.yaml:2: setup_commands: must be a list, not 'pip install it'; write each item after '- '",
        ),
        (
            "max_workers: 10",
            "docker: {container_name: c}",
            "c.yaml:2: docker: has a container_name but no image; add image (or head_image and worker_image)",
        ),
        (
            "max_workers: 10",
            "docker: {container_name: c, head_image: i}",
            "c.yaml:2: docker: has a container_name but no image; add image (or head_image and worker_image)",
        ),
        (
            "max_workers: 10",
            "docker: {worker_image: i}",
            "c.yaml:2: docker: has an image but no container_name; add one, such as ray_container",
        ),
        (
            "max_workers: 10",
            "auth: {ssh_proxy_use_node_id: true}",
            "c.yaml:2: auth.ssh_proxy_use_node_id: needs ssh_proxy_command; add it",
        ),
        (
            "max_workers: 10",
            "auth: {ssh_usr: me}",
            "c.yaml:2: auth.ssh_usr: unknown key; did you mean 'ssh_user'?",
        ),
        (
            "head_node_type: head",
            "head_node_type: haed",
            "c.yaml:6: head_node_type: 'haed' is not in available_node_types; did you mean 'head'?",
        ),
        (
            "head_node_type: head\n",
            "",
            "c.yaml:1: 'head_node_type' is missing; name the head's entry of available_node_types",
        ),
        (
            "min_workers: 1",
            "min_workers: 7",
            "c.yaml:13: available_node_types.cpu.min_workers: 7 is more than this type's max_workers, 6; "
            "raise max_workers",
        ),
        (
            "max_workers: 10",
            "max_workers: 0",
            "c.yaml:2: max_workers: 0 is less than the sum of all min_workers, 1; raise it to 1",
        ),
        (
            "resources: {CPU: 2}",
            "resources: [CPU]",
            "c.yaml:9: available_node_types.head.resources: must be a mapping",
        ),
        (
            "cluster_name: demo",
            "cluster_name: 12",
            "c.yaml:1: cluster_name: must be text, not 12; put it in quotes",
        ),
        (
            "max_workers: 10",
            f"max_workers: 0x{'f' * 5000}",
            "c.yaml:2: max_workers: must be a whole number, not '0xfff",
        ),
        (
            "resources: {CPU: 2}",
            "resources: {1: 2}",
            "c.yaml:9: available_node_types.head.resources.1: the key 1 must be text; put it in quotes",
        ),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_fix(old, new, message):
    assert old in GOOD
    assert refusal(GOOD.replace(old, new, 1)).startswith(message)


@pytest.mark.parametrize("value", [".inf", ".nan", "null", "-1", "fast"])
def test_an_upscaling_speed_that_would_stop_the_loop_is_refused(value):
    assert refusal(GOOD + f"upscaling_speed: {value}\n").startswith("c.yaml:16: upscaling_speed: ")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "objective: cheap",
            "c.yaml:17: muster.objective: 'cheap' is not one of auto, utilization, cost; valid here",
        ),
        ("budget: {}", "c.yaml:17: muster.budget: limits nothing; give per_hour, total or both"),
        (
            "budget: {per_hour: 4, period: day}",
            "c.yaml:17: muster.budget.period: has no total to spend in it; add total",
        ),
        (
            "budget: {total: 40}",
            "c.yaml:17: muster.budget: cannot be held without the price of head; give price_per_hour there",
        ),
        (
            "budget: {total: 40, period: dai}",
            "c.yaml:17: muster.budget.period: 'dai' is not one of day, hour, month, week; did you mean",
        ),
        ("budget: {total: 40, period: 3}", "c.yaml:17: muster.budget.period: 3 is not one of day, hour,"),
        ("budget: {total: -1}", "c.yaml:17: muster.budget.total: -1 must be at least 0 and at most 1e+09"),
        ("budget: {per_hour: .nan}", "c.yaml:17: muster.budget.per_hour: nan must be at least 0 and at most"),
        ("notices: {source: amazon}", "c.yaml:17: muster.notices.source: 'amazon' is not one of aws, azure,"),
        (
            "timeouts: {request: 5}",
            "c.yaml:17: muster.timeouts.request: unknown key; did you mean 'request_s'?",
        ),
        (
            "timeouts: {allocate_s: 0}",
            "c.yaml:17: muster.timeouts.allocate_s: must be above 0; raise it or remove the key",
        ),
        (
            "timeouts: {allocate_s: .nan}",
            "c.yaml:17: muster.timeouts.allocate_s: nan must be at least 0 and at most",
        ),
        (
            "backoff: {decay_s: 0}",
            "c.yaml:17: muster.backoff.decay_s: must be above 0; raise it or remove the key",
        ),
        (
            "backoff: {base_s: 50, max_s: 5}",
            "c.yaml:17: muster.backoff.max_s: 5 is less than base_s, 50; raise it",
        ),
        ("limits: {upscaling_speed: 1}", "c.yaml:17: muster.limits.upscaling_speed: unknown key; valid here"),
        (
            "monitor: {interval_s: 9, max_interval_s: 2}",
            "c.yaml:17: muster.monitor.max_interval_s: 2 is less than interval_s, 9; raise it",
        ),
        (
            "monitor: {interval_s: 0}",
            "c.yaml:17: muster.monitor.interval_s: 0 must be at least 0.05 and at most",
        ),
        (
            "monitor: {metrics_port: 70000}",
            "c.yaml:17: muster.monitor.metrics_port: 70000 must be at least 0 and at most",
        ),
        (
            "retention: {max_records: -1}",
            "c.yaml:17: muster.retention.max_records: -1 must be at least 0 and at most",
        ),
    ],
)
def test_a_mistake_in_our_own_section_is_named_too(section, message):
    assert refusal(GOOD + f"muster:\n  {section}\n").startswith(message)


def test_the_error_of_an_empty_file_names_what_it_needs():
    assert_line("config", "empty file", refusal("# nothing\n"))


def test_keys_that_have_a_few_words_as_values_take_them():
    text = "muster: {budget: {total: 40, period: day}, notices: {source: gcp}, consolidation: eager}\n"
    priced = GOOD.replace("  head:\n", "  head:\n    price_per_hour: 0\n")
    muster = parse_config(Document(priced + text, "c.yaml")).muster
    assert muster.budget is not None
    assert (muster.budget.period, muster.notices.source, muster.consolidation.value) == (
        "day",
        "gcp",
        "eager",
    )


@pytest.mark.parametrize("provider", ["process", "kuberay", "fake_multinode"])
def test_a_provider_without_default_machines_needs_them_described(provider):
    assert_line("config", "without node types", refusal(f"provider: {{type: {provider}}}\n"))


def test_a_minimum_above_the_maximum_in_the_old_form_is_named_where_it_stands():
    old = "provider: {type: aws}\nmax_workers: 1\nmin_workers: 3\nworker_nodes: {InstanceType: m5.large}\n"
    assert_line("config", "minimum above the maximum", refusal(old))


def test_continuous_syncing_is_refused_on_windows_only():
    document = Document(GOOD + "file_mounts_sync_continuously: true\n", "c.yaml")
    config = parse_config(document)
    check_written(document, config, "linux")
    with pytest.raises(ConfigError, match="file_mounts_sync_continuously"):
        check_written(document, config, "win32")


@pytest.mark.parametrize("name", ["a", "Team_1.vision-2", "9", "_x", "a" * 63, "a..b"])
def test_a_name_that_is_a_directory_everywhere_is_taken(name):
    assert parse_config(Document(GOOD.replace("demo", f"'{name}'"), "c.yaml")).cluster_name == name
