"""Run in another process: imports Ray's command line once and forks for every node.

NodeForkServer runs this file as a script; it imports little, because threads would be lost in the fork.
It answers an ORDER with the process id; the child begins only after GO, so the id is on disk before anything
happens. When the other side ends, so does this process; its nodes do not.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import Any, NoReturn

ORDER, GO, VOID = 1, 2, 3  # frames to this process: argv, environment, log, directory; begin; do not begin
PID, DONE = 10, 11  # frames from it


def main(control: socket, preload: str) -> None:
    """Serve until the other side is gone; in a child: becomes the node."""
    os.set_inheritable(control.fileno(), False)
    entry = _imported(preload)
    sys.stdout.flush()  # otherwise every node would print again what the import printed
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the nodes, and no zombies stay
    order = _serve(control)
    if order is not None:
        _become(order, preload, entry)


def _serve(control: socket) -> tuple[Any, ...] | None:
    from muster.base.framing import FrameReader, frame, pack, unpack

    frames, opener = FrameReader(), -1
    while data := control.recv(1 << 16):
        for kind, payload in frames.feed(data):
            if kind == ORDER:
                gate, opener = os.pipe()
                leads, leader = os.pipe()
                _advance_random_ids()
                pid = os.fork()
                if pid == 0:
                    for end in (opener, leads):
                        os.close(end)
                    os.setsid()
                    os.close(leader)
                    control.close()
                    return _admitted(gate, unpack(payload))
                for end in (gate, leader):
                    os.close(end)
                os.read(leads, 1)  # ends once the node leads its process group, by which it is stopped
                os.close(leads)
                control.sendall(frame(PID, pack(pid)))
                continue
            if kind == GO:
                os.write(opener, b"g")
            os.close(opener)
            control.sendall(frame(DONE))  # a signal that ends this process now does not end the node
    return None


def _advance_random_ids() -> None:
    """Draw from Ray's native random numbers: they ignore forks, and node ids would be equal."""
    ray: Any = sys.modules.get("ray")
    for _ in range(100 if ray is not None else 0):  # more than a child draws before it has its id
        ray.NodeID.from_random()


def _admitted(gate: int, order: tuple[Any, ...]) -> tuple[Any, ...]:
    """Wait for `go`; end the process when the order is void or the other side has died."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.read(gate, 1) != b"g":
        os._exit(0)
    os.close(gate)
    return order


def _become(order: tuple[Any, ...], preload: str, entry: Callable[[], None] | None) -> None:
    """Run the command of an order in this process: forked if it is the imported one, otherwise executed."""
    argv, env, log, cwd = order
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    os.chdir(cwd)
    if entry is None or argv[1:3] != ["-m", preload]:
        _execute(argv, env)
    os.environ.clear()  # noqa: TID251 - this is the environment of the node
    os.environ.update(env)  # noqa: TID251
    sys.argv = [preload, *argv[3:]]
    entry()


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(127)


def _imported(preload: str) -> Callable[[], None] | None:
    """Return the module's `main`; None if the import fails, which the command then reports itself."""
    if not preload:
        return None
    try:
        found: Callable[[], None] | None = getattr(importlib.import_module(preload), "main", None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the command itself will raise it again
        sys.stderr.write(f"cannot import {preload}: {error}\n")
        return None
    return found


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])  # of this package, in place of this directory
    importlib.import_module("muster.base.framing")
    del sys.path[0]  # nodes need neither
    main(socket(fileno=int(sys.argv[1])), sys.argv[3])
