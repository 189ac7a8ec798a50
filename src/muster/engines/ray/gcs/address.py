"""Where the cluster of this process is: a driver's own, RAY_ADDRESS, or the head on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from muster.errors import EngineUnreachable
from muster.host.machine import environment
from muster.runtimes.ray.native import is_driver

_FIX = "call ray.init(), or set RAY_ADDRESS to host:port of the Ray head"


def find_address(given: str | None = None) -> str:
    """host:port of the GCS; raises EngineUnreachable when nothing says it."""
    address = given or _drivers() or environment().get("RAY_ADDRESS", "")
    if not address:
        raise EngineUnreachable(f"no Ray cluster is named: {_FIX}")
    if address == "auto":
        return _on_this_machine()
    if "://" in address:
        raise EngineUnreachable(f"{address} is Ray Client, which does not lead to the GCS: {_FIX}")
    return address


def _drivers() -> str:
    if not is_driver():
        return ""
    return str(sys.modules["ray"].get_runtime_context().gcs_address)


def _on_this_machine() -> str:
    """`ray start --head` leaves its address in this file."""
    file = Path(environment().get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        raise EngineUnreachable(f"RAY_ADDRESS is auto, but no head runs on this machine: {_FIX}") from None
