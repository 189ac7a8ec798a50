"""Run by test_trial_crash.py and test_trials.py as a separate process.

`loop PATH`: append forever, a batch of 1 to 3 facts each, a snapshot now and then; say so after each.
`full PATH`: append until the file-size limit is hit; say what the error was and what is then in the store.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # started by its path

from tests.support.builders import reported

from muster.errors import StoreError
from muster.stores.experiment.store import SqliteTrialStore


def say(line):
    os.write(1, f"{line}\n".encode())  # one system call: what was said is in the pipe, whatever comes next


def numbered(first, count):
    return [reported("t", iteration=number) for number in range(first, first + count)]


def loop(path):
    store = SqliteTrialStore(path, wait_s=0.0)
    while True:
        store.append(numbered(store.appended + 1, store.appended % 3 + 1))
        say(store.appended)
        if store.appended % 50 == 0:
            store.snapshot(str(store.appended).encode(), {"searcher": b"s%d" % store.appended})


def full(path):
    store = SqliteTrialStore(path, wait_s=0.0)
    limit = 600_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        while True:
            store.append([reported("t", iteration=store.appended + 1, text="x" * 900)])
    except StoreError as error:
        say(error)
    try:
        store.snapshot(os.urandom(500_000), {})
    except StoreError as error:
        say(error)
    say(store.appended)
    say(
        [fact.result["training_iteration"] for fact in store.load().facts]
        == list(range(1, store.appended + 1))
    )
    store.close()


if __name__ == "__main__":
    {"loop": loop, "full": full}[sys.argv[1]](sys.argv[2])
