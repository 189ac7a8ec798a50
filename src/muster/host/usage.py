"""Where UsageMonitor has its numbers from: /proc on Linux, else psutil; pynvml or nvidia-smi for GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

Sample = dict[str, float]
CPU, RAM = "cpu_util_percent", "ram_util_percent"
_QUERY = ("--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
_PATIENCE_S = 5.0


def machine_reader() -> Callable[[], Sample] | None:
    """A function that says how busy processors, memory and GPUs are; None when this system does not tell."""
    reader = _proc_reader() or _psutil_reader()
    if reader is None:
        return None
    gpus = _gpu_reader()
    if gpus is None:
        return reader
    return lambda: {**reader(), **gpus()}


def _proc_reader() -> Callable[[], Sample] | None:
    try:
        meter = CpuMeter()
        memory_percent()
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return lambda: {CPU: meter.percent(), RAM: memory_percent()}


class CpuMeter:
    """The share of processor time that was used since the last look."""

    def __init__(self, file: str = "/proc/stat") -> None:
        self._file = file
        self._guard = threading.Lock()  # the monitor's thread and `take` may both look
        self._seen = self._counters()
        self._last = 0.0

    def percent(self) -> float:
        with self._guard:
            busy, total = self._counters()
            busy_before, total_before = self._seen
            if total > total_before:  # else nothing has been counted since: the last answer holds
                self._seen = (busy, total)
                share = (busy - busy_before) / (total - total_before)
                self._last = 100.0 * min(max(share, 0.0), 1.0)
            return self._last

    def _counters(self) -> tuple[int, int]:
        """Busy and total ticks of all processors since boot."""
        with open(self._file, encoding="ascii") as stream:
            ticks = [
                int(text) for text in stream.readline().split()[1:9]
            ]  # guest time is in user time already
        idle = ticks[3] + ticks[4]  # idle, and waiting for disks
        return sum(ticks) - idle, sum(ticks)


def memory_percent(file: str = "/proc/meminfo") -> float:
    """What cannot be had without swapping, of all memory."""
    sizes: dict[str, int] = {}
    with open(file, encoding="ascii") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0])
    return 100.0 * (sizes["MemTotal"] - sizes["MemAvailable"]) / sizes["MemTotal"]


def _psutil_reader() -> Callable[[], Sample] | None:
    try:
        import psutil  # type: ignore[import-untyped,unused-ignore]  # optional
    except ImportError:
        return None
    psutil.cpu_percent(interval=None)  # the first answer is about nothing
    return lambda: {
        CPU: float(psutil.cpu_percent(interval=None)),
        RAM: float(psutil.virtual_memory().percent),
    }


def _gpu_reader() -> Callable[[], Sample] | None:
    return _nvml_reader() or _smi_reader()


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
                [program, *_QUERY], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        return gpu_sample(smi_rows(ran.stdout))

    return read if read() else None


def smi_rows(text: str) -> list[tuple[float, float, float]]:
    """Utilisation, used and total memory per line; lines of GPUs that do not tell are left out."""
    rows = []
    for line in text.splitlines():
        try:
            busy, used, total = (float(part) for part in line.split(","))
        except ValueError:
            continue
        rows.append((busy, used, total))
    return rows


def gpu_sample(rows: Sequence[tuple[float, float, float]]) -> Sample:
    """The result keys, numbered in the order in which GPUs are listed."""
    found: Sample = {}
    for number, (busy, used, total) in enumerate(rows):
        found[f"gpu_util_percent{number}"] = float(busy)
        found[f"vram_util_percent{number}"] = 100.0 * used / total if total else 0.0
    return found
