from __future__ import annotations

import copy

import pytest
from tests.mistakes.views import assert_line

from muster.config.document import Document
from muster.config.load import LEGACY_HEAD, LEGACY_WORKER
from muster.config.schema import AuthConfig, ClusterConfig, NodeTypeConfig
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kind import parse_config, rules_named
from muster.providers.rack.host_list import LOCAL_TYPE


def parsed(text: str) -> ClusterConfig:
    return parse_config(Document(text, "c.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("provider", "machine", "names"),
    [
        ("aws", "m5.large", ["ray.head.default", "ray.worker.default"]),
        ("gcp", "n1-standard-2", ["ray_head_default", "ray_worker_small"]),
        ("azure", "Standard_D2s_v3", ["ray.head.default", "ray.worker.default"]),
        ("aliyun", "ecs.g6.large", ["ray.head.default", "ray.worker.default"]),
    ],
)
@pytest.mark.conformance("CF-2")
def test_cf_2_a_file_that_names_only_a_cloud_gets_two_small_types(provider, machine, names):
    spec = to_spec(parsed(f"provider: {{type: {provider}}}\n"))
    assert [(t.name, t.max_nodes, t.machine_type, t.resources.units("CPU") > 0) for t in spec.node_types] == [
        (names[0], 1, machine, True),
        (names[1], 2, machine, True),
    ]
    assert (spec.cluster_name, spec.head_node_type, spec.max_nodes) == ("default", names[0], 3)
    assert (spec.idle_timeout_s, spec.limits.upscaling_speed) == (300.0, 1.0)


def test_an_external_provider_gets_two_types_of_unknown_size():
    config = parsed("provider: {type: external, module: a.B}\n")
    same = NodeTypeConfig(resources={}, node_config={})
    assert config.available_node_types == {"ray.head.default": same, "ray.worker.default": same}
    assert config.auth == AuthConfig()


def test_the_users_top_level_keys_win_as_a_whole():
    config = parsed("provider: {type: aws}\nauth: {ssh_private_key: k}\nmax_workers: 9\n")
    assert config.auth.settings() == {"ssh_private_key": "k"}  # not merged with the default's ssh_user
    assert config.max_workers == 9


def test_preparing_leaves_the_defaults_and_the_document_as_they_were():
    before = copy.deepcopy(rules_named("aws").defaults)
    document = Document("provider: {type: aws}\nsetup_commands: [a]\nhead_node: {x: 1}\n", "c.yaml")
    data = copy.deepcopy(document.data)
    parse_config(document)
    assert (rules_named("aws").defaults, document.data) == (before, data)


@pytest.mark.conformance("CF-2")
def test_cf_2_setup_commands_run_before_those_of_head_and_workers():
    config = parsed(
        "provider: {type: aws}\nsetup_commands: [a]\nhead_setup_commands: [h]\nworker_setup_commands: [w]\n"
    )
    assert (config.setup_commands, config.head_setup_commands) == (("a",), ("a", "h"))
    assert config.worker_setup_commands == ("a", "w")


# ---- the old form


def test_a_file_of_the_old_form_becomes_two_types():
    config = parsed("""\
provider: {type: aws}
min_workers: 1
max_workers: 4
head_node: {InstanceType: m5.xlarge, resources: {CPU: 4}}
worker_nodes: {InstanceType: my.own, resources: {CPU: 8, GPU: 1}}
""")
    assert config.head_node_type == LEGACY_HEAD
    assert config.available_node_types == {
        LEGACY_HEAD: NodeTypeConfig(
            resources={"CPU": 4.0}, node_config={"InstanceType": "m5.xlarge"}, max_workers=0
        ),
        LEGACY_WORKER: NodeTypeConfig(
            resources={"CPU": 8.0, "GPU": 1.0},
            node_config={"InstanceType": "my.own"},
            min_workers=1,
            max_workers=4,
        ),
    }
    assert (config.min_workers, config.head_node.settings(), config.worker_nodes.settings()) == (None, {}, {})


@pytest.mark.parametrize(
    ("side", "machines"),
    [
        ("head_node: {InstanceType: big}", ("big", "m5.large")),
        ("worker_nodes: {InstanceType: big}", ("m5.large", "big")),
        ("head_node: {}\nworker_nodes: {InstanceType: big}", ("m5.large", "big")),
    ],
)
def test_an_empty_side_of_the_old_form_is_the_providers_default(side, machines):
    spec = to_spec(parsed(f"provider: {{type: aws}}\n{side}\n"))
    assert tuple(t.machine_type for t in spec.node_types) == machines
    assert [t.max_nodes for t in spec.node_types] == [1, 2]


def test_an_old_form_with_both_sides_empty_is_no_old_form():
    config = parsed("provider: {type: aws}\nhead_node: {}\nworker_nodes: {}\nmin_workers: 2\n")
    assert list(config.available_node_types) == ["ray.head.default", "ray.worker.default"]


def test_beside_node_types_the_old_keys_mean_nothing():
    config = parsed(
        "provider: {type: aws}\nhead_node: {a: 1}\nmin_workers: 2\n"
        "available_node_types: {a: {resources: {}}}\n"
    )
    assert list(config.available_node_types) == ["a"]
    assert config.available_node_types["a"].min_workers == 0


def test_a_head_type_of_the_old_form_cannot_be_named():
    said = refusal("provider: {type: aws}\nhead_node: {a: 1}\nhead_node_type: mine\n")
    assert_line("config", "head type of the old form", said)


# ---- provider local

LISTED = "provider: {type: local, head_ip: h, worker_ips: [a, b, c]}\n"


@pytest.mark.parametrize(
    ("more", "least", "most"),
    [
        ("", 3, 3),
        ("max_workers: 2\n", 2, 2),
        ("max_workers: 9\nmin_workers: 9\n", 3, 3),
        ("min_workers: 1\n", 1, 3),
        ("min_workers: 0\n", 0, 3),
    ],
)
def test_listed_computers_are_one_type_of_as_many_as_there_are(more, least, most):
    config = parsed(LISTED + more)
    assert config.available_node_types == {
        LOCAL_TYPE: NodeTypeConfig(resources={}, node_config={}, min_workers=least, max_workers=most)
    }
    assert (config.head_type, config.max_workers, config.auth.ssh_user) == (LOCAL_TYPE, most, "ubuntu")


def test_a_coordinator_assigns_as_many_computers_as_the_file_allows():
    text = "provider: {type: local, coordinator_address: 'h:1'}\n"
    assert_line("config", "coordinator without max_workers", refusal(text))
    config = parsed(text + "max_workers: 5\n")
    only = config.available_node_types[LOCAL_TYPE]
    assert (only.min_workers, only.max_workers) == (0, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("provider: {type: local, head_ip: h}\n", "c.yaml:1: provider: 'worker_ips' is missing; "),
        ("provider: {type: local, worker_ips: [a]}\n", "c.yaml:1: provider: 'head_ip' is missing; "),
        (
            LISTED + "available_node_types: {a: {resources: {}}}\n",
            "c.yaml:2: available_node_types: does not go with provider local, ",
        ),
    ],
)
def test_a_local_file_that_does_not_say_which_computers_is_refused(text, message):
    assert refusal(text).startswith(message)


def test_a_local_file_that_was_prepared_before_stays_as_it_is():
    text = (
        LISTED
        + f"max_workers: 3\navailable_node_types: {{{LOCAL_TYPE}: {{resources: {{}}, max_workers: 2}}}}\n"
    )
    assert parsed(text).available_node_types[LOCAL_TYPE].max_workers == 2


# ---- providers that bring the runtime with them


@pytest.mark.parametrize("provider", ["process", "kuberay"])
def test_machines_that_come_with_the_runtime_are_not_installed_unless_configured(provider):
    types = "available_node_types: {a: {resources: {}}}\n"
    assert to_spec(parsed(f"provider: {{type: {provider}}}\n{types}")).install_runtime is False
    said = f"provider: {{type: {provider}, disable_node_updaters: false}}\n{types}"
    assert to_spec(parsed(said)).install_runtime is True


def test_a_read_only_cluster_needs_no_types():
    spec = to_spec(parsed("provider: {type: readonly}\n"))
    assert (spec.node_types, spec.max_nodes, spec.head_node_type) == ((), 1, "")
