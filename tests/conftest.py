"""For all tests: numerical libraries use one thread, as in trials; more would only fight for two cores.

Whoever runs the tests in the background of a shell has Ctrl-C switched off, and children inherit that: it is
switched on again, because some tests press it.
"""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
