"""For all tests: numerical libraries use one thread, as in trials; more would only fight for two cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
