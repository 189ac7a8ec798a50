"""Check the keys of `ray up`'s file: each is accepted, typed and defaulted; no other is."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from muster.config.document import Document
from muster.config.schema import (
    AuthConfig,
    ClusterConfig,
    DockerConfig,
    NodeTypeConfig,
    NodeTypeDocker,
    ProviderConfig,
)
from muster.errors import ConfigError
from muster.providers.kind import parse_config

LIST_OF_TEXT = (["a", "b"], ("a", "b"), ())
# key: (a value of the file, the value as the program has it, the default)
TOP_LEVEL = {
    "cluster_name": ("mine", "mine", "default"),
    "max_workers": (7, 7, 2),
    "upscaling_speed": (3, 3.0, 1.0),
    "idle_timeout_minutes": (0.5, 0.5, 5.0),
    "auth": ({"ssh_user": "me"}, AuthConfig(ssh_user="me", written={"ssh_user": "me"}), None),
    "docker": (
        {"image": "i", "container_name": "c"},
        DockerConfig(image="i", container_name="c"),
        DockerConfig(),
    ),
    "head_node_type": ("a", "a", "a"),
    "available_node_types": ({"a": {"resources": {}}}, {"a": NodeTypeConfig(resources={})}, None),
    "file_mounts": ({"/r": "/l"}, {"/r": "/l"}, {}),
    "cluster_synced_files": LIST_OF_TEXT,
    "file_mounts_sync_continuously": (True, True, False),
    "rsync_exclude": LIST_OF_TEXT,
    "rsync_filter": LIST_OF_TEXT,
    "initialization_commands": LIST_OF_TEXT,
    "setup_commands": LIST_OF_TEXT,
    "head_setup_commands": LIST_OF_TEXT,
    "worker_setup_commands": LIST_OF_TEXT,
    "head_start_ray_commands": LIST_OF_TEXT,
    "worker_start_ray_commands": LIST_OF_TEXT,
    "metadata": ({"any": ["thing"]}, {"any": ["thing"]}, {}),
    "no_restart": (True, True, False),
    "min_workers": (1, None, None),  # the old form: gone once prepared
}
AUTH = {
    "ssh_user": ("me", "me", "ubuntu"),
    "ssh_private_key": ("~/.ssh/k", "~/.ssh/k", None),
    "ssh_public_key": ("~/.ssh/k.pub", "~/.ssh/k.pub", None),
    "ssh_proxy_command": ("ssh jump", "ssh jump", None),
    "ssh_proxy_use_node_id": (False, False, False),
    "strict_host_keys": (False, False, True),
}
DOCKER = {
    "image": ("i", "i", ""),
    "container_name": ("c", "c", ""),
    "pull_before_run": (False, False, True),
    "run_options": LIST_OF_TEXT,
    "head_image": ("h", "h", ""),
    "head_run_options": LIST_OF_TEXT,
    "worker_image": ("w", "w", ""),
    "worker_run_options": LIST_OF_TEXT,
    "disable_automatic_runtime_detection": (True, True, False),
    "disable_shm_size_detection": (True, True, False),
    "use_podman": (True, True, False),
}
NODE_TYPE = {
    "resources": ({"CPU": 2, "memory": 10**9}, {"CPU": 2.0, "memory": 1e9}, None),
    "node_config": ({"a": [1]}, {"a": [1]}, None),
    "min_workers": (1, 1, 0),
    "max_workers": (4, 4, None),
    "idle_timeout_s": (20, 20.0, None),
    "priority": (-5, -5, 0),
    "labels": ({"zone": "a"}, {"zone": "a"}, {}),
    "initialization_commands": (["a"], ("a",), None),
    "worker_setup_commands": ([], (), None),
    "docker": ({"worker_image": "w"}, NodeTypeDocker(worker_image="w"), NodeTypeDocker()),
}
NODE_TYPE_DOCKER = {
    "pull_before_run": (False, False, None),
    "worker_image": ("w", "w", None),
    "worker_run_options": (["-v"], ("-v",), None),
}
PROVIDER = {
    "type": ("process", "process", "process"),
    "module": ("a.B", "a.B", None),
    "disable_node_updaters": (False, False, True),  # the default of provider process
    "disable_launch_config_check": (False, False, True),
    "foreground_node_launch": (True, True, False),
    "worker_liveness_check": (False, False, True),
    "use_internal_ips": (True, True, False),
    "use_external_head_ip": (True, True, False),
    "cache_stopped_nodes": (False, False, True),
    "namespace": ("n", "n", None),
    "region": ("r", "r", None),
    "availability_zone": ("z", "z", None),
    "project_id": ("p", "p", None),
    "security_group": ({"GroupName": "g"}, {"GroupName": "g"}, None),
    "head_ip": ("10.0.0.1", "10.0.0.1", None),
    "worker_ips": (["10.0.0.2"], ("10.0.0.2",), ()),
    "coordinator_address": ("h:1", "h:1", None),
}
OURS = {"muster", "price_per_hour", "market", "offers", "speed"}
OLD = {"head_node", "worker_nodes"}
KEPT = {"written"}  # a field of the program, no key


def parsed(data: dict) -> ClusterConfig:
    whole = {"provider": {"type": "process"}, "available_node_types": {"a": {"resources": {}}}, **data}
    return parse_config(Document(yaml.safe_dump(whole), "c.yaml"))


def in_node_type(entry: dict) -> NodeTypeConfig:
    types = {"head": {"resources": {}}, "a": {"resources": {}, **entry}}
    config = parsed({"available_node_types": types, "head_node_type": "head", "max_workers": 9})
    return config.available_node_types["a"]


def fields(cls: type) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(cls)}


@pytest.mark.parametrize("key", TOP_LEVEL)
@pytest.mark.conformance("CF-1")
def test_cf_1_a_top_level_key_is_read_and_has_its_default(key):
    value, typed, default = TOP_LEVEL[key]
    with_head = {"head_node_type": "a"} if key == "available_node_types" else {}
    assert getattr(parsed({key: value, **with_head}), key) == typed
    if default is not None and key != "head_node_type":
        assert getattr(parsed({}), key) == default


@pytest.mark.parametrize("key", AUTH)
@pytest.mark.conformance("CF-1")
def test_cf_1_a_key_of_auth_is_read_and_has_its_default(key):
    value, typed, default = AUTH[key]
    assert getattr(parsed({"auth": {key: value}}).auth, key) == typed
    assert getattr(parsed({}).auth, key) == default


@pytest.mark.parametrize("key", DOCKER)
@pytest.mark.conformance("CF-1")
def test_cf_1_a_key_of_docker_is_read_and_has_its_default(key):
    value, typed, default = DOCKER[key]
    whole = {"image": "x", "container_name": "y", key: value}
    assert getattr(parsed({"docker": whole}).docker, key) == typed
    assert getattr(parsed({}).docker, key) == default


@pytest.mark.parametrize("key", NODE_TYPE)
@pytest.mark.conformance("CF-2")
def test_cf_2_a_key_of_a_node_type_is_read_and_has_its_default(key):
    value, typed, default = NODE_TYPE[key]
    assert getattr(in_node_type({key: value}), key) == typed
    if key != "resources":
        assert getattr(in_node_type({}), key) == default


@pytest.mark.parametrize("key", NODE_TYPE_DOCKER)
@pytest.mark.conformance("CF-2")
def test_cf_2_a_key_of_a_node_types_docker_is_read_and_has_its_default(key):
    value, typed, default = NODE_TYPE_DOCKER[key]
    assert getattr(in_node_type({"docker": {key: value}}).docker, key) == typed
    assert getattr(in_node_type({}).docker, key) == default


@pytest.mark.parametrize("key", PROVIDER)
def test_a_key_of_provider_is_read_and_has_its_default(key):
    value, typed, default = PROVIDER[key]
    assert getattr(parsed({"provider": {"type": "process", key: value}}).provider, key) == typed
    assert getattr(parsed({}).provider, key) == default


def test_every_other_key_of_provider_is_kept_as_it_was_written():
    given = {"type": "process", "my_key": {"deep": [1, None]}, "disable_launch_config_check": True}
    assert parsed({"provider": given}).provider.settings() == {**given, "disable_node_updaters": True}


def test_a_provider_made_by_code_has_settings_too():
    assert ProviderConfig(type="external", module="a.B").settings() == {"type": "external", "module": "a.B"}


def test_the_schema_has_these_keys_ours_and_the_old_ones_and_no_other():
    assert fields(ClusterConfig) - ClusterConfig.not_keys == {*TOP_LEVEL, *OLD, "provider", "muster"}
    assert fields(NodeTypeConfig) == {*NODE_TYPE, "price_per_hour", "market", "offers", "speed"}
    assert fields(NodeTypeDocker) == set(NODE_TYPE_DOCKER)
    assert fields(DockerConfig) == set(DOCKER)
    assert fields(AuthConfig) - KEPT == {*AUTH, "strict_host_keys"}
    assert fields(ProviderConfig) - KEPT == {*PROVIDER, "hosts", "lock_dir"}


def test_none_of_our_names_is_one_of_rays():
    assert not OURS & {*TOP_LEVEL, *OLD, *NODE_TYPE, "provider"}


def test_the_rules_of_a_kind_are_not_a_key():
    with pytest.raises(ConfigError) as caught:
        parsed({"rules": {}})
    assert caught.value.path == "rules"


@pytest.mark.parametrize("section", ["auth", "docker", "metadata", "provider"])
def test_the_field_that_keeps_what_was_written_is_not_a_key(section):
    data = {"type": "process"} if section == "provider" else {}
    if section in ("auth", "docker"):
        with pytest.raises(ConfigError, match=f"{section}"):
            parsed({section: {**data, "written": {}}})
    else:
        parsed({section: {**data, "written": {}}})
