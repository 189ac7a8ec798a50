"""Which steps a machine needs, by its tags; and what a worker and the head get from the cluster file."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from muster.config.document import Document
from muster.config.node_launch import RuntimeHashes
from muster.providers.kind import parse_config
from muster.remote.runner import RunWhere
from muster.remote.steps import (
    CopyFiles,
    NodeSetup,
    PrepareContainer,
    RunCommand,
    StepKind,
    UpdateStep,
    WaitReady,
    final_tags,
    log_name,
    must_look_first,
    update_steps,
    worker_setup,
)

SETUP = NodeSetup(
    file_mounts={"~/code": "/src/code"},
    synced_files=("~/.netrc",),
    rsync_exclude=("*.pyc",),
    initialization_commands=("init",),
    setup_commands=("setup",),
    start_commands=("stop", "start"),
    setup_environment={"RAY_HEAD_IP": "10.0.0.1"},
    start_environment={"RAY_HEAD_IP": "10.0.0.1", "RAY_NODE_TYPE_NAME": "w"},
    hashes=RuntimeHashes("r1", "c1"),
)
HEAD = {"RAY_HEAD_IP": "10.0.0.1"}
ALL = ["wait", "sync", "initialize", "setup", "start"]


def kinds(*arguments, **options) -> list[str]:
    return [step.kind.value for step in update_steps(*arguments, **options)]


def test_a_new_machine_gets_everything():
    start = {"environment": SETUP.start_environment}
    assert update_steps(SETUP, {}) == (
        UpdateStep(StepKind.WAIT, (WaitReady(),)),
        UpdateStep(
            StepKind.SYNC,
            (
                CopyFiles(source="/src/code", target="~/code", exclude=("*.pyc",)),
                CopyFiles(source="~/.netrc", target="~/.netrc", may_be_missing=True, exclude=("*.pyc",)),
            ),
        ),
        UpdateStep(
            StepKind.INITIALIZE,
            (
                RunCommand(command="init", where=RunWhere.HOST, environment=HEAD),
                PrepareContainer(as_head=False, file_mounts={"~/code": "/src/code"}, is_synced=True),
            ),
        ),
        UpdateStep(StepKind.SET_UP, (RunCommand(command="setup", environment=HEAD),)),
        UpdateStep(
            StepKind.START, (RunCommand(command="stop", **start), RunCommand(command="start", **start))
        ),
    )


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({}, ALL),
        (final_tags(RuntimeHashes("r1", "c1")), ["wait", "start"]),
        (final_tags(RuntimeHashes("r1", "other")), ["wait", "sync", "start"]),
        (final_tags(RuntimeHashes("r1", None)), ["wait", "sync", "start"]),
        (final_tags(RuntimeHashes("other", "c1")), ALL),
        ({"ray-node-status": "update-failed"}, ALL),
    ],
)
def test_what_a_machine_has_by_its_hashes_is_left_out(tags, expected):
    assert kinds(SETUP, tags) == expected


def test_a_new_container_on_a_known_machine_is_set_up_again():
    assert kinds(SETUP, final_tags(SETUP.hashes), is_new_container=True) == ALL


@pytest.mark.parametrize(
    ("changes", "tags", "expected"),
    [
        ({"has_container": True}, final_tags(SETUP.hashes), True),
        ({"has_container": True}, {}, False),
        ({"has_container": False}, final_tags(SETUP.hashes), False),
    ],
)
def test_the_container_of_a_known_machine_is_looked_at_first(changes, tags, expected):
    assert must_look_first(replace(SETUP, **changes), tags) is expected


def test_machines_without_hashes_are_always_set_up():
    assert kinds(replace(SETUP, hashes=RuntimeHashes("", None)), {"ray-runtime-config": ""}) == ALL


CLUSTER = """
cluster_name: c
provider: {type: aws, region: eu}
auth: {ssh_user: ubuntu}
max_workers: 4
head_node_type: head
available_node_types:
  head: {resources: {CPU: 2}, node_config: {InstanceType: m5.large}}
  big:
    resources: {CPU: 8, memory: 1000000000, tool: 1}
    labels: {zone: a}
    node_config: {InstanceType: m5.2xlarge}
    initialization_commands: [first]
setup_commands: [shared]
worker_setup_commands: [worker]
head_setup_commands: [head]
worker_start_ray_commands: [ray start]
head_start_ray_commands: [ray start --head]
initialization_commands: [all]
"""


@pytest.fixture
def config():
    return parse_config(Document(CLUSTER, "c.yaml"))


def test_a_worker_gets_the_variables_that_ray_and_its_autoscaler_read(config):
    setup = worker_setup(config, node_type="big", cloud_id="i-7", head_ip="10.0.0.1", secrets={"T": "x"})
    start = dict(setup.start_environment)
    assert json.loads(start.pop("RAY_OVERRIDE_RESOURCES")) == {"CPU": 8, "memory": 1000000000, "tool": 1}
    assert json.loads(start.pop("RAY_OVERRIDE_LABELS")) == {"zone": "a"}
    assert start == {
        "RAY_HEAD_IP": "10.0.0.1",
        "RAY_CLOUD_INSTANCE_ID": "i-7",
        "RAY_NODE_TYPE_NAME": "big",
        "RAY_CLOUD_INSTANCE_TYPE_NAME": "m5.2xlarge",
    }
    assert setup.setup_environment == HEAD
    assert (setup.initialization_commands, setup.setup_commands) == (("first",), ("shared", "worker"))


def test_a_worker_gets_the_variables_that_ray_makes_the_labels_of_its_offer_from(config):
    setup = worker_setup(config, node_type="big", cloud_id="i-7", head_ip="h", place={"RAY_NODE_ZONE": "z"})
    assert setup.start_environment["RAY_NODE_ZONE"] == "z"


def test_only_start_commands_get_secrets(config):
    setup = worker_setup(config, node_type="big", cloud_id="i-7", head_ip="h", secrets={"T": "x"})
    takes = {
        work.command: work.takes_secrets
        for step in update_steps(setup, {})
        for work in step.work
        if isinstance(work, RunCommand)
    }
    assert takes == {"first": False, "shared": False, "worker": False, "ray start": True}


def test_logs_stay_in_their_directory_whatever_a_node_is_called():
    assert log_name("i-1", StepKind.SET_UP) == "i-1/setup.log"
    assert log_name("../../etc/x", StepKind.WAIT) == "_.._etc_x/wait.log"
    assert log_name("", StepKind.WAIT) == "_/wait.log"
