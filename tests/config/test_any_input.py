"""Check any input: a good value or a ConfigError of one line that names the file, nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.config.conftest import GOOD

from muster.cluster.model import ClusterSpec
from muster.config.document import Document
from muster.config.environment import VARIABLES
from muster.config.node_launch import head_runtime_hashes, worker_runtime_hashes
from muster.config.schema import (
    AuthConfig,
    BudgetConfig,
    ClusterConfig,
    DockerConfig,
    ForecastsConfig,
    MonitorConfig,
    MusterConfig,
    NodeTypeConfig,
    NoticesConfig,
    ProviderConfig,
)
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kind import parse_config

pytestmark = pytest.mark.slow

SECTIONS = (
    ClusterConfig,
    NodeTypeConfig,
    AuthConfig,
    DockerConfig,
    ProviderConfig,
    MonitorConfig,
    MusterConfig,
    BudgetConfig,
    NoticesConfig,
    ForecastsConfig,
)
FULL = (
    GOOD.replace("  head:\n", "  head:\n    price_per_hour: 0.1\n")
    + """\
upscaling_speed: 2
auth: {ssh_user: me, ssh_private_key: /nowhere/key, ssh_proxy_command: jump}
docker: {image: i, container_name: c, run_options: [-v], worker_image: w}
file_mounts: {/remote: /nowhere}
cluster_synced_files: [/nowhere]
rsync_exclude: [x]
initialization_commands: [a]
setup_commands: [b]
worker_setup_commands: [c]
worker_start_ray_commands: [d]
metadata: {any: [thing]}
no_restart: false
min_workers: 0
head_node: {InstanceType: m5.large, resources: {CPU: 2}}
worker_nodes: {}
muster:
  objective: cost
  timeouts: {request_s: 60, pending_idle_s: 5}
  limits: {max_concurrent: 4, max_launch_batch: 2}
  backoff: {base_s: 1}
  retention: {max_age_s: 60, max_records: 5}
  monitor: {interval_s: 1, max_interval_s: 2, metrics_port: 0}
  notices: {source: aws, address: "http://here/{id}", rebalance_s: null}
  budget: {per_hour: 6, period: day, total: 40}
  consolidation: eager
  forecasts: {used: true, boot_s: 60, keep_s: 5, most_boot_share: 0.2, first_slots: 4}
"""
)
OLD = """\
provider: {type: aws}
min_workers: 1
head_node: {InstanceType: m5.large, resources: {CPU: 2}}
worker_nodes: {InstanceType: m5.large, resources: {CPU: 2}}
"""
LOCAL = """\
provider: {type: local, head_ip: a, worker_ips: [b, c], coordinator_address: null}
max_workers: 2
min_workers: 1
"""
FILES = {"full": FULL, "old": OLD, "local": LOCAL}
KEYS = st.sampled_from(
    sorted(
        {
            *(field.encode_name for cls in SECTIONS for field in structs.fields(cls)),
            *("CPU", "head", "cpu", "local", "external", "readonly", "kuberay"),
        }
    )
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.dates(),
    st.binary(max_size=3),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS | SCALARS, inner, max_size=3),
    max_leaves=6,
)


def outcome(text: str) -> str:
    try:
        config = parse_config(Document(text, "c.yaml"))
        spec = to_spec(config)
    except ConfigError as problem:
        told = str(problem)
        assert told.startswith("c.yaml")
        assert "\n" not in told
        return "refused"
    assert isinstance(spec, ClusterSpec)
    for name in config.available_node_types:
        worker_runtime_hashes(config, name, with_contents=False)
    head_runtime_hashes(config, with_contents=False)
    return "taken"


def replaced_somewhere(data: st.DataObject, place: Any) -> None:
    """One value of the tree becomes anything."""
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(VALUES)
            return
        place = place[key]


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_a_good_file_with_one_value_replaced_by_anything(name, data):
    config = yaml.safe_load(FILES[name])
    replaced_somewhere(data, config)
    outcome(yaml.safe_dump(config))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_a_good_file_with_keys_left_out_and_added(name, data):
    config = yaml.safe_load(FILES[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=4, unique=True)):
        del config[key]
    config.update(data.draw(st.dictionaries(KEYS, VALUES, max_size=2)))
    outcome(yaml.safe_dump(config))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_a_good_file_with_any_text_typed_into_it(name, data):
    text = FILES[name]
    position, deleted = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 10))
    outcome(text[:position] + data.draw(st.text(max_size=4)) + text[position + deleted :])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from([v.name for v in VARIABLES]), st.text(max_size=6), max_size=3))
def test_any_environment_gives_a_value_or_an_error_that_names_the_variable(environment):
    try:
        parse_config(Document(GOOD, "c.yaml"), environment)
    except ConfigError as problem:
        assert any(str(problem).startswith(f"environment: {name}: ") for name in environment)
        assert "\n" not in str(problem)


@pytest.mark.parametrize("name", FILES)
def test_the_untouched_file_is_taken(name):
    assert outcome(FILES[name]) == "taken"
