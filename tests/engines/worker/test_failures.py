from __future__ import annotations

import pickle
import signal

import pytest

from muster.engines.worker.exit_report import failed_exit, shortened
from muster.engines.worker.failures import ExitReader, reported_failure
from muster.engines.worker.protocol import ExitReport
from muster.trials.events import TrialFailure, TrialFailureKind

KILLED_BY_9 = int(signal.SIGKILL)
LEFT_WITH_3 = 3 << 8


def test_a_kill_is_for_lack_of_memory_only_when_the_kernel_counted_one():
    counts = iter([4, 4, 5, 5])
    reader = ExitReader(lambda: next(counts))
    kinds = [reader.failure_of_status(KILLED_BY_9).kind for _ in range(3)]
    assert kinds == [TrialFailureKind.KILLED, TrialFailureKind.OUT_OF_MEMORY, TrialFailureKind.KILLED]


@pytest.mark.parametrize(
    ("status", "note", "kind"),
    [
        (LEFT_WITH_3, "", TrialFailureKind.EXITED),
        (0, "", TrialFailureKind.EXITED),
        (int(signal.SIGSEGV), "", TrialFailureKind.KILLED),
        (None, "", TrialFailureKind.KILLED),
        (0, "no process could be made: limit", TrialFailureKind.START),
    ],
)
def test_ends_without_a_word_are_told_apart(status, note, kind):
    assert ExitReader(lambda: 0).failure_of_status(status, note).kind is kind


def test_a_verdict_without_error_is_no_failure():
    assert reported_failure(ExitReport(is_done=True, stays=False)) is None


class Stubborn(Exception):
    def __init__(self, a, b):
        super().__init__("only one")


def test_an_exception_that_cannot_be_built_again_is_not_sent():
    found = reported_failure(failed_exit(Stubborn(1, 2)))
    expected = TrialFailure(
        kind=TrialFailureKind.USER_ERROR,
        message=found.message,
        traceback=found.message,
        exception=None,
    )
    assert found == expected
    assert found.message.endswith("Stubborn: only one")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [Mute("x"), Mute(), ValueError(Mute())], ids=["mute", "empty", "holds a mute"]
)
def test_an_exception_that_cannot_show_itself_is_reported_with_its_type_and_traceback(error):
    try:
        raise error
    except Exception as raised:
        found = reported_failure(failed_exit(raised))
    assert (found.kind, type(pickle.loads(found.exception))) == (TrialFailureKind.USER_ERROR, type(error))
    assert found.traceback.startswith("Traceback")
    assert f"{type(error).__name__}: <" in found.traceback.splitlines()[-1]


def test_a_short_text_is_not_cut_and_a_long_one_keeps_its_end():
    short = "\n".join(map(str, range(20)))
    assert shortened(short) == short
    cut = shortened("\n".join(map(str, range(100)))).splitlines()
    assert (len(cut), cut[0], cut[1], cut[2], cut[-1]) == (20, "0", "  ...", "82", "99")
