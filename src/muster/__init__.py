"""muster: a trial controller (`muster.tune`) and a cluster autoscaler (`muster.autoscaler`).

Imports nothing heavy, so that `import muster` costs nothing.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError("muster does not run on Windows (it forks and locks as Unix does): use it in WSL2")

__version__ = "0.1.0"
