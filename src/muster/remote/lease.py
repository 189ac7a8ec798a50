"""Starts the lease of a worker: `host.node_lease` as a process of its own on the machine.

Called by whoever sets workers up, after Ray's start and on the machine itself where Ray runs in a container:
`await start_lease(runner, lease_line(config), environment)`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping

from muster.config.schema import ClusterConfig
from muster.host import node_lease
from muster.remote.runner import CommandRunner, RunWhere

GCS_PORT = 6379
_TEXT = "MUSTER_TEXT"
_FILE = '"$HOME"/.muster/node_lease.py'


def lease_line(config: ClusterConfig, *, port: int = GCS_PORT, lock: str = "") -> str:
    """Returns the line; "" when the cluster file has no `muster.lease_minutes`.

    `lock` is the file of a physical host's lock, which is freed; without one the machine is shut down.
    """
    minutes = config.muster.lease_minutes
    if minutes is None:
        return ""
    words = ["--lease-s", f"{60 * minutes:g}", "--drain-s", f"{config.muster.timeouts.drain_deadline_s:g}"]
    words += ["--lock", lock] if lock else ["--power-off"]
    return (
        f'setsid nohup python3 {_FILE} --head "$RAY_HEAD_IP:{port}" {" ".join(map(shlex.quote, words))} '
        f'>> "$HOME"/.muster/node_lease.log 2>&1 < /dev/null &'
    )


async def start_lease(
    runner: CommandRunner, line: str, environment: Mapping[str, str], where: RunWhere = RunWhere.HOST
) -> None:
    """Starts the watcher on a worker, which replaces an earlier one; nothing for an empty line.

    `environment` has RAY_HEAD_IP and RAY_CLOUD_INSTANCE_ID, as Ray itself was started with.
    """
    if not line:
        return
    write = f'mkdir -p "$HOME"/.muster; printf %s "${_TEXT}" > {_FILE}.partial && mv {_FILE}.partial {_FILE}'
    # The file has nothing to hide: it travels as a secret because it is too long for a log.
    await runner.run(write, secrets={_TEXT: inspect.getsource(node_lease)}, where=where)
    await runner.run(line, environment=environment, where=where)
