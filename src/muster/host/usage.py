"""Read how busy processors, memory and GPUs are: through psutil, and pynvml or nvidia-smi."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

Sample = dict[str, float]
CPU, RAM = "cpu_util_percent", "ram_util_percent"
_QUERY = ("--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
_SMI_TIMEOUT_S = 5.0


def machine_reader() -> Callable[[], Sample]:
    """Return a function that measures processors, memory and, where there are any, GPUs."""
    import psutil  # only trials that ask for their usage pay for it

    meter = CpuMeter(psutil.cpu_times)
    gpus = _nvml_reader() or _smi_reader() or dict

    def read() -> Sample:
        return {CPU: meter.percent(), RAM: float(psutil.virtual_memory().percent), **gpus()}

    return read


class CpuMeter:
    """Measures the share of processor time that was used since its last call, in any thread.

    `psutil.cpu_percent` keeps a last call for each thread: the first answer in a second thread would be 0.
    """

    def __init__(self, cpu_times: Callable[[], Any]) -> None:
        self._cpu_times = cpu_times  # psutil's, since boot
        self._lock = threading.Lock()  # the monitor's thread and `take` may both ask
        self._seen = self._counters()
        self._last = 0.0

    def percent(self) -> float:
        with self._lock:
            busy, total = self._counters()
            busy_before, total_before = self._seen
            if total > total_before:  # otherwise nothing has been counted since: the last answer holds
                self._seen = (busy, total)
                share = (busy - busy_before) / (total - total_before)
                self._last = 100.0 * min(max(share, 0.0), 1.0)
            return self._last

    def _counters(self) -> tuple[float, float]:
        """Return busy and total seconds of all processors since boot."""
        seconds = self._cpu_times()._asdict()
        for part_of_user_time in ("guest", "guest_nice"):
            seconds.pop(part_of_user_time, None)
        total = sum(seconds.values())
        return total - seconds["idle"] - seconds.get("iowait", 0.0), total


def _nvml_reader() -> Callable[[], Sample] | None:
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001 - not installed, no driver, or a driver that does not fit
        return None
    if not handles:
        return None

    def read() -> Sample:
        rows = []
        for handle in handles:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            rows.append((pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, memory.used, memory.total))
        return gpu_sample(rows)

    return read


def _smi_reader() -> Callable[[], Sample] | None:
    import shutil

    program = shutil.which("nvidia-smi")
    if program is None:
        return None

    def read() -> Sample:
        import subprocess

        try:
            ran = subprocess.run(
                [program, *_QUERY], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        return gpu_sample(smi_rows(ran.stdout))

    return read if read() else None


def smi_rows(text: str) -> list[tuple[float, float, float]]:
    """Return utilisation, used and total memory per line, without the GPUs that report none."""
    rows = []
    for line in text.splitlines():
        try:
            busy, used, total = (float(part) for part in line.split(","))
        except ValueError:
            continue
        rows.append((busy, used, total))
    return rows


def gpu_sample(rows: Sequence[tuple[float, float, float]]) -> Sample:
    """Return the result keys, numbered in the order in which GPUs are listed."""
    found: Sample = {}
    for number, (busy, used, total) in enumerate(rows):
        found[f"gpu_util_percent{number}"] = float(busy)
        found[f"vram_util_percent{number}"] = 100.0 * used / total if total else 0.0
    return found
