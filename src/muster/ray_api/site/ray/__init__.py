"""Answer `import ray` with muster; this directory is on `sys.path` only where `muster.as_ray` put it."""

__commit__ = "muster"  # tells it from the real Ray; `import muster` looks at it

import importlib
import sys

from muster.ray_api import finder, switch

switch.turn_on()
finder.install()
__version__ = switch.version()
if "pyarrow" in sys.modules:  # libraries that import it before Ray rely on Ray's own import of this part
    importlib.import_module("pyarrow.fs")
SCRIPT_MODE, WORKER_MODE, LOCAL_MODE = 0, 1, 2

__getattr__, _names = finder.overlay("ray", "", finder.CORE)
__all__ = [*_names(), "__version__", "LOCAL_MODE", "SCRIPT_MODE", "WORKER_MODE"]  # noqa: PLE0604


def __dir__() -> list[str]:
    return sorted(__all__)
