"""Tests what a ledger accepts and what it refuses; part of InstanceStoreContract."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts.ledger_contract.fixture import FullStore, StoreFixture
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, launch, moved, plan, record

from muster.base.clock import ManualClock
from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.cluster.model import NodeKind
from muster.cluster.snapshot import Memory, Quarantined
from muster.cluster.states import CREATABLE, InstanceState
from muster.errors import StoreError, VersionConflict

S = InstanceState


class WritePromises(StoreFixture):
    """WritePromises test exact versions, and that nothing is half-written."""

    # Storage

    def test_an_empty_ledger_is_at_version_0_and_holds_nothing(self, store: FullStore) -> None:
        ledger = store.load()
        assert (ledger.version, dict(ledger.instances), ledger.memory) == (0, {}, Memory())
        assert (ledger.outbox, ledger.recent_failures, ledger.newest_at) == ((), (), 0.0)
        assert (store.history.find(), store.history.decisions(), store.damaged()) == ((), (), ())

    def test_the_first_batch_makes_version_1_and_its_records_have_it(self, store: FullStore) -> None:
        assert store.commit(0, plan(record("a"), record("b"))) == 1
        expected = {"a": record("a", version=1), "b": record("b", version=1)}
        assert (store.load().version, store.load().instances) == (1, expected)

    def test_a_wrong_expected_version_is_refused_with_the_current_one(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        for wrong in (0, 2, -1):
            with pytest.raises(VersionConflict) as refused:
                store.commit(wrong, plan(record("b")))
            assert (refused.value.expected, refused.value.actual) == (wrong, 1)
        assert list(store.load().instances) == ["a"]

    def test_one_batch_adds_changes_and_ends_records_as_one_version(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), record("b")))
        seen = store.load().instances
        ended = moved(seen[InstanceId("a")], S.TERMINATED)
        asked = moved(seen[InstanceId("b")], S.REQUESTED)
        assert store.commit(1, plan(ended, asked, record("c"))) == 2
        assert store.load().instances == {"b": replace(asked, version=2), "c": record("c", version=2)}
        assert store.history.find(["a"]) == (replace(ended, version=2),)

    def test_a_record_read_at_another_version_is_refused(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), record("b")))
        seen = store.load().instances[InstanceId("a")]
        for wrong in (0, 2):
            stale = moved(replace(seen, version=wrong), S.REQUESTED)
            with pytest.raises(StoreError, match=rf"^record a: .*\b{wrong}\b"):
                store.commit(1, plan(stale))
        with pytest.raises(StoreError, match=r"^record c: .*\b7\b"):
            store.commit(1, plan(record("c", version=7)))
        assert (store.load().version, list(store.load().instances)) == (1, ["a", "b"])

    # Instance storage

    def test_two_records_are_at_1_and_the_next_write_is_at_2(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), record("b")))
        with pytest.raises(VersionConflict):
            store.commit(0, plan(record("c")))
        assert store.commit(1, plan(record("c"))) == 2
        assert {k: r.version for k, r in store.load().instances.items()} == {"a": 1, "b": 1, "c": 2}

    def test_one_record_moves_with_its_own_version_and_leaves_the_other(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), record("b")))
        store.commit(1, plan(moved(store.load().instances[InstanceId("a")], S.REQUESTED)))
        assert {k: r.version for k, r in store.load().instances.items()} == {"a": 2, "b": 1}

    def test_pruning_is_no_change_of_version(self, store: FullStore) -> None:
        store.commit(0, plan(record("a", S.QUEUED, S.TERMINATED), record("b")))
        later = NOW + 2 * 86_400.0
        assert store.prune(later) == 2  # the record and the decision that made it
        assert store.prune(later) == 0
        assert (store.load().version, [r.instance_id for r in store.history.find()]) == (1, ["b"])

    def test_records_are_found_by_ids_by_states_and_by_both(self, store: FullStore) -> None:
        done = record("b", S.QUEUED, S.TERMINATED)
        store.commit(0, plan(record("c", S.ALLOCATED), done, record("a")))
        find = store.history.find
        assert [r.instance_id for r in find()] == ["a", "b", "c"]
        assert [r.instance_id for r in find(ids=["c", "b", "nobody"])] == ["b", "c"]
        assert [r.instance_id for r in find(states=[S.TERMINATED, S.QUEUED])] == ["a", "b"]
        assert [r.instance_id for r in find(ids=["c", "b"], states=[S.TERMINATED])] == ["b"]
        assert (find(ids=[]), find(states=[])) == ((), ())

    # Instance manager

    def test_a_stale_decision_leaves_no_record_and_no_effect(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        with pytest.raises(VersionConflict):
            store.commit(0, plan(record("b"), actions=[launch("e-1")]))
        assert (store.load().outbox, len(store.history.decisions())) == ((), 1)

    def test_three_are_queued_then_two_are_requested(self, store: FullStore) -> None:
        store.commit(0, plan(record("a"), record("b"), record("c")))
        seen = store.load().instances
        asked = [moved(seen[InstanceId(name)], S.REQUESTED) for name in ("a", "b")]
        assert store.commit(1, plan(*asked, actions=[launch("e-1", cpu=2)])) == 2
        states = {k: r.state for k, r in store.load().instances.items()}
        assert states == {"a": S.REQUESTED, "b": S.REQUESTED, "c": S.QUEUED}
        assert store.load().outbox == (launch("e-1", cpu=2),)

    def test_an_invalid_transition_refuses_the_whole_batch(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        wrong = moved(store.load().instances[InstanceId("a")], S.RAY_RUNNING)
        with pytest.raises(StoreError, match=r"^record a: .* QUEUED .* RAY_RUNNING"):
            store.commit(1, plan(record("b"), wrong, actions=[launch("e-1")]))
        assert store.load().instances == {"a": record("a", version=1)}
        assert (store.load().version, store.load().outbox) == (1, ())

    @pytest.mark.parametrize("state", list(S))
    def test_a_record_starts_in_one_of_three_states(self, store: FullStore, state: S) -> None:
        new = record("a", state)
        if state in CREATABLE:
            assert store.commit(0, plan(new)) == 1
            return
        with pytest.raises(StoreError, match="record a: "):
            store.commit(0, plan(record("b"), new))
        assert (store.load().version, store.load().instances) == (0, {})

    def test_a_record_may_have_gone_further_in_the_plan_that_made_it(self, store: FullStore) -> None:
        new = record("a", S.ALLOCATED, S.RAY_RUNNING)
        assert store.commit(0, plan(new)) == 1
        assert store.load().instances == {"a": replace(new, version=1)}

    def test_a_whole_life_keeps_what_is_learned_on_the_way(self, store: FullStore) -> None:
        bare = record("a", cloud_id=None, node_id=None, launch_request_id=None)
        store.commit(0, plan(bare))
        learned: list[tuple[InstanceState, dict[str, object]]] = [
            (S.REQUESTED, {"launch_request_id": RequestId("r-1")}),
            (S.ALLOCATED, {"cloud_id": CloudId("c-1")}),
            (S.RAY_RUNNING, {"node_id": NodeId("n-1")}),
            (S.TERMINATING, {}),
        ]
        for version, (state, fields) in enumerate(learned, start=1):
            seen = store.load().instances[InstanceId("a")]
            assert store.commit(version, plan(replace(moved(seen, state), **fields))) == version + 1
        last = store.load().instances[InstanceId("a")]
        assert (last.launch_request_id, last.cloud_id, last.node_id) == ("r-1", "c-1", "n-1")
        assert [change.state for change in last.history] == [S.QUEUED, *(state for state, _ in learned)]

    @pytest.mark.parametrize(
        ("states", "fields", "missing"),
        [
            ((S.QUEUED, S.REQUESTED), {"launch_request_id": None}, "launch_request_id"),
            ((S.QUEUED, S.REQUESTED), {"node_type": ""}, "node_type"),
            ((S.ALLOCATED,), {"cloud_id": None}, "cloud_id"),
            ((S.ALLOCATED,), {"node_type": ""}, "node_type"),
            ((S.ALLOCATED,), {"kind": NodeKind.UNMANAGED}, r"a kind \(HEAD or WORKER\)"),
            ((S.ALLOCATED, S.RAY_RUNNING), {"node_id": None}, "node_id"),
            ((S.TERMINATING,), {"cloud_id": CloudId("")}, "cloud_id"),
        ],
    )
    def test_a_missing_payload_refuses_the_whole_batch(
        self, store: FullStore, states: tuple[S, ...], fields: dict[str, object], missing: str
    ) -> None:
        with pytest.raises(StoreError, match=f"^record a: .* {states[-1].name} .* {missing}"):
            store.commit(0, plan(record("b"), replace(record("a", *states), **fields)))
        assert (store.load().version, store.load().instances) == (0, {})

    # What a write may be

    def test_a_record_without_history_is_refused(self, store: FullStore) -> None:
        with pytest.raises(StoreError) as refused:
            store.commit(0, plan(record("a", history=())))
        assert_line("stores", "record without history", str(refused.value))

    def test_a_state_without_its_line_of_history_is_refused(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        seen = store.load().instances[InstanceId("a")]
        with pytest.raises(StoreError) as refused:
            store.commit(1, plan(replace(seen, state=S.REQUESTED)))
        assert_line("stores", "state without its history", str(refused.value))

    def test_history_can_only_grow(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        with pytest.raises(StoreError) as refused:
            store.commit(1, plan(record("a", S.QUEUED, S.REQUESTED, at=NOW + 1, version=1)))
        assert_line("stores", "history rewritten", str(refused.value))

    @pytest.mark.parametrize("time", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_not_a_time_is_refused(self, store: FullStore, time: float) -> None:
        with pytest.raises(StoreError, match="not a time"):
            store.commit(0, plan(record("a", at=time)))
        with pytest.raises(StoreError, match="not a time"):
            store.commit(0, plan(record("a"), at=time))
        assert store.load().version == 0

    def test_a_machine_that_ended_does_not_come_back(self, store: FullStore) -> None:
        store.commit(0, plan(record("a", S.QUEUED, S.TERMINATED)))
        with pytest.raises(StoreError) as refused:
            store.commit(1, plan(record("a")))
        assert_line("stores", "record of a machine that ended", str(refused.value))

    def test_one_id_twice_in_a_batch_is_refused_and_nothing_is_written(self, store: FullStore) -> None:
        with pytest.raises(StoreError) as refused:
            store.commit(0, plan(record("a"), record("b"), record("a", S.ALLOCATED)))
        assert_line("stores", "record twice", str(refused.value))
        with pytest.raises(StoreError) as refused:
            store.commit(0, plan(record("a"), actions=[launch("e-1"), launch("e-1", gpu=1)]))
        assert_line("stores", "effect twice", str(refused.value))
        assert (store.load().version, store.load().instances, store.load().outbox) == (0, {}, ())

    def test_a_plan_that_changes_nothing_writes_nothing(self, store: FullStore) -> None:
        memory = Memory(spent=2.5)
        assert store.commit(0, plan(memory=memory)) == 1
        quiet = replace(plan(at=NOW + 5, memory=memory), quarantined=(Quarantined(source="x", message="y"),))
        assert store.commit(1, quiet) == 1
        assert (store.load().version, len(store.history.decisions()), store.load().newest_at) == (1, 1, NOW)

    def test_expected_version_0_is_an_expectation(self, store: FullStore) -> None:
        store.commit(0, plan(record("a")))
        for stale in (plan(record("b")), plan()):
            with pytest.raises(VersionConflict):
                store.commit(0, stale)

    # Versions

    def test_raise_version_moves_up_and_never_down(self, store: FullStore) -> None:
        assert [store.raise_version(at_least) for at_least in (41, 7, -1, 41)] == [41, 41, 41, 41]
        with pytest.raises(VersionConflict):
            store.commit(0, plan(record("a")))
        assert store.commit(41, plan(record("a"))) == 42
        with pytest.raises(StoreError) as refused:
            store.raise_version(2**64)
        assert_line("stores", "version out of range", str(refused.value))
        assert store.load().version == 42

    def test_the_version_goes_on_after_a_restart(
        self, store: FullStore, place: Path, clock: ManualClock
    ) -> None:
        store.commit(0, plan(record("a")))
        store.raise_version(9)
        again = self.reopened(store, place, clock)
        assert again.load().version == 9
        assert again.commit(9, plan(record("b"))) == 10
        again.close()
