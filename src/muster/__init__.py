"""muster: a trial controller (`muster.tune`) and a cluster autoscaler (`muster.autoscaler`).

Imports nothing heavy, so that `import muster` costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
