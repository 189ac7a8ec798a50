"""The read model for people."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import HEAD, S, record
from tests.mistakes.views import assert_line
from tests.support.builders import NOW

from muster.cluster.budget_policy import Budget
from muster.cluster.model import ClusterSpec
from muster.cluster.plan import Plan, Reason, Subject, Verdict
from muster.cluster.ports import Ledger, TickResult
from muster.cluster.snapshot import Memory, Quarantined, Snapshot
from muster.cluster.status import StatusSnapshot, status_of

PLAN, MEMORY, SPEC = Plan(tick_id="t", at=0.0), Memory(), ClusterSpec()


def tick(instances=(), memory=MEMORY, plan=PLAN, spec=SPEC):
    snapshot = Snapshot(tick_id=plan.tick_id, now=plan.at, spec=spec)
    ledger = Ledger(instances={one.instance_id: one for one in instances}, memory=memory)
    return TickResult(plan=plan, snapshot=snapshot, ledger=ledger)


def test_a_status_counts_machines_and_money_and_repeats_the_reasons():
    verdict = Verdict(subject=Subject.CLUSTER, subject_id="", reason=Reason.READ_ONLY)
    note = Quarantined(source="record x", message="odd")
    plan = Plan(tick_id="t-1", at=NOW + 3600.0, verdicts=(verdict,), quarantined=(note,))
    instances = [
        HEAD,
        record("a", S.RAY_RUNNING, price_per_hour=1.5),
        record("b", S.RAY_RUNNING, price_per_hour=1.5),
        record("c", S.QUEUED, price_per_hour=1.5),
    ]
    status = status_of(tick(instances, Memory(spent=10.0), plan))
    assert status == StatusSnapshot(
        at=NOW + 3600.0,
        instances={"head": {"RAY_RUNNING": 1}, "cpu": {"RAY_RUNNING": 2, "QUEUED": 1}},
        price_per_hour=3.0,
        spent=pytest.approx(13.0),
        verdicts=(verdict,),
        quarantined=(note,),
    )


def test_an_empty_cluster_has_an_empty_status():
    status = status_of(tick())
    assert (status.instances, status.price_per_hour, status.spent) == ({}, 0.0, 0.0)


def test_a_budget_is_shown_with_what_is_spent_and_reserved():
    limited = ClusterSpec(budget=Budget(total=12.0, per_hour=4.0))
    status = status_of(tick(memory=Memory(spent=10.0), spec=limited))
    assert_line("cluster", "budget in the status", status.budget)
    assert status_of(tick()).budget == ""
