"""Runs in another process: imports Ray's command line once and forks for every node.

NodeForkServer runs this file as a script; standard library only, because threads would be lost in the fork.
For each node it reads a line with the order and answers with the process id; the child begins only after a
line `go`, so the id is on disk before anything happens. When the other side ends, so does this process; its
nodes do not.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

GO = b"go\n"


def main(preload: str) -> None:
    """Serves until the input ends; in a child: becomes the node."""
    orders, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    _attach_output(None)  # what an import prints must not be taken for a reply
    entry = _imported(preload)
    sys.stdout.flush()  # otherwise every node would print again what the import printed
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the nodes, and no zombies stay
    order = _serve(orders, replies)
    if order is not None:
        _become(order, preload, entry)


def _serve(orders: BinaryIO, replies: BinaryIO) -> dict[str, Any] | None:
    while line := orders.readline():
        gate, opener = os.pipe()
        _advance_random_ids()
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            os.setsid()
            orders.close()
            replies.close()
            return _admitted(gate, json.loads(line))
        os.close(gate)
        replies.write(json.dumps({"pid": pid}).encode() + b"\n")
        if orders.readline() == GO:
            os.write(opener, b"g")
        os.close(opener)
        replies.write(b"{}\n")  # a signal that ends this process now does not end the node
    return None


def _advance_random_ids() -> None:
    """Draws from Ray's native random numbers: they ignore forks, and node ids would be equal."""
    ray: Any = sys.modules.get("ray")
    for _ in range(100 if ray is not None else 0):  # more than a child draws before it has its id
        ray.NodeID.from_random()


def _admitted(gate: int, order: dict[str, Any]) -> dict[str, Any]:
    """Waits for `go`; ends the process when the order is void or the other side has died."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.read(gate, 1) != b"g":
        os._exit(0)
    os.close(gate)
    return order


def _become(order: dict[str, Any], preload: str, entry: Callable[[], None] | None) -> None:
    """Runs the command of the order in this process: forked if it is the imported one, otherwise executed."""
    _attach_output(order["log"])
    os.chdir(order["cwd"])
    argv: list[str] = order["argv"]
    if entry is None or argv[1:3] != ["-m", preload]:
        _execute(argv, order["env"])
    os.environ.clear()  # noqa: TID251 - this is the environment of the node
    os.environ.update(order["env"])  # noqa: TID251
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
    """Returns the module's `main`; None if the import fails, which the command then reports itself."""
    if not preload:
        return None
    try:
        found: Callable[[], None] | None = getattr(importlib.import_module(preload), "main", None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the command itself will raise it again
        sys.stderr.write(f"cannot import {preload}: {error}\n")
        return None
    return found


def _attach_output(log: str | None) -> None:
    """Gives the process no input, and sends its output to `log`, or to the error stream."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 2)
        os.close(file)
    os.dup2(2, 1)


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file: its modules are not top-level ones
    main(sys.argv[1] if len(sys.argv) > 1 else "")
