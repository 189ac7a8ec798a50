"""Failures wait here until the decision about them is durable."""

from __future__ import annotations

from muster.cluster.inbox import Inbox
from muster.cluster.model import DrainFailure, InstallFailure, LaunchFailure, TerminateFailure


def test_failures_are_kept_by_kind_in_order_and_cleared_together():
    inbox = Inbox()
    first, second = (LaunchFailure(request_id=r, node_type="cpu") for r in ("r-1", "r-2"))
    others = (TerminateFailure(cloud_id="c"), DrainFailure(instance_id="d"), InstallFailure(instance_id="i"))
    for failure in (first, *others, second):
        inbox.put(failure)
    assert inbox.launch == [first, second]
    assert (inbox.terminate, inbox.drain, inbox.install) == ([others[0]], [others[1]], [others[2]])
    inbox.clear()
    assert (inbox.launch, inbox.terminate, inbox.drain, inbox.install) == ([], [], [], [])
