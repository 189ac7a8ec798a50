"""Experiments that run on one machine notice each other, and never one that is dead."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from muster.host.processes import ProcessIdentity, identify
from muster.host.running_experiments import RunningExperiment, promised_twice, recorded


def running(directory, pid=7, **promised):
    return RunningExperiment(
        directory=directory, promised=promised, mark=ProcessIdentity(pid=pid, started="1", boot="b")
    )


def test_experiments_see_each_other_while_they_run(tmp_path):
    folder = tmp_path / "running"
    with recorded(folder, running("a", CPU=2.0)) as before:
        with recorded(folder, running("b", CPU=1.0)) as others:
            assert (before, [each.directory for each in others]) == ([], ["a"])
            assert others[0].mark == identify(os.getpid())
        with recorded(folder, running("c")) as others:
            assert [each.directory for each in others] == ["a"]
    assert list(folder.iterdir()) == []


def test_an_experiment_whose_driver_was_killed_does_not_count(tmp_path):
    code = (
        "import os, pathlib, sys\n"
        "from muster.host.running_experiments import RunningExperiment, recorded\n"
        "with recorded(pathlib.Path(sys.argv[1]), RunningExperiment(directory='a', promised={'CPU': 2.0})):\n"
        "    print(flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert len(list(tmp_path.iterdir())) == 1
    with recorded(tmp_path, running("b")) as others:
        assert others == []
    assert list(tmp_path.iterdir()) == []


def test_damaged_and_foreign_records_are_left_alone(tmp_path):
    with recorded(tmp_path, running("a")):
        (own,) = tmp_path.iterdir()
    for name, content in ((own.name + "x", b"{"), ("other-host-1-abc", b"{}")):
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / f"{own.name}y")
    with recorded(tmp_path, running("b")) as others:
        assert others == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    with recorded(tmp_path / "file" / "running", running("a")) as others:
        assert others == []


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        ({"CPU": 8.0}, [{"CPU": 8.0}], "8 of 8"),
        ({"CPU": 4.0}, [{"CPU": 4.0}], ""),
        ({"CPU": 4.0}, [{"CPU": 3.0}, {"CPU": 2.0}], "4 of 8"),
        ({"CPU": 8.0}, [{"CPU": 6.0}], "max_concurrent_trials=2)"),
        ({"CPU": 8.0}, [{"CPU": 8.0}] * 9, "max_concurrent_trials=1)"),
        ({"CPU": 1.0, "GPU": 1.0}, [{"CPU": 1.0, "GPU": 2.0}], "GPUs"),
        ({"CPU": 8.0}, [], ""),
        ({}, [{"CPU": 8.0}], ""),
    ],
)
def test_what_is_promised_twice_is_named_with_the_remedy(mine, theirs, says):
    others = [running(f"/results/{n}", **each) for n, each in enumerate(theirs)]
    found = promised_twice(
        running("/results/me", **mine), others, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}
    )
    assert (says in found, bool(found)) == (True, bool(says))
    if found:
        assert "/results/0 (process 7)" in found
        assert "max_concurrent_trials=" in found
