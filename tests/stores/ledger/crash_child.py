"""Run by test_crash.py as a separate process: writes to a ledger until somebody kills it.

`loop PATH`: commit forever, each with one effect; hand over every odd one; say so after each.
`steps PATH`: fork once per statement of a commit; the child dies by SIGKILL right before that statement.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # started by its path

from tests.support.builders import NOW, launch, plan, record

from muster.base.clock import ManualClock
from muster.cluster.snapshot import Memory
from muster.cluster.states import InstanceState as S
from muster.stores.ledger.store import SqliteInstanceStore


def opened(path):
    return SqliteInstanceStore(path, clock=ManualClock(NOW), wait_s=0.0)


def say(line):
    os.write(1, f"{line}\n".encode())  # one system call: what was said is in the pipe, whatever comes next


def decision(number):
    """Everything a commit can hold: a new record, one that ends at once, an effect, memory."""
    return plan(
        record(f"a-{number:05d}"),
        record(f"b-{number:05d}", S.QUEUED, S.TERMINATED),
        actions=[launch(f"e-{number}")],
        memory=Memory(spent=float(number)),
    )


def loop(path):
    with opened(path) as store:
        number = store.load().version
        while True:
            number += 1
            say(f"committed {store.commit(number - 1, decision(number))}")
            if number % 2:
                store.handed_over([f"e-{number}"])
                say(f"handed {number}")


def die_before_statement(path, fatal):
    store = opened(path)
    seen = 0

    def count(_statement):
        nonlocal seen
        seen += 1
        if seen == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    version = store.load().version
    store._database._connection.set_trace_callback(count)
    store.commit(version, decision(version + 1))
    store._database._connection.set_trace_callback(None)
    store.close()


def steps(path):
    fatal, killed = 0, True
    while killed:
        fatal += 1
        child = os.fork()
        if child == 0:
            die_before_statement(path, fatal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        with opened(path) as store:
            ledger = store.load()
            ended = len(store.history.find(states=[S.TERMINATED]))
            effects = [action.request_id for action in ledger.outbox]
            say(
                f"{int(killed)} {ledger.version} {len(ledger.instances)} {ended} {','.join(effects) or '-'} "
                f"{ledger.memory.spent:g} {len(store.history.decisions())} {store.integrity()}"
            )


if __name__ == "__main__":
    {"loop": loop, "steps": steps}[sys.argv[1]](sys.argv[2])
