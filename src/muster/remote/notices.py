"""Make the line of bash that starts `host.node_notices` on a worker, where Ray runs. Pure.

Called for every worker that is set up. The line runs after Ray's start, with its environment and its token;
in the container, where there is one: the program tells the head with the Ray that is installed there.
"""

from __future__ import annotations

from muster.config.schema import ClusterConfig
from muster.host import node_notices
from muster.remote.lease import GCS_PORT, watcher_line


def notices_line(config: ClusterConfig, *, port: int = GCS_PORT, ray: str = "ray", address: str = "") -> str:
    """Return the line; "" where no cloud announces anything. `ray` is the command that starts Ray.

    `address` is the GCS's, where the machine has no RAY_HEAD_IP.
    """
    cloud = source_of(config)
    if not cloud:
        return ""
    words = ["--cloud", cloud, "--ray", ray]
    words += ["--address", config.muster.notices.address] if config.muster.notices.address else []
    return watcher_line(node_notices, words, address or f"$RAY_HEAD_IP:{port}")


def source_of(config: ClusterConfig) -> str:
    """Return whose metadata service is asked: that of the file, else that of its provider; "": none."""
    given = config.muster.notices.source
    return config.rules.notices if given is None else given.removesuffix("none")
