"""Tests what a ledger keeps, shows and drops; part of InstanceStoreContract."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from tests.contracts.ledger_contract.fixture import FullStore, StoreFixture
from tests.support.builders import NOW, launch, moved, one_of_each, plan, record

from muster.base.clock import ManualClock
from muster.base.ids import InstanceId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import NodeKind, StatusChange
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.snapshot import FailedLaunch, Memory, Quarantined, TypeHealth, WithoutDrivers
from muster.cluster.states import InstanceState, ResizeRecord
from muster.stores.ledger.history import Spend
from muster.stores.ledger.state import DEFAULT_RETENTION, Retention

S = InstanceState
HOUR_S = 3600.0


class PastPromises(StoreFixture):
    """PastPromises test that restarts lose nothing, and retention only what it may."""

    # What survives

    def test_a_restart_finds_everything(self, store: FullStore, place: Path, clock: ManualClock) -> None:
        memory = Memory(
            health={"gpu": TypeHealth(failures=1.5, failed_at=3.0, timed_out_at=None)},
            pending_idle={"cpu": (1.0, 2.0)},
            spent=0.1 + 0.2,
            ungrowing={"cpu": 5.5},
            without_drivers=WithoutDrivers(since=1.5, last_end=2.5),
            verdict_since={"demand:1:placed": 4.25},
        )
        failed = record("z", S.QUEUED, S.REQUESTED, S.ALLOCATION_FAILED)
        size = ResizeRecord(desired=Resources.of(CPU=2.5), since=NOW, failed_at=NOW + 1, reason="no room")
        new = record("b", S.ALLOCATED, S.RAY_RUNNING, kind=NodeKind.HEAD, price_per_hour=0.1, resize=size)
        store.commit(0, plan(new, record("a"), failed, at=NOW + 9, actions=one_of_each(), memory=memory))
        before = store.load()
        again = self.reopened(store, place, clock)
        assert again.load() == before
        assert list(again.load().instances) == ["a", "b"]
        assert (again.load().memory, again.load().outbox) == (memory, one_of_each())
        assert again.load().newest_at == NOW + 9
        again.close()

    def test_details_of_every_step_are_kept(self, store: FullStore, place: Path, clock: ManualClock) -> None:
        store.commit(0, plan(record("a", S.QUEUED, S.REQUESTED)))
        seen = store.load().instances[InstanceId("a")]
        store.commit(1, plan(moved(seen, S.ALLOCATION_FAILED, at=NOW + 5, details="sold out in zone b")))
        again = self.reopened(store, place, clock)
        (found,) = again.history.find(["a"])
        assert found.history == (
            StatusChange(S.QUEUED, NOW, "to QUEUED"),
            StatusChange(S.REQUESTED, NOW + 1, "to REQUESTED"),
            StatusChange(S.ALLOCATION_FAILED, NOW + 5, "sold out in zone b"),
        )
        assert [failure.reason for failure in again.load().recent_failures] == ["sold out in zone b"]
        again.close()

    def test_the_newest_time_is_kept_when_a_later_plan_is_earlier(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), at=NOW + 50))
        store.commit(1, plan(record("b"), at=NOW))
        assert store.load().newest_at == NOW + 50

    def test_a_tick_cannot_spoil_the_ledger_it_was_given(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        given = store.load().instances
        assert isinstance(given, dict)
        given.clear()
        assert list(store.load().instances) == ["a"]

    # The outbox

    def test_effects_wait_in_order_until_they_are_handed_over(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), actions=one_of_each()))
        store.commit(1, plan(actions=[launch("e-9")]))
        ids = [action.request_id for action in store.load().outbox]
        assert ids == ["e-5", "e-1", "e-4", "e-2", "e-3", "e-6", "e-7", "e-9"]
        store.handed_over([RequestId("e-1"), RequestId("nobody"), RequestId("e-9")])
        left = [action.request_id for action in store.load().outbox]
        assert left == ["e-5", "e-4", "e-2", "e-3", "e-6", "e-7"]
        store.handed_over([])
        store.handed_over([RequestId("e-1")])
        assert (len(store.load().outbox), store.load().version) == (6, 2)

    def test_handed_over_effects_stay_away_after_a_restart(
        self, store: FullStore, place: Path, clock: ManualClock
    ) -> None:
        store.commit(0, plan(actions=one_of_each()))
        store.handed_over([RequestId("e-5"), RequestId("e-4")])
        again = self.reopened(store, place, clock)
        assert [action.request_id for action in again.load().outbox] == ["e-1", "e-2", "e-3", "e-6", "e-7"]
        again.close()

    def test_an_effect_decided_again_replaces_the_one_that_waits(
        self, store: FullStore, place: Path, clock: ManualClock
    ) -> None:
        store.commit(0, plan(actions=[launch("e-1", cpu=3), launch("e-2")]))
        store.commit(1, plan(actions=[launch("e-1", cpu=1)]))
        expected = (launch("e-2"), launch("e-1", cpu=1))
        assert store.load().outbox == expected
        again = self.reopened(store, place, clock)
        assert again.load().outbox == expected
        again.close()

    # The past

    def test_ended_records_are_not_loaded(self, store: FullStore) -> None:
        store.commit(
            0,
            plan(
                record("a"),
                record("b", S.QUEUED, S.TERMINATED),
                record("c", S.QUEUED, S.REQUESTED, S.ALLOCATION_FAILED),
            ),
        )
        assert list(store.load().instances) == ["a"]

    def test_failed_launches_are_news_for_an_hour(self, store: FullStore, clock: ManualClock) -> None:
        old = record("a", S.QUEUED, S.REQUESTED, S.ALLOCATION_FAILED, at=NOW)
        new = record("b", S.QUEUED, S.REQUESTED, S.ALLOCATION_FAILED, at=NOW + 60)
        store.commit(0, plan(old, new, at=NOW + 62))
        failures = [_failure("b", NOW + 61, NOW + 62), _failure("a", NOW + 1, NOW + 2)]
        assert store.load().recent_failures == tuple(failures)
        clock.advance(HOUR_S + 2)
        assert store.load().recent_failures == tuple(failures)
        clock.advance(1)
        assert store.load().recent_failures == (failures[0],)
        clock.advance(HOUR_S)
        assert store.load().recent_failures == ()

    def test_not_more_than_100_failed_launches_are_shown(
        self, store: FullStore, place: Path, clock: ManualClock
    ) -> None:
        steps = (S.QUEUED, S.REQUESTED, S.ALLOCATION_FAILED)
        failed = [record(f"{k:03d}", *steps, at=NOW + k) for k in range(150)]
        store.commit(0, plan(*failed, at=NOW + 160))
        newest = [f"{k:03d}" for k in range(149, 49, -1)]
        assert [failure.instance_id for failure in store.load().recent_failures] == newest
        again = self.reopened(store, place, clock)
        assert [failure.instance_id for failure in again.load().recent_failures] == newest
        again.close()

    def test_decisions_are_kept_per_tick_that_changed_something(self, store: FullStore) -> None:
        verdict = Verdict(subject=Subject.DEMAND, subject_id="1", reason=Reason.INFEASIBLE, lacks={"GPU": 2})
        first = replace(
            plan(record("a"), actions=[launch("e-1")]),
            verdicts=(verdict,),
            quarantined=(Quarantined(source="demand 3", message="NaN"),),
        )
        store.commit(0, first)
        store.commit(1, plan(at=NOW + 1))
        store.commit(1, plan(at=NOW + 2, memory=Memory(spent=1.0)))
        newest, oldest = store.history.decisions()
        assert (newest.version, newest.tick_id, newest.moved, newest.actions) == (2, "t-1002", {}, [])
        assert (oldest.version, oldest.tick_id, oldest.at, oldest.moved) == (
            1,
            "t-1000",
            NOW,
            {"a": "QUEUED"},
        )
        assert [action["type"] for action in oldest.actions] == ["launch"]
        assert oldest.quarantined == [{"source": "demand 3", "message": "NaN"}]
        assert [(v["reason"], v["lacks"]) for v in oldest.verdicts] == [("infeasible", {"GPU": 2})]
        assert store.history.decisions(limit=1) == (newest,)
        assert store.history.decisions(tick_id="t-1000") == (oldest,)

    def test_spend_is_what_has_gone_and_what_runs(self, store: FullStore) -> None:
        running = record("a", S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_RUNNING, price_per_hour=2.0)
        asked = record("b", S.QUEUED, S.REQUESTED, price_per_hour=9.0)
        store.commit(0, plan(running, asked, record("c", S.ALLOCATED), memory=Memory(spent=5.0)))
        bound_at = NOW + 2
        assert store.history.spend(bound_at + 1800) == Spend(gone=5.0, live=1.0, per_hour=2.0)

    # Retention

    def test_ended_records_go_after_a_day_and_their_cost_stays(self, place: Path, clock: ManualClock) -> None:
        store = self.open_store(place, clock, DEFAULT_RETENTION)
        store.commit(0, plan(record("old", S.QUEUED, S.TERMINATED), memory=Memory(spent=3.5)))
        ended_at = NOW + 1
        on_time = plan(record("a"), at=ended_at + 86_400, memory=Memory(spent=3.5))
        store.commit(1, on_time)
        assert [r.instance_id for r in store.history.find()] == ["a", "old"]
        store.commit(2, plan(record("b"), at=ended_at + 86_401, memory=Memory(spent=3.5)))
        assert [r.instance_id for r in store.history.find()] == ["a", "b"]
        assert store.history.spend(ended_at + 86_401).gone == 3.5
        store.close()

    def test_the_oldest_beyond_the_limit_go_a_few_per_commit(self, place: Path, clock: ManualClock) -> None:
        store = self.open_store(place, clock, Retention(max_ended=10, step=4))
        ended = [record(f"e-{k:02d}", S.QUEUED, S.TERMINATED, at=NOW + k) for k in range(40)]
        store.commit(0, plan(*ended[:10]))
        store.commit(1, plan(*ended[10:]))  # 30 more: at most 34 may go, 30 must
        assert [r.instance_id for r in store.history.find()] == [f"e-{k:02d}" for k in range(30, 40)]
        store.close()
        store = self.open_store(place, clock, Retention(max_ended=1, step=4))
        counts = []
        for version in (2, 3, 4):
            store.commit(version, plan(at=NOW + version, memory=Memory(spent=float(version))))
            counts.append(len(store.history.find()))
        assert counts == [6, 2, 1]
        store.close()

    def test_decisions_have_their_limits_too(self, place: Path, clock: ManualClock) -> None:
        store = self.open_store(place, clock, Retention(max_decisions=3, step=1))
        for version in range(5):
            store.commit(version, plan(at=NOW + version, memory=Memory(spent=version + 1.0)))
        assert [decision.version for decision in store.history.decisions()] == [5, 4, 3]
        assert store.prune(NOW + 86_402.5) == 1
        assert [decision.version for decision in store.history.decisions()] == [5, 4]
        store.close()

    def test_prune_drops_all_that_is_not_kept(self, place: Path, clock: ManualClock) -> None:
        store = self.open_store(place, clock, Retention(step=3))
        store.commit(0, plan(*(record(f"e-{k}", S.QUEUED, S.TERMINATED) for k in range(8)), record("a")))
        assert store.prune(NOW + 86_402) == 9  # eight records and the decision
        assert [r.instance_id for r in store.history.find()] == ["a"]
        store.close()


def _failure(name: str, started_at: float, failed_at: float) -> FailedLaunch:
    return FailedLaunch(
        instance_id=InstanceId(name),
        node_type="cpu",
        started_at=started_at,
        failed_at=failed_at,
        reason="to ALLOCATION_FAILED",
    )
