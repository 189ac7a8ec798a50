"""Ray 2.60 as the peer we compare with: run, never read. The only place that imports ray.

Everything here runs in a child process (`bench.peer.process`), so a slow case can be ended.
"""

from __future__ import annotations

import importlib.util


def installed() -> bool:
    """Whether ray can be imported; looking does not import it."""
    return importlib.util.find_spec("ray") is not None
