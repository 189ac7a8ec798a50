"""Measure how busy the machine is while a trial runs; `config["log_sys_usage"] = True` adds it to results.

Engines start a UsageMonitor for such a trial and add `take()` to its results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

PERIOD_S = 0.7
CONFIG_KEY = "log_sys_usage"
RESULT_KEY = "perf"  # so results have perf/cpu_util_percent and so on

Sample = Mapping[str, float]


def wants_usage(config: Mapping[str, Any]) -> bool:
    return bool(config.get(CONFIG_KEY))


class UsageMonitor:
    """Samples from its own thread until `stop`."""

    def __init__(self, read: Callable[[], Sample] | None = None, period_s: float = PERIOD_S) -> None:
        if read is None:
            from muster.host.usage import machine_reader

            read = machine_reader()
        self._read: Callable[[], Sample] = read
        self._period_s = period_s
        self._guard = threading.Lock()
        self._samples: list[Sample] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="muster-usage", daemon=True)
        self._thread.start()

    def take(self) -> dict[str, float]:
        """Means since the last call; looks now when there is nothing since then."""
        with self._guard:
            samples, self._samples = self._samples, []
        if not samples:
            samples = [self._read()]
        found: dict[str, list[float]] = {}
        for sample in samples:
            for name, value in sample.items():
                found.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in found.items()}

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(self._period_s)

    def _watch(self) -> None:
        while not self._stopped.wait(self._period_s):
            sample = self._read()
            with self._guard:
                self._samples.append(sample)
