"""kill -9 in a loop of appends: the facts are a prefix, and every acknowledged append is in it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.stores.experiment.store import SqliteTrialStore

CHILD = str(Path(__file__).with_name("trial_child.py"))


def killed_after(place, lines):
    """Start the writer, kill it once it has said so many things; the last number it said."""
    command = [sys.executable, CHILD, "loop", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        said = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        said += [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    assert child.returncode == -signal.SIGKILL
    return int(said[-1])


@pytest.mark.slow
def test_a_killed_writer_leaves_exactly_a_prefix_with_every_acknowledged_append(tmp_path):
    for lines in (1, 30, 173):
        acknowledged = killed_after(tmp_path, lines)
        with SqliteTrialStore(tmp_path, wait_s=0.0) as store:  # the lock died too
            assert store.reader.integrity() == "ok"
            assert store.appended >= acknowledged
            assert store.appended - acknowledged in (0, acknowledged % 3 + 1)  # one append nobody heard of
            found = store.load()
            saved = int(found.snapshot or b"0")
            numbers = [fact.result["training_iteration"] for fact in found.facts]
            assert numbers == list(range(saved + 1, store.appended + 1))
            assert found.plugins == ({"searcher": b"s%d" % saved} if saved else {})
            (trial,) = store.reader.trials()
            assert (trial.reports, trial.result["training_iteration"]) == (store.appended, store.appended)


def test_killed_before_any_statement_of_a_snapshot_it_is_whole_or_absent(tmp_path):
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); from trial_child import *\n"
        "fatal, killed = 0, True\n"
        "with SqliteTrialStore(sys.argv[2], wait_s=0.0) as store:\n"
        "    store.append(numbered(1, 3)); store.snapshot(b'3', {'p': b'3'}); store.append(numbered(4, 2))\n"
        "while killed:\n"
        "    fatal += 1\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        store, seen = SqliteTrialStore(sys.argv[2], wait_s=0.0), 0\n"
        "        def count(_):\n"
        "            global seen; seen += 1\n"
        "            if seen == fatal: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        store._database._connection.set_trace_callback(count)\n"
        "        store.snapshot(b'5', {'p': b'5'})\n"
        "        os._exit(0)\n"
        "    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])\n"
        "    with SqliteTrialStore(sys.argv[2], wait_s=0.0) as store:\n"
        "        found, (trial,) = store.load(), store.reader.trials()\n"
        '        say(f\'{int(killed)} {found.snapshot.decode()} {found.plugins["p"].decode()} '
        "{len(found.facts)} {trial.reports} {store.appended} {store.reader.integrity()}')\n"
    )
    arguments = [sys.executable, "-c", script, str(Path(CHILD).parent), str(tmp_path)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    rows = run.stdout.splitlines()
    assert len(rows) >= 8
    before, after = "1 3 3 2 5 5 ok", "5 5 0 5 5 ok"
    done = rows.index(f"1 {after}") if f"1 {after}" in rows else len(rows) - 1
    assert rows[:done] == [before] * done  # killed before the COMMIT took effect
    # After it the file is only made smaller: killed there or not at all, the snapshot stands.
    assert {row[2:] for row in rows[done:]} == {after}
    assert rows[-1] == f"0 {after}"
