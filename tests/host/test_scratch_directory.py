from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from muster.host.scratch_directory import ScratchDirectory

CHILD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from muster.host.scratch_directory import ScratchDirectory
print(ScratchDirectory("test-").path(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def child(root):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_directories_of_processes_that_were_killed_are_swept_and_others_are_not(root):
    with child(root) as process:
        theirs = process.stdout.readline().strip()
        mine = ScratchDirectory("test-").path()
        assert sorted(map(str, root.iterdir())) == sorted([mine, theirs])
        process.send_signal(signal.SIGKILL)
        process.wait()
        again = ScratchDirectory("test-").path()
    assert (os.path.isdir(mine), os.path.isdir(theirs), os.path.isdir(again)) == (True, False, True)


def test_a_directory_is_deleted_at_exit(root):
    with child(root) as process:
        theirs = process.stdout.readline().strip()
        assert os.path.isdir(theirs)
        process.stdin.close()
    assert not os.path.exists(theirs)


def test_a_fork_leaves_the_directory_to_its_parent(root):
    made = ScratchDirectory("test-")
    path = made.path()
    pid = os.fork()
    if pid == 0:
        made.remove()
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.path.isdir(path)
    made.remove()
    assert not os.path.exists(path)
