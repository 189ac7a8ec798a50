from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest

from muster.host.usage import CpuMeter, gpu_sample, machine_reader, smi_rows
from muster.session.usage import UsageMonitor, wants_usage


def test_only_a_config_that_says_so_wants_it():
    said = [{}, {"log_sys_usage": False}, {"log_sys_usage": True}]
    assert [wants_usage(config) for config in said] == [False, False, True]


def test_means_are_of_what_was_seen_since_the_last_call():
    left = [{"cpu": 10.0, "ram": 50.0}, {"cpu": 30.0}, {"cpu": 7.0}]
    monitor = UsageMonitor(lambda: left.pop(0), period_s=3600)
    monitor._samples = [left.pop(0), left.pop(0)]
    assert monitor.take() == {"cpu": 20.0, "ram": 50.0}
    assert monitor.take() == {"cpu": 7.0}  # nothing was seen since: it looks by itself
    monitor.stop()


def test_it_looks_again_and_again_until_it_is_stopped():
    import threading

    seen_three = threading.Event()
    seen = []

    def read():
        seen.append(1)
        if len(seen) >= 3:
            seen_three.set()
        return {"cpu": float(len(seen))}

    monitor = UsageMonitor(read, period_s=0.001)
    assert seen_three.wait(30)
    monitor.stop()
    monitor._thread.join(30)
    assert not monitor._thread.is_alive()


class Seconds(NamedTuple):
    user: float
    system: float
    idle: float
    iowait: float
    guest: float = 5.0  # in user time already


def test_processor_use_is_the_share_of_time_between_two_looks():
    now = [Seconds(1.0, 1.0, 7.0, 1.0)]
    meter = CpuMeter(lambda: now[0])
    now[0] = Seconds(1.6, 1.15, 7.15, 1.1)  # 0.75 busy of 1
    assert meter.percent() == pytest.approx(75.0)
    assert meter.percent() == pytest.approx(75.0)  # no tick since: the last answer holds
    now[0] = Seconds(1.6, 1.15, 8.05, 1.2)
    assert meter.percent() == pytest.approx(0.0, abs=1e-9)


def test_gpus_are_numbered_and_silent_ones_left_out():
    rows = smi_rows("12, 500, 1000\n[N/A], [N/A], [N/A]\n90, 0, 0\n")
    assert gpu_sample(rows) == {
        "gpu_util_percent0": 12.0,
        "vram_util_percent0": 50.0,
        "gpu_util_percent1": 90.0,
        "vram_util_percent1": 0.0,
    }


def test_this_machine_answers_in_percent():
    sample = machine_reader()()
    assert {"cpu_util_percent", "ram_util_percent"} <= set(sample)
    assert all(0.0 <= value <= 100.0 for value in sample.values())


def test_importing_it_is_light():
    code = (
        "import sys, muster.session.usage; sys.exit('psutil' in sys.modules or 'subprocess' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
