"""Which host of a rack is taken next."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec.structs import replace as changed

from muster.providers.rack.host_list import RackHost
from muster.providers.rack.host_lock import HostReport, LockHolder
from muster.providers.rack.hosts import HostState, Wanted, candidates
from muster.remote.steps import TAG_STATUS, UPDATE_FAILED

CPU = Wanted(request_id="r-1", node_type="cpu")


def held(ip: str, **tags: str) -> HostState:
    holder = LockHolder(cluster="c", cloud_id=ip, launcher="me", taken_at=0.0, node_type="cpu", tags=tags)
    report = HostReport(disk_bytes=10**12)
    return HostState(RackHost(ip=ip, node_type="cpu"), report=report, holder=holder)


@pytest.mark.parametrize(
    ("status", "order"), [(UPDATE_FAILED, ["10.0.0.2", "10.0.0.1"]), ("up-to-date", ["10.0.0.1", "10.0.0.2"])]
)
def test_a_host_whose_last_set_up_failed_is_taken_last(status, order):
    first, second = held("10.0.0.1", **{TAG_STATUS: status}), held("10.0.0.2")
    free = [first.released(1.0), second.released(1.0)]
    assert [state.host.ip for state in candidates(free, CPU, "c", ())] == order


def test_a_host_whose_set_up_failed_is_like_any_other_after_a_good_one():
    failed = held("10.0.0.1", **{TAG_STATUS: UPDATE_FAILED}).released(1.0)
    again = failed.taken(held("10.0.0.1").holder, 2.0).released(3.0)
    assert not again.has_failed_setup


@pytest.mark.parametrize(
    ("change", "is_ours"),
    [({}, True), ({"request_id": "r-2"}, False), ({"node_type": "gpu"}, False), ({"cluster": "d"}, False)],
)
def test_a_lock_that_an_earlier_process_wrote_late_for_the_same_request_serves_it(change, is_ours):
    tried, before = held("10.0.0.1").holder, replace(held("10.0.0.1"), holder=None)
    late = changed(tried, cloud_id="late", boot="b", **change)
    lock = msgspec.json.encode(late).decode()
    assert before.lost_to(tried, 1.0, lock=lock).holder == (late if is_ours else None)
    assert before.abandon("late").lost_to(tried, 1.0, lock=lock).holder is None
