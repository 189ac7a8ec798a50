"""Failures wait here until the decision about them is durable."""

from __future__ import annotations

import pytest

from muster.cluster.model import DrainFailure, InstallFailure, LaunchFailure, TerminateFailure
from muster.cluster.observe import FailureInbox

KINDS = (DrainFailure, InstallFailure, LaunchFailure, TerminateFailure)


def test_failures_are_kept_by_kind_in_order_and_cleared_together():
    inbox = FailureInbox()
    first, second = (LaunchFailure(request_id=r, node_type="cpu") for r in ("r-1", "r-2"))
    others = (TerminateFailure(cloud_id="c"), DrainFailure(instance_id="d"), InstallFailure(instance_id="i"))
    for failure in (first, *others, second):
        inbox.put(failure)
    assert list(inbox.of(LaunchFailure)) == [first, second]
    assert [inbox.of(type(other)) for other in others] == [(other,) for other in others]
    inbox.offer(1)
    inbox.clear()
    assert not any(inbox.of(kind) for kind in KINDS)


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_failure_that_was_left_undecided_is_offered_again(is_answered):
    inbox, waits = FailureInbox(), InstallFailure(instance_id="i")
    for failure in (DrainFailure(instance_id="d"), waits, TerminateFailure(cloud_id="c")):
        inbox.put(failure)
    inbox.offer(7, (waits,))
    if is_answered:
        inbox.clear()
    else:
        inbox.resolve_offer(8)
    assert [inbox.of(kind) for kind in KINDS] == [(), (waits,), (), ()]


FAILURES = tuple(LaunchFailure(request_id=r, node_type="cpu") for r in ("r-1", "r-2", "r-3"))


def offered_inbox():
    """Two failures were part of a decision at version 7; a third came later."""
    inbox = FailureInbox()
    inbox.put(FAILURES[0])
    inbox.put(FAILURES[1])
    inbox.offer(7)
    inbox.put(FAILURES[2])
    return inbox


def test_a_commit_that_was_stored_in_silence_settles_what_it_decided():
    inbox = offered_inbox()
    inbox.resolve_offer(8)
    assert list(inbox.of(LaunchFailure)) == [FAILURES[2]]
    inbox.resolve_offer(9)
    assert list(inbox.of(LaunchFailure)) == [FAILURES[2]]


def test_a_commit_that_was_not_stored_settles_nothing():
    inbox = offered_inbox()
    inbox.resolve_offer(7)
    assert list(inbox.of(LaunchFailure)) == list(FAILURES)
    inbox.resolve_offer(8)  # the offer is over: a later version says nothing about it
    assert list(inbox.of(LaunchFailure)) == list(FAILURES)


def test_an_inbox_that_offered_nothing_keeps_everything():
    inbox = FailureInbox()
    inbox.put(FAILURES[0])
    inbox.resolve_offer(99)
    assert list(inbox.of(LaunchFailure)) == [FAILURES[0]]
