"""Make the lines that users run on a head: their command, in a screen or tmux, and what follows it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from muster.errors import ClusterError
from muster.remote.service import HEAD_FILE

TMUX, SCREEN = "tmux", "screen"


def ray_environment(address: str, auth: Mapping[str, str]) -> dict[str, str]:
    """Return what a command on the head needs to find its cluster."""
    return {"RAY_ADDRESS": address, "RAY_HEAD_IP": address.rpartition(":")[0], **auth}


def command_line(
    command: str, *, inside: str = "", stop_with: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Return the line for a head; `inside` is TMUX or SCREEN, `stop_with` the Python that has muster.

    In a detached session nobody here waits, so the head itself ends the cluster when the command is over.

    Example:
        >>> command_line("python a.py; date", inside="tmux", environment={"A": "x y"})
        "tmux new-session -d bash --login -c 'export A='\\"'\\"'x y'\\"'\\"'; python a.py; date'"
    """
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in (environment or {}).items())
    line = exports + command
    if stop_with:
        line += f"; {shlex.quote(stop_with)} -m muster down {HEAD_FILE} -y"
    if inside == TMUX:
        return f"tmux new-session -d bash --login -c {shlex.quote(line)}"
    if inside == SCREEN:
        return f"screen -L -dm bash --login -c {shlex.quote(line)}"
    return line


def attach_line(inside: str, *, is_new: bool, environment: Mapping[str, str] | None = None) -> str:
    """Return what a terminal on the head runs: a shell, or a session that outlives the connection."""
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in (environment or {}).items())
    if inside == TMUX:
        return f"{exports}tmux new" if is_new else f"{exports}tmux attach || tmux new"
    if inside == SCREEN:
        return f"{exports}screen -L" if is_new else f"{exports}screen -L -xRR"
    return f"{exports}exec bash --login -i"


def session_kind(*, tmux: bool, screen: bool) -> str:
    """Return TMUX, SCREEN or "". Raises ClusterError for both."""
    if tmux and screen:
        raise ClusterError("--tmux and --screen exclude each other", fix="choose one")
    return TMUX if tmux else SCREEN if screen else ""


def forwarded(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return (here, there) of `8265` and `9000:8265`. Raises ClusterError for what is not a port.

    Example:
        >>> forwarded(["8265", "9000:80"])
        [(8265, 8265), (9000, 80)]
    """
    found = []
    for word in words:
        here, _, there = word.partition(":")
        try:
            pair = int(here), int(there or here)
        except ValueError:
            pair = 0, 0
        if not all(0 < port < 65_536 for port in pair):
            raise ClusterError(
                f"--port-forward {word!r} is not PORT or HERE:THERE", fix="write for example 8265"
            )
        found.append(pair)
    return found


def log_line(home: str, node: str, *, lines: int, is_followed: bool) -> str:
    """Return the line that shows the monitor's log, or the logs of how one node was set up."""
    folder = shlex.quote(home)
    follow = " -F" if is_followed else ""
    if not node:
        return f"tail -n {lines}{follow} {folder}/monitor.log"
    # A node's own directory begins with its address.
    return f"tail -n {lines}{follow} -v {folder}/install/{shlex.quote(node)}*/*.log"
