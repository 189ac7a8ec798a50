"""wait_for_gpu, with a stand-in for nvidia-smi on the PATH: no machine here has a GPU."""

from __future__ import annotations

import os
import sys

import pytest

from muster.base.clock import ManualClock
from muster.tune.utils import wait_for_gpu
from muster.tune.utils.util import memory_use, wait_until_free


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Make `nvidia-smi` print what it is given."""

    def install(lines: str) -> None:
        (tmp_path / "out").write_text(lines)
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nprint(open({str(tmp_path / 'out')!r}).read(), end='')\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


TWO = "0, GPU-aaa, 10, 1000\n1, GPU-bbb, 900, 1000\n"


def test_a_gpu_is_known_by_number_and_uuid(smi):
    smi(TWO)
    assert [memory_use(gpu) for gpu in ("0", "GPU-aaa", "1", "GPU-bbb")] == [0.01, 0.01, 0.9, 0.9]


def test_a_free_gpu_is_not_waited_for(smi, monkeypatch):
    smi(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert wait_for_gpu(target_util=0.02) is True
    assert wait_for_gpu("GPU-aaa", target_util=0.02) is True


def test_a_busy_gpu_is_an_error_after_the_last_look(smi):
    smi(TWO)
    clock = ManualClock()
    began = clock.monotonic()
    with pytest.raises(RuntimeError, match="GPU"):
        wait_until_free("1", 0.5, 3, 5.0, clock)
    assert clock.monotonic() - began == 15.0


def test_what_cannot_be_asked_for_is_refused(smi, monkeypatch):
    smi(TWO)
    with pytest.raises(ValueError, match="GPU"):
        wait_for_gpu(7)
    with pytest.raises(ValueError, match="UUID"):
        wait_for_gpu(1.5)
    with pytest.raises(ValueError, match="target_util"):
        wait_for_gpu(0, gpu_memory_limit=0.5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(RuntimeError, match="GPU"):
        wait_for_gpu()


def test_a_machine_without_a_driver_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="PATH"):
        wait_for_gpu(0)
