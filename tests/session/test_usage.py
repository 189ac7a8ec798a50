from __future__ import annotations

import subprocess
import sys

import pytest

from muster.host.usage import (
    CpuMeter,
    _psutil_reader,
    gpu_sample,
    machine_reader,
    memory_percent,
    smi_rows,
)
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


def test_processor_use_is_the_share_of_ticks_between_two_looks(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 700 100 0 0 0 0 0\n")
    meter = CpuMeter(str(stat))
    stat.write_text("cpu  160 0 115 715 110 0 0 0 0 0\n")  # 75 busy of 100
    assert meter.percent() == 75.0
    assert meter.percent() == 75.0  # no tick since: the last answer holds
    stat.write_text("cpu  160 0 115 805 120 0 0 0 0 0\n")
    assert meter.percent() == 0.0


def test_memory_use_is_what_is_not_available(tmp_path):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 250 kB\n")
    assert memory_percent(str(info)) == 75.0


def test_gpus_are_numbered_and_silent_ones_left_out():
    rows = smi_rows("12, 500, 1000\n[N/A], [N/A], [N/A]\n90, 0, 0\n")
    assert gpu_sample(rows) == {
        "gpu_util_percent0": 12.0,
        "vram_util_percent0": 50.0,
        "gpu_util_percent1": 90.0,
        "vram_util_percent1": 0.0,
    }


@pytest.mark.parametrize("reader", [machine_reader, _psutil_reader])
def test_this_machine_answers_in_percent(reader):
    sample = reader()()
    assert {"cpu_util_percent", "ram_util_percent"} <= set(sample)
    assert all(0.0 <= value <= 100.0 for value in sample.values())


def test_without_any_source_a_warning_says_what_to_install(monkeypatch):
    monkeypatch.setattr("muster.host.usage.machine_reader", lambda: None)
    with pytest.warns(UserWarning, match=r"pip install 'muster\[sysusage\]'"):
        monitor = UsageMonitor()
    assert monitor.take() == {}
    monitor.stop()


def test_importing_it_is_light():
    code = (
        "import sys, muster.session.usage; sys.exit('psutil' in sys.modules or 'subprocess' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
