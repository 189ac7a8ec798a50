"""A small process that starts nodes: it imports Ray's command line once and forks for every node.

Run as a script by StarterLink; standard library only, for its threads would be lost in the fork. Per node it
reads a line with the order, answers with the process id, and the child begins only after a line `go`: so the
id is written down before anything happens. When the other side ends, so does the starter; its nodes do not.
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
    """Serve until the input ends; in a child: become the node."""
    orders, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    _attach_output(None)  # what an import prints must not be taken for an answer
    entry = _imported(preload)
    sys.stdout.flush()  # or every node would say again what the import said
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the nodes, and no zombies stay
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
        replies.write(b"{}\n")  # whoever ends us now does not end the node
    return None


def _advance_random_ids() -> None:
    """Ray's native random numbers do not notice a fork: all children would have the same node id."""
    ray: Any = sys.modules.get("ray")
    for _ in range(100 if ray is not None else 0):  # more than a child draws before it has its id
        ray.NodeID.from_random()


def _admitted(gate: int, order: dict[str, Any]) -> dict[str, Any]:
    """Wait at the gate; it closes without a word when the order is void or its giver is dead."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.read(gate, 1) != b"g":
        os._exit(0)
    os.close(gate)
    return order


def _become(order: dict[str, Any], preload: str, entry: Callable[[], None] | None) -> None:
    """Run the command of the order in this process: forked where it is the imported one, else executed."""
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
    """The module's `main`; None when it cannot be had: the command then says itself what is wrong."""
    if not preload:
        return None
    try:
        found: Callable[[], None] | None = getattr(importlib.import_module(preload), "main", None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the command itself will meet it and say so
        sys.stderr.write(f"cannot import {preload}: {error}\n")
        return None
    return found


def _attach_output(log: str | None) -> None:
    """Nothing to read; what is said goes to `log`, or to the error stream."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 2)
        os.close(file)
    os.dup2(2, 1)


if __name__ == "__main__":
    sys.path.pop(0)  # our own directory: its modules are not top-level ones
    main(sys.argv[1] if len(sys.argv) > 1 else "")
