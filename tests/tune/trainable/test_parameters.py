from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from tests.contracts.engine_contract.fixture import Driver

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions
from muster.errors import TuneError
from muster.host.scratch_directory import ScratchDirectory
from muster.tune.trainable import Trainable, with_parameters
from muster.tune.trainable import stored_object as large_objects

BIG = 1_000_000


class Steps(Trainable):
    def setup(self, config, data, factor=1):
        self.total = float(data.sum()) * factor

    def step(self):
        return {"total": self.total}


def total(config, data, label="none"):
    """Sums."""
    return {"total": float(data.sum()) + config["x"], "label": label}


def last(config, text):
    return {"last": text[-1]}


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Spool files go to a directory of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(large_objects, "_scratch", ScratchDirectory("muster-parameters-"))
    return tmp_path


def spooled_files(folder) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("muster-parameters-*/[!.]*"))


@pytest.mark.conformance("C-072")
def test_a_function_gets_its_parameters_and_keeps_its_name(scratch):
    data = np.ones(BIG)
    wrapped = with_parameters(total, data=data, label="big")
    assert wrapped({"x": 1}) == {"total": BIG + 1.0, "label": "big"}
    assert (wrapped.__name__, wrapped.__doc__) == ("total", "Sums.")
    assert not hasattr(total, "_muster_original")
    with pytest.raises(TypeError, match="data"):
        total({"x": 1})


def test_a_class_gets_its_parameters_in_setup(scratch):
    wrapped = with_parameters(Steps, data=np.ones(BIG), factor=2)
    assert (wrapped.__name__, issubclass(wrapped, Steps)) == ("Steps", True)
    assert wrapped({}).train()["total"] == 2.0 * BIG


@pytest.mark.conformance("C-072")
@pytest.mark.parametrize("kind", [total, Steps])
def test_the_wrapper_is_small_however_large_the_payload(scratch, kind):
    wrapped = with_parameters(kind, data=np.ones(BIG))
    assert len(cloudpickle.dumps(wrapped)) < 4_000
    assert [os.path.getsize(path) // 1_000_000 for path in spooled_files(scratch)] == [8]


def test_a_small_payload_needs_no_file(scratch):
    wrapped = cloudpickle.loads(cloudpickle.dumps(with_parameters(total, data=np.ones(10), label="few")))
    assert wrapped({"x": 0}) == {"total": 10.0, "label": "few"}
    assert spooled_files(scratch) == []


def test_equal_values_have_one_file_and_are_not_one_array(scratch):
    def spoil(config, data, other):
        data[:] = 0
        return {"other": float(other.sum())}

    wrapped = with_parameters(spoil, data=np.ones(BIG), other=np.ones(BIG))
    assert len(spooled_files(scratch)) == 1
    assert wrapped({}) == {"other": float(BIG)}


@pytest.mark.conformance("C-072")
def test_two_wraps_of_one_function_stay_apart(scratch):
    one, other = with_parameters(total, data=np.ones(BIG)), with_parameters(total, data=np.zeros(BIG))
    assert [each({"x": 0})["total"] for each in (one, other)] == [float(BIG), 0.0]


def test_values_are_those_of_the_moment_of_wrapping(scratch):
    data = np.ones(BIG)
    wrapped = with_parameters(total, data=data)
    data[:] = 7
    assert wrapped({"x": 0})["total"] == BIG


def test_a_trial_may_write_to_its_array_and_nobody_else_sees_it(scratch):
    def spoil(config, data):
        data[:] = 5
        return {"total": float(data.sum())}

    data = np.ones(BIG)
    spoiling = with_parameters(spoil, data=data)
    before = [Path(path).read_bytes() for path in spooled_files(scratch)]
    assert spoiling({})["total"] == 5.0 * BIG
    assert [Path(path).read_bytes() for path in spooled_files(scratch)] == before
    assert float(data.sum()) == BIG


def test_a_value_is_read_once_per_process(scratch):
    seen = []
    wrapped = with_parameters(lambda config, text: seen.append(text), text=["x" * 100_000])
    wrapped({})
    wrapped({})
    assert seen[0] == ["x" * 100_000]
    assert seen[0] is seen[1]


def test_wraps_can_be_nested(scratch):
    inner = with_parameters(total, data=np.ones(3))
    assert with_parameters(inner, label="outer")({"x": 1}) == {"total": 4.0, "label": "outer"}


@pytest.mark.parametrize("wrong", [3, "name", int, None])
def test_only_trainables_take_parameters(wrong):
    with pytest.raises(ValueError, match="with_parameters"):
        with_parameters(wrong, data=1)


def test_a_parameter_that_nobody_takes_is_refused_at_once():
    with pytest.raises(ValueError) as caught:
        with_parameters(total, dta=1)
    assert re.search(r"^with_parameters: .*'dta'; total\(config, data, label='none'\)", str(caught.value))
    with pytest.raises(ValueError, match="factor=1"):
        with_parameters(Steps, dta=1)


def test_what_cannot_be_pickled_is_named():
    import threading

    with pytest.raises(ValueError, match="with_parameters"):
        with_parameters(total, label=threading.Lock())


def test_a_full_disk_is_told_with_the_way_out(scratch, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(large_objects, "open", refuse, raising=False)
    with pytest.raises(TuneError, match=r"MB.*TMPDIR"):
        with_parameters(total, data=np.ones(BIG))


def test_a_missing_file_is_told(scratch):
    wrapped = with_parameters(total, data=np.full(BIG, 3.0))
    for path in spooled_files(scratch):
        os.remove(path)
    with pytest.raises(TuneError, match="data"):
        wrapped({"x": 0})


CHILD = """
import numpy, os, sys, tempfile
tempfile.tempdir = sys.argv[1]
from muster.tune.trainable import with_parameters
wrapped = with_parameters(lambda config, data: data, data=numpy.ones(1_000_000))
if sys.argv[2] == "killed":
    os._exit(0)
"""


@pytest.mark.slow
def test_files_go_with_the_process_that_wrote_them_and_orphans_with_the_next(scratch):
    left = {}
    for how in ("killed", "ends"):
        subprocess.run([sys.executable, "-c", CHILD, str(scratch), how], check=True)
        left[how] = len(spooled_files(scratch))
    assert left == {"killed": 1, "ends": 0}


@pytest.mark.conformance("C-072")
@pytest.mark.slow
def test_parameters_reach_real_trials(scratch, tmp_path):
    blobs = {
        "total": cloudpickle.dumps(with_parameters(total, data=np.ones(BIG))),
        "Steps": cloudpickle.dumps(with_parameters(Steps, data=np.ones(BIG), factor=3)),
    }
    engine = LocalEngine(
        clock=SystemClock(), trainables=blobs, capacity={"CPU": 3}, options=LocalOptions(quiet=True)
    )
    try:
        driver = Driver(engine, tmp_path / "trials")
        driver.start("a", "total", {"x": 1})
        driver.start("b", "total", {"x": 2})
        driver.start("c", "Steps", {})
        found = [driver.to_report(name).result["total"] for name in ("a", "b", "c")]
        assert found == [BIG + 1.0, BIG + 2.0, 3.0 * BIG]
    finally:
        engine.close()
