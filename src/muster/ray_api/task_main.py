"""Runs in another process: execute the tasks that a TaskPool sends, one after another, until it is gone."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
from types import FrameType
from typing import Any, NoReturn

from muster.base import by_value
from muster.base.framing import FrameKind, FrameReader, frame
from muster.host.die_with_parent import kill_group

_CHUNK = 1 << 16
_is_running = [False]


def main() -> NoReturn:
    """Serve tasks: `sys.argv` is path, socket, the pool's pid."""
    control = socket.socket(fileno=int(sys.argv[2]))
    os.set_inheritable(control.fileno(), False)
    sys.argv = sys.argv[:1]
    signal.signal(signal.SIGINT, _interrupt)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(control, requests), daemon=True).start()
    while True:
        answer = _run(requests.get())
        control.sendall(frame(FrameKind.REPORT, answer))


def _read(control: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; when the pool closes its end or is killed, end this process and its children."""
    frames = FrameReader()
    while data := _received(control):
        for _, payload in frames.feed(data):
            requests.put(payload)
    sys.stdout.flush()
    kill_group(os.getpid())


def _received(control: socket.socket) -> bytes:
    try:
        return control.recv(_CHUNK)
    except OSError:
        return b""


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_running[0]:
        raise KeyboardInterrupt


def _run(request: bytes) -> bytes:
    """Return the pickled list of pickled results, or the pickled RayTaskError."""
    from muster.ray_api import tasks
    from muster.ray_api.exceptions import RayTaskError

    name, function, arguments, num_returns, needs = pickle.loads(request)
    tasks.inherited.clear()
    tasks.inherited.update({"CPU": 1.0, **needs})
    _is_running[0] = True
    try:
        result = _call(function, arguments)
        values = [result] if num_returns == 1 else list(result) if num_returns else []
        if len(values) != num_returns:
            raise ValueError(f"{name} returned {len(values)} values; num_returns is {num_returns}")
        return pickle.dumps([by_value.dumps(value) for value in values])
    except BaseException as error:  # noqa: BLE001 - whatever the function raises is the result
        _is_running[0] = False
        return _pickled(RayTaskError(name, traceback.format_exc(), error))
    finally:
        _is_running[0] = False
        sys.stdout.flush()


def _call(function: bytes, arguments: bytes) -> Any:  # noqa: ANN401 - the user's value
    from muster.ray_api.objects import ObjectRef

    args, kwargs = pickle.loads(arguments)
    args = [each.load() if isinstance(each, ObjectRef) else each for each in args]
    kwargs = {name: each.load() if isinstance(each, ObjectRef) else each for name, each in kwargs.items()}
    return pickle.loads(function)(*args, **kwargs)


def _pickled(error: Any) -> bytes:  # noqa: ANN401 - a RayTaskError
    try:
        data = by_value.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an error of the user's that does not survive pickling
        error.cause = RuntimeError(f"{type(error.cause).__name__}: {error.cause}")
        return by_value.dumps(error)
    return data
