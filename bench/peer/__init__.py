"""Run Ray 2.60, the peer we compare with; its source is not read. Only this package imports ray.

Everything here runs in a child process (`bench.peer.process`), so a slow case can be ended.
"""

from __future__ import annotations

import importlib.util


def installed() -> bool:
    """Return whether ray can be imported, without importing it."""
    return importlib.util.find_spec("ray") is not None
