"""NodeProgram is what a node runs, and how to see from outside that it is up or has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.providers.process.ray_command import (
    RAY_MODULE,
    NodeIdentity,
    NodePorts,
    head_command,
    node_environment,
    worker_command,
)
from muster.providers.process.records import NodeRecord

Command = Callable[[NodeRecord, NodePorts], list[str]]


@dataclass(frozen=True)
class NodeProgram:
    """A NodeProgram makes the command of each node. Tests put something cheap in its place."""

    command: Command
    preload: str = ""  # the module of a `python -m` command, imported once for all nodes
    main_process: str = ""  # the process whose end is the node's end, by name
    ready: bytes = b""  # what its log contains when it has joined; empty: nothing to wait for
    watcher: Callable[[], str] = lambda: ""  # the line of bash that watches for a cloud's notices; "": none

    def environment_of(
        self, record: NodeRecord, inherited: Mapping[str, str], auth: Mapping[str, str]
    ) -> dict[str, str]:
        identity = NodeIdentity(
            cloud_id=record.cloud_id, node_type=record.node_type, ray_node_id=record.ray_node_id
        )
        return node_environment(inherited, identity, auth)


def ray_worker(address: str, watcher: Callable[[], str] = lambda: "") -> NodeProgram:
    """Returns Ray's node; each has a temporary directory of its own, so several may start at a time.

    After a drain, and when a raylet is killed, `ray start --block` may stay: the raylet is the main process.
    """
    return NodeProgram(
        command=lambda record, ports: worker_command(record.size, ports, address, Path(record.temp_dir)),
        preload=RAY_MODULE,
        main_process="raylet",
        ready=b"Ray runtime started",
        watcher=watcher,
    )


def ray_head() -> NodeProgram:
    """Returns the head without Ray's autoscaler; `ray start --block` itself watches over its parts."""
    return NodeProgram(
        command=lambda record, ports: head_command(record.size, ports, Path(record.temp_dir)),
        preload=RAY_MODULE,
        ready=b"Ray runtime started",
    )
