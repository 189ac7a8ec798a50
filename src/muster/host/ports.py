"""Finds free ports, and writes the port of a node's dashboard agent before that agent runs.

A raylet joins only when it knows the ports of its agents. It takes those given on the command line; the port
of the dashboard agent's server `ray start` (2.60) does not pass on, so the raylet waits for a file that the
agent writes, 1-2 s of processor time later, and aborts after 15 s. The port is known, so the file can be
there from the start. If Ray names it otherwise one day, nodes join as late as without it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path

_FILE = "dashboard_agent_listen_port"


def new_ray_node_id() -> str:
    """Returns an id as Ray makes them; it is part of the file's name."""
    return secrets.token_hex(28)


def session_name(head_temp_dir: Path) -> str | None:
    """Returns the session of a head that has begun; None before."""
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(head_temp_dir / "session_latest"))
    return None


def write_agent_port(session_dir: Path, ray_node_id: str, port: int) -> None:
    """Writes the port as the agent will write it again; an existing file is left alone."""
    session_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = session_dir / f"{_FILE}_{ray_node_id}"
    with contextlib.suppress(FileExistsError), open(file, "x", encoding="ascii") as stream:
        stream.write(str(port))


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Returns whether a server listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
