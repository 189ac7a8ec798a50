"""kill -9, for real: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.builders import NOW

from muster.base.clock import ManualClock
from muster.cluster.states import InstanceState as S
from muster.stores.ledger.store import SqliteInstanceStore

pytestmark = pytest.mark.slow

CHILD = str(Path(__file__).with_name("crash_child.py"))


def killed_after(path, lines):
    """Start the writer, kill it once it has said so many things; everything it said."""
    with subprocess.Popen(
        [sys.executable, CHILD, "loop", str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        said = [child.stdout.readline().split() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        rest = [line.split() for line in child.stdout.read().splitlines()]
    assert child.returncode == -signal.SIGKILL
    return said + rest


def test_a_killed_writer_loses_nothing_it_had_acknowledged(tmp_path):
    path = tmp_path / "ledger.db"
    said = []
    for lines in (1, 40, 97):
        said += killed_after(path, lines)
        acknowledged = sum(word == "committed" for word, _ in said)
        handed = {int(number) for word, number in said if word == "handed"}
        with SqliteInstanceStore(path, clock=ManualClock(NOW), wait_s=0.0) as store:  # the lock died too
            ledger = store.load()
            assert store.integrity() == "ok"
            assert ledger.version in (acknowledged, acknowledged + 1)
            said += [["committed", "unheard"]] * (ledger.version - acknowledged)
            every = range(1, ledger.version + 1)
            assert list(ledger.instances) == [f"a-{n:05d}" for n in every]
            assert [r.instance_id for r in store.history.find(states=[S.TERMINATED])] == [
                f"b-{n:05d}" for n in every
            ]
            waiting = [int(action.request_id[2:]) for action in ledger.outbox]
            unheard = [n for n in every if n % 2 and n not in handed and n not in waiting]
            assert unheard in ([], [ledger.version])  # handed over, killed before it could say so
            assert waiting == [n for n in every if n not in handed and n not in unheard]
            said += [["handed", str(n)] for n in unheard]
            assert ledger.memory.spent == ledger.version


def test_killed_before_any_statement_of_a_commit_it_is_whole_or_absent(tmp_path):
    command = [sys.executable, CHILD, "steps", str(tmp_path / "ledger.db")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in run.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1"] * (len(rows) - 1) + ["0"]  # every one killed but the last
    assert len(rows) >= 10
    for row in rows[:-1]:
        assert row == ["1", "0", "0", "0", "-", "0", "0", "ok"]
    assert rows[-1] == ["0", "1", "1", "1", "e-1", "1", "1", "ok"]


@pytest.mark.parametrize("operation", ["handed_over", "raise_version"])
def test_a_store_that_is_dropped_without_a_word_keeps_its_last_write(tmp_path, operation):
    path = tmp_path / "ledger.db"
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from crash_child import *\n"
        "store = opened(sys.argv[2]); store.commit(0, decision(1))\n"
        "store.handed_over(['e-1']) if sys.argv[3] == 'handed_over' else store.raise_version(50)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [sys.executable, "-c", script, str(Path(CHILD).parent), str(path), operation]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    with SqliteInstanceStore(path, clock=ManualClock(NOW), wait_s=0.0) as store:
        ledger = store.load()
        expected = (1, 0) if operation == "handed_over" else (50, 1)
        assert (ledger.version, len(ledger.outbox)) == expected
