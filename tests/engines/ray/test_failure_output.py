from __future__ import annotations

import re

from muster.engines.ray.failures import crash_failure
from muster.engines.worker.failures import exit_code_failure
from muster.trials.events import TrialFailureKind

CRASH = b'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "a.py", line 3\n'


def test_a_crash_is_told_by_its_signal_with_the_stack():
    found = crash_failure(b"\x01\x02" + CRASH)
    assert found is not None
    assert (found.kind, found.message[-12:]) == (TrialFailureKind.KILLED, "11 (SIGSEGV)")
    assert found.traceback.endswith('File "a.py", line 3')


def test_a_crash_of_python_itself_is_told_in_its_words():
    found = crash_failure(b"Fatal Python error: deallocating None\nmore\n")
    assert found is not None
    assert (found.kind, found.message.split(": ")[1]) == (TrialFailureKind.EXITED, "deallocating None")


def test_other_bytes_are_no_last_words():
    assert crash_failure(b"\x00\x00\x00\x00\x18") is None


def test_an_exit_code_is_named():
    assert exit_code_failure(3).kind is TrialFailureKind.EXITED
    assert re.search(r"\b3\b", exit_code_failure(3).message)
