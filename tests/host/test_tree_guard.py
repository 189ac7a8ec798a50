"""A guard kills what a command started, when the command ends and when its caller is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from muster.host.processes import table, was_started_with
from muster.host.tree_guard import release, start_guarded

TREE = "(setsid sleep 300 &); setsid sh -c \"trap '' TERM; sleep 300\" & echo started; {}"


def left(entry):
    give_up = time.monotonic() + 5
    while True:
        names = [each.name for each in table() if each.is_alive and was_started_with(each.pid, entry)]
        if not names or time.monotonic() > give_up:
            return names
        time.sleep(0.02)


@pytest.mark.parametrize(("last", "code"), [("exit 3", 3), ("kill -15 $$", -15)])
def test_a_guard_ends_as_its_command_did_and_leaves_nothing(tmp_path, last, code):
    mark = f"MUSTER_GUARDED={tmp_path}"
    env = {**os.environ, "MUSTER_GUARDED": str(tmp_path)}
    process = start_guarded(["sh", "-c", TREE.format(last)], env=env, start_new_session=True)
    assert process.wait(30) == code
    assert left(mark) == []
    release(process)
    release(process)


@pytest.mark.slow
def test_a_killed_caller_takes_everything_with_it(tmp_path):
    code = f"""
        import os, subprocess, signal
        from muster.host.tree_guard import start_guarded
        line = {TREE.format("sleep 300")!r}
        env = {{**os.environ, "MUSTER_GUARDED": {str(tmp_path)!r}}}
        process = start_guarded(["sh", "-c", line], env=env, start_new_session=True, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"started\\n"
        os.kill(os.getpid(), signal.SIGKILL)
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(words, timeout=30, check=False).returncode == -9
    assert left(f"MUSTER_GUARDED={tmp_path}") == []
