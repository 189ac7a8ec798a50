"""Decide what is done on a machine to make it a node, as values; `MachineSetup` does it. Pure.

There are five steps: wait until it answers, copy files, initialise the machine, set it up, start the
runtime. What a machine has already, by the hashes in its tags, is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from msgspec import Struct, field

from muster.config.node_launch import (
    RuntimeHashes,
    container_of,
    initialization_commands,
    worker_runtime_hashes,
    worker_setup_commands,
)
from muster.config.schema import ClusterConfig
from muster.remote.runner import RunWhere

TAG_STATUS = "ray-node-status"
TAG_RUNTIME_HASH = "ray-runtime-config"
TAG_CONTENTS_HASH = "ray-file-mounts-contents"
UP_TO_DATE, UPDATE_FAILED = "up-to-date", "update-failed"
HEAD_START_S = 300.0


class StepKind(Enum):
    """One of the five steps; its value is the name of its log file."""

    WAIT = "wait"
    SYNC = "sync"
    INITIALIZE = "initialize"
    SET_UP = "setup"
    START = "start"


# What the machine is tagged with while a step runs; the other steps leave the tag as it is.
STATUS = {
    StepKind.WAIT: "waiting-for-ssh",
    StepKind.SYNC: "syncing-files",
    StepKind.INITIALIZE: "setting-up",
    StepKind.SET_UP: "setting-up",
}


class WaitReady(Struct, frozen=True):
    """Waits until the machine answers."""


class CopyFiles(Struct, frozen=True, kw_only=True):
    """Copies a file or a directory to the machine."""

    source: str
    target: str
    may_be_missing: bool = False
    exclude: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()


class RunCommand(Struct, frozen=True, kw_only=True):
    """Runs one line of the cluster file."""

    command: str
    where: RunWhere = RunWhere.AUTO
    environment: Mapping[str, str] = field(default_factory=dict)
    takes_secrets: bool = False
    timeout_s: float | None = None  # None: that of every command


class PrepareContainer(Struct, frozen=True, kw_only=True):
    """Starts the container, where there is one."""

    as_head: bool
    file_mounts: Mapping[str, str]
    is_synced: bool


Work: TypeAlias = WaitReady | CopyFiles | RunCommand | PrepareContainer


class UpdateStep(Struct, frozen=True):
    """What is done on a machine under one name; its parts follow one another."""

    kind: StepKind
    work: tuple[Work, ...]


class NodeSetup(Struct, frozen=True, kw_only=True):
    """Everything that makes one machine a node, defaults applied.

    `secrets` go to the start commands on standard input.
    """

    is_head: bool = False
    has_container: bool = False
    file_mounts: Mapping[str, str] = field(default_factory=dict)  # path there: path here
    synced_files: tuple[str, ...] = ()  # the same path there and here; those that are not here are left out
    rsync_exclude: tuple[str, ...] = ()
    rsync_filter: tuple[str, ...] = ()
    initialization_commands: tuple[str, ...] = ()
    setup_commands: tuple[str, ...] = ()
    start_commands: tuple[str, ...] = ()
    setup_environment: Mapping[str, str] = field(default_factory=dict)
    start_environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    notices: str = ""  # the line that starts the watcher of the cloud's notices, beside Ray
    lease: str = ""  # the line that starts the node's lease, on the machine itself
    hashes: RuntimeHashes = RuntimeHashes("", None)
    start_s: float | None = None  # the limit of a start command; None: that of every command


def update_steps(
    setup: NodeSetup, tags: Mapping[str, str], *, is_new_container: bool = False
) -> tuple[UpdateStep, ...]:
    """Return the steps that a machine with these tags needs; `is_new_container`: nothing is in it yet."""
    same_runtime = bool(setup.hashes.runtime) and tags.get(TAG_RUNTIME_HASH) == setup.hashes.runtime
    same_contents = setup.hashes.contents in (None, tags.get(TAG_CONTENTS_HASH))
    syncs = is_new_container or not (same_runtime and same_contents)
    steps = [UpdateStep(StepKind.WAIT, (WaitReady(),))]
    if syncs:
        steps.append(UpdateStep(StepKind.SYNC, copies(setup)))
    if is_new_container or not same_runtime:
        given = setup.setup_environment
        first = [
            RunCommand(command=line, where=RunWhere.HOST, environment=given)
            for line in setup.initialization_commands
        ]
        steps.append(UpdateStep(StepKind.INITIALIZE, (*first, prepare_container(setup, is_synced=True))))
        set_up = tuple(RunCommand(command=line, environment=given) for line in setup.setup_commands)
        steps.append(UpdateStep(StepKind.SET_UP, set_up))
    starts = [_start(setup, one) for one in (*setup.start_commands, setup.notices) if one]
    if setup.lease:  # after Ray: what it watches must be there; it knows the node by Ray's environment
        environment = setup.start_environment
        starts.append(RunCommand(command=setup.lease, where=RunWhere.HOST, environment=environment))
    steps.append(UpdateStep(StepKind.START, tuple(starts)))
    return tuple(step for step in steps if step.work)


def must_look_first(setup: NodeSetup, tags: Mapping[str, str]) -> bool:
    """Return whether the container must be looked at before the steps are known: it may be gone.

    A machine with our tags whose container is not there, or lacks a mount, is set up again in a new one.
    """
    runtime = setup.hashes.runtime
    return setup.has_container and bool(runtime) and tags.get(TAG_RUNTIME_HASH) == runtime


def prepare_container(setup: NodeSetup, *, is_synced: bool) -> PrepareContainer:
    return PrepareContainer(as_head=setup.is_head, file_mounts=setup.file_mounts, is_synced=is_synced)


def final_tags(hashes: RuntimeHashes) -> dict[str, str]:
    """Return the tags of a machine that is set up."""
    contents = {} if hashes.contents is None else {TAG_CONTENTS_HASH: hashes.contents}
    return {TAG_STATUS: UP_TO_DATE, TAG_RUNTIME_HASH: hashes.runtime, **contents}


def copies(setup: NodeSetup) -> tuple[CopyFiles, ...]:
    """Return the copies of `file_mounts`, then of `cluster_synced_files`; `rsync-up` makes them too."""
    wanted = [(there, here, False) for there, here in setup.file_mounts.items()]
    wanted += [(path, path, True) for path in setup.synced_files]
    return tuple(
        CopyFiles(
            source=here,
            target=there,
            may_be_missing=may_be_missing,
            exclude=setup.rsync_exclude,
            filters=setup.rsync_filter,
        )
        for there, here, may_be_missing in wanted
    )


def _start(setup: NodeSetup, line: str) -> RunCommand:
    return RunCommand(
        command=line,
        environment=setup.start_environment,
        takes_secrets=bool(setup.secrets),
        timeout_s=setup.start_s,
    )


def worker_setup(
    config: ClusterConfig,
    *,
    node_type: str,
    cloud_id: str,
    head_ip: str,
    place: Mapping[str, str] = {},
    secrets: Mapping[str, str] = {},
) -> NodeSetup:
    """Return what makes a machine a worker, from the cluster file; `place` are the variables of its offer."""
    entry = config.available_node_types[node_type]
    head = {"RAY_HEAD_IP": head_ip}
    node = {
        "RAY_CLOUD_INSTANCE_ID": cloud_id,
        "RAY_NODE_TYPE_NAME": node_type,
        "RAY_CLOUD_INSTANCE_TYPE_NAME": config.rules.machine_type(entry.node_config or {}),
    }
    own = override_environment(entry.resources, entry.labels) if config.rules.overrides_resources else {}
    return NodeSetup(
        **_from_file(config, node_type, is_head=False),
        setup_commands=worker_setup_commands(config, node_type),
        start_commands=config.worker_start_ray_commands,
        setup_environment=head,
        start_environment={**head, **node, **place, **own},
        secrets=secrets,
        hashes=worker_runtime_hashes(config, node_type),
    )


def head_setup(
    config: ClusterConfig, start_commands: tuple[str, ...], head_ip: str, hashes: RuntimeHashes
) -> NodeSetup:
    """Return what makes a machine the head; its start environment is known when it has a home there."""
    return NodeSetup(
        **_from_file(config, config.head_type, is_head=True),
        setup_commands=config.head_setup_commands,
        start_commands=start_commands,
        setup_environment={"RAY_HEAD_IP": head_ip},
        hashes=hashes,
        start_s=HEAD_START_S,
    )


def _from_file(config: ClusterConfig, node_type: str, *, is_head: bool) -> dict[str, Any]:
    """Return the fields of a NodeSetup that head and workers share."""
    return {
        "is_head": is_head,
        "has_container": container_of(config, node_type, is_head=is_head) is not None,
        "file_mounts": config.file_mounts,
        "synced_files": config.cluster_synced_files,
        "rsync_exclude": config.rsync_exclude,
        "rsync_filter": config.rsync_filter,
        "initialization_commands": initialization_commands(config, node_type),
    }


def override_environment(resources: Mapping[str, float], labels: Mapping[str, str]) -> dict[str, str]:
    """Return what `ray start` reads to offer what the cluster file says, not what it finds.

    Example:
        >>> override_environment({"CPU": 2.0, "x": 0.5}, {})
        {'RAY_OVERRIDE_RESOURCES': '{"CPU": 2, "x": 0.5}'}
    """
    whole = {name: int(count) if count == int(count) else count for name, count in resources.items()}
    found = {"RAY_OVERRIDE_RESOURCES": json.dumps(whole)} if whole else {}
    return found | ({"RAY_OVERRIDE_LABELS": json.dumps(dict(labels))} if labels else {})


def log_name(node: str, kind: StepKind) -> str:
    """Return where the log of one step is, below the directory of logs; a node's name may be any text."""
    plain = (
        "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in node).lstrip(".") or "_"
    )
    return os.path.join(plain[:100], f"{kind.value}.log")
