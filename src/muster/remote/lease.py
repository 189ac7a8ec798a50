"""Make the line of bash that starts the lease of a worker: `host.node_lease` as a separate process. Pure.

Called for every worker that is set up. The line runs after Ray's start, with Ray's environment (RAY_HEAD_IP,
RAY_CLOUD_INSTANCE_ID), and on the machine itself where Ray runs in a container. Repeated, it replaces the
watcher. It leaves no file on the machine.
"""

from __future__ import annotations

import base64
import inspect
import shlex
import zlib
from collections.abc import Sequence
from types import ModuleType

from muster.config.schema import ClusterConfig
from muster.host import node_lease

GCS_PORT = 6379
_RUN = "import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"


def lease_line(config: ClusterConfig, *, port: int = GCS_PORT, lock: str = "") -> str:
    """Return the line; "" when the cluster file has no `muster.lease_minutes`.

    The watcher itself is in it: a worker need not have muster. `lock` is the file of a physical host's lock,
    which is freed when the lease ends; without one the machine is shut down.
    """
    minutes = config.muster.lease_minutes
    if minutes is None:
        return ""
    words = ["--lease-s", f"{60 * minutes:g}", "--drain-s", f"{config.muster.timeouts.drain_deadline_s:g}"]
    words += ["--lock", lock] if lock else ["--power-off"]
    return watcher_line(node_lease, words, f"$RAY_HEAD_IP:{port}")


def watcher_line(program: ModuleType, words: Sequence[str], head: str) -> str:
    """Return the line that starts a program of one file, which is in the line, beside Ray on a worker."""
    packed = base64.b64encode(zlib.compress(inspect.getsource(program).encode(), 9)).decode()
    start = f'python3 -c {shlex.quote(_RUN)} {packed} --head "{head}" '
    return f"setsid nohup {start}{' '.join(map(shlex.quote, words))} > /dev/null 2>&1 < /dev/null &"
