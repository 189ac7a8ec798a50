"""What must hold after a tick whatever the world was like: few worlds that shrink, many that are quick."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from tests.cluster.strange_worlds import seeded_world, snapshots
from tests.cluster.worlds import after, following

from muster.base import codec
from muster.cluster.model import Instance, NodeKind, NodeStatus
from muster.cluster.plan import Drain, Install, Launch, Plan, Resize, Terminate
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Snapshot
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, ON_CLOUD, InstanceState
from muster.stores.ledger.state import checked_writes

S = InstanceState
STAYING = frozenset({S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_INSTALLING, S.RAY_RUNNING})
WORLDS = 300  # seeded worlds per property


def hops(seen: Snapshot, plan: Plan):
    """(record before, record after, states entered in this tick)."""
    for record in plan.writes:
        before = seen.instances.get(record.instance_id)
        known = len(before.history) if before else 0
        assert before is None or record.history[:known] == before.history
        yield before, record, [change.state for change in record.history[known:]]


def subjects(action):
    return action.instance_ids if isinstance(action, Launch | Terminate) else (action.instance_id,)


def no_rule_fails(seen, plan):
    assert [q for q in plan.quarantined if q.source.startswith("rule ")] == []


def every_write_follows_the_table(seen, plan):
    for before, record, entered in hops(seen, plan):
        state = before.state if before else None
        for position, target in enumerate(entered):
            if state is None:
                assert target in CREATABLE
            elif target is state and position == 0:  # a history that lacked the current state was repaired
                assert all(change.state is not state for change in before.history)
            else:
                assert INSTANCE_MACHINE.allows(state, target), (record.instance_id, state, target)
            state = target
        assert state is record.state


def a_store_takes_the_decision(seen, plan):
    checked_writes(plan, 2, seen.instances, lambda _: False)
    assert codec.decode(codec.encode(plan.writes), tuple[Instance, ...]) == plan.writes


def it_depends_on_the_snapshot_alone(seen, plan):
    again = reconcile(seen)
    assert again == plan
    assert codec.encode_plain(again) == codec.encode_plain(plan)  # also the order inside mappings


def every_machine_asked_for_is_in_exactly_one_launch(seen, plan):
    asked = {
        record.instance_id: record
        for before, record, entered in hops(seen, plan)
        if record.state is S.REQUESTED and entered and not (before and entered == [before.state])
    }
    launches = [action for action in plan.actions if isinstance(action, Launch)]
    assert sorted(i for launch in launches for i in launch.instance_ids) == sorted(asked)
    for launch in launches:
        assert dict(launch.shape) == Counter(asked[i].node_type for i in launch.instance_ids)


def effects_and_records_agree(seen, plan):
    expected = {Terminate: S.TERMINATING, Drain: S.RAY_STOP_REQUESTED, Install: S.RAY_INSTALLING}
    end = after(seen, plan)
    for action in plan.actions:
        if isinstance(action, Drain) and end[action.instance_id].node_id != action.node_id:
            assert end[action.instance_id].state is S.TERMINATING  # a node that came while its machine leaves
        elif type(action) in expected:
            assert {end[i].state for i in subjects(action)} == {expected[type(action)]}
    given_back = {c for a in plan.actions if isinstance(a, Terminate) for c in a.cloud_ids}
    for before, record, entered in hops(seen, plan):
        if record.state is S.TERMINATING and entered and not (before and entered == [before.state]):
            assert record.cloud_id in given_back
    ids = [action.request_id for action in plan.actions]
    assert len(ids) == len(set(ids))


def nothing_is_done_to_the_head(seen, plan):
    heads = {i for i, record in after(seen, plan).items() if record.kind is NodeKind.HEAD}
    assert "head" in heads
    for action in plan.actions:
        assert heads.isdisjoint(subjects(action))
        assert not isinstance(action, Terminate) or "c-head" not in action.cloud_ids
        assert not isinstance(action, Drain) or action.node_id != "n-head"


def owners(instances):
    return Counter(r.cloud_id for r in instances if r.cloud_id and r.state in ON_CLOUD)


def no_machine_gets_a_second_record(seen, plan):
    before = owners(seen.instances.values())
    for cloud_id, count in owners(after(seen, plan).values()).items():
        assert count <= max(1, before[cloud_id]), cloud_id


def a_read_only_provider_is_asked_for_nothing(seen, plan):
    if seen.traits.read_only:
        assert [a for a in plan.actions if isinstance(a, Launch | Terminate | Resize | Drain)] == []


def an_unreadable_world_ends_nothing(seen, plan):
    """Without a machine list no machine is taken for gone; without a report no node is."""
    moved = {r.instance_id: entered for b, r, entered in hops(seen, plan) if b is not None}
    broken = {q.source.removeprefix("record ") for q in plan.quarantined}
    if seen.cloud is None:
        gone = {i for i, e in moved.items() if S.TERMINATED in e and seen.instances[i].cloud_id}
        taken_over = owners(after(seen, plan).values())  # by a record whose node lives on the machine
        assert {i for i in gone if not taken_over[seen.instances[i].cloud_id]} <= broken
    if seen.runtime is None:
        stopped = [seen.instances[i] for i, entered in moved.items() if S.RAY_STOPPED in entered]
        assert all(r.stop_cause is not None or r.state is S.RAY_STOPPED for r in stopped)


def the_next_tick_is_sound_too(seen, plan):
    second = following(seen, plan)
    again = reconcile(second)
    no_rule_fails(second, again)
    assert [q for q in again.quarantined if "may not go from" in q.message] == []
    every_write_follows_the_table(second, again)
    checked_writes(again, 3, second.instances, lambda _: False)


def purchases_respect_every_limit(seen, plan):
    end = after(seen, plan)
    new = Counter(r.node_type for i, r in end.items() if i not in seen.instances and r.cloud_id is None)
    # A node that nobody asked for, on a machine that no list shows, may be somebody's: not launched by us.
    ours = [r for r in end.values() if r.launch_request_id or not r.provisional]
    kept = [r for r in ours if r.state in STAYING and not r.cancelled]
    types = Counter(r.node_type for r in kept)
    for node_type in seen.spec.node_types:
        assert not new[node_type.name] or types[node_type.name] <= node_type.max_nodes
    if new and seen.spec.max_nodes is not None:
        assert len(kept) <= seen.spec.max_nodes
    assert set(new) <= {node_type.name for node_type in seen.spec.node_types}


def a_machine_at_work_is_never_given_back(seen, plan):
    """A running record whose node lives is drained or left alone, whatever else is wrong."""
    nodes = seen.runtime.nodes if seen.runtime else ()
    alive = {n.node_id: n.status in (NodeStatus.RUNNING, NodeStatus.IDLE) for n in nodes}
    given_back = {i for a in plan.actions if isinstance(a, Terminate) for i in a.instance_ids}
    for record in seen.instances.values():
        if record.state in (S.RAY_RUNNING, S.RAY_STOP_REQUESTED) and alive.get(record.node_id):
            assert record.instance_id not in given_back
        if seen.runtime is None and record.state in STAYING - {S.RAY_INSTALLING}:
            assert record.instance_id not in given_back


ANY_WORLD = [
    no_rule_fails,
    every_write_follows_the_table,
    a_store_takes_the_decision,
    it_depends_on_the_snapshot_alone,
    every_machine_asked_for_is_in_exactly_one_launch,
    effects_and_records_agree,
    nothing_is_done_to_the_head,
    no_machine_gets_a_second_record,
    a_read_only_provider_is_asked_for_nothing,
    an_unreadable_world_ends_nothing,
    the_next_tick_is_sound_too,
]
SOUND_RECORDS = [*ANY_WORLD, purchases_respect_every_limit, a_machine_at_work_is_never_given_back]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(snapshots())
def test_any_world_leaves_every_property_standing(seen):
    plan = reconcile(seen)
    for holds in ANY_WORLD:
        holds(seen, plan)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(snapshots(unique=True, broken=False))
def test_a_world_of_sound_records_leaves_every_property_standing(seen):
    plan = reconcile(seen)
    for holds in SOUND_RECORDS:
        holds(seen, plan)


@pytest.mark.slow
@pytest.mark.parametrize("holds", ANY_WORLD, ids=lambda check: check.__name__)
def test_in_many_worlds(holds):
    for number in range(WORLDS):
        seen = seeded_world(number)
        holds(seen, reconcile(seen))


@pytest.mark.slow
@pytest.mark.parametrize("holds", SOUND_RECORDS, ids=lambda check: check.__name__)
def test_in_many_worlds_of_sound_records(holds):
    for number in range(WORLDS):
        seen = seeded_world(number, unique=True, broken=False)
        holds(seen, reconcile(seen))


def test_the_worlds_are_as_strange_as_they_should_be():
    """The properties mean something only if the worlds make the rules do everything they can do."""
    entered, effects, notes = Counter(), Counter(), 0
    for number in range(WORLDS):
        seen = seeded_world(number)
        plan = reconcile(seen)
        entered.update(state for _, _, states in hops(seen, plan) for state in states)
        effects.update(type(action) for action in plan.actions)
        notes += len(plan.quarantined)
    assert set(entered) == set(S) - {S.UNKNOWN}
    assert set(effects) == {Launch, Terminate, Drain, Install}
    assert min(effects.values()) >= 10
    assert notes >= WORLDS
