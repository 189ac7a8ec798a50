"""muster: a trial controller (`muster.tune`) and a cluster autoscaler (`muster.autoscaler`).

Imports nothing heavy, so that `import muster` costs nothing.
"""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    raise ImportError("muster does not run on Windows (it forks and locks as Unix does): use it in WSL2")

__version__ = "0.1.0"

if os.environ.get("MUSTER_AS_RAY", "0") not in ("", "0"):  # noqa: TID251 - before anything else is imported
    from muster.ray_api.switch import turn_on

    turn_on()
