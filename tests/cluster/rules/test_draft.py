"""The working copy: hops are checked, ids are numbered, and a fork can be dropped."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import S, record, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW

from muster.cluster.model import StatusChange
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.rules.draft import Draft
from muster.cluster.snapshot import Memory, TypeHealth


def test_a_hop_of_the_table_is_taken_and_written_down():
    draft = Draft(world([record("a", S.ALLOCATED, since=1.0)]))
    moved = draft.move(draft.instances["a"], S.RAY_RUNNING, "it came", node_id="n-a")
    assert moved is draft.instances["a"]
    assert (moved.state, moved.node_id) == (S.RAY_RUNNING, "n-a")
    assert moved.history[1:] == (StatusChange(S.RAY_RUNNING, NOW, "it came"),)
    assert draft.plan().writes == (moved,)


def test_a_hop_that_is_not_in_the_table_sets_the_record_aside_with_its_story():
    draft = Draft(world([record("a", S.ALLOCATED)]))
    assert draft.move(draft.instances["a"], S.QUEUED) is None
    (note,) = draft.plan().quarantined
    assert note.source.split() == ["record", "a"]
    assert_line("cluster", "invalid transition", note.message)
    assert draft.plan().writes == ()


def test_hops_start_from_where_the_record_is_now():
    """A rule may hold a record that an earlier step has moved on."""
    draft = Draft(world([record("a", S.RAY_RUNNING)]))
    stale = draft.instances["a"]
    draft.move(stale, S.RAY_STOPPED)
    draft.move(stale, S.TERMINATING)
    assert [c.state for c in draft.instances["a"].history] == [S.RAY_RUNNING, S.RAY_STOPPED, S.TERMINATING]
    assert len(draft.plan().writes) == 1


@pytest.mark.parametrize("state", list(S))
def test_records_begin_only_where_they_may(state):
    draft = Draft(world())
    if state in (S.QUEUED, S.ALLOCATED, S.TERMINATING):
        assert draft.create(state, "cpu", "new").instance_id == "t-1-i1"
    else:
        with pytest.raises(ValueError, match=f"{state.name}"):
            draft.create(state, "cpu", "new")


def test_states_are_indexed_through_every_change():
    draft = Draft(world([record("a", S.ALLOCATED), record("b", S.ALLOCATED)]))
    draft.move(draft.instances["a"], S.RAY_RUNNING, node_id="n-a")
    draft.create(S.QUEUED, "cpu", "new")
    draft.amend(draft.instances["b"], internal_ip="1.1.1.1")
    assert [r.instance_id for r in draft.in_state(S.ALLOCATED)] == ["b"]
    assert [r.instance_id for r in draft.in_state(S.QUEUED, S.RAY_RUNNING)] == ["t-1-i1", "head", "a"]
    assert (len(draft.in_state(S.RAY_RUNNING)), len(draft.in_state(S.TERMINATED))) == (2, 0)
    draft.set_aside(draft.instances["b"], "odd")
    assert (len(draft.in_state(S.ALLOCATED)), "b" in draft.instances) == (0, False)


def test_dropping_a_fork_undoes_everything():
    memory = Memory(health={"cpu": TypeHealth()}, ended_nodes={"n": 1.0})
    draft = Draft(world([record("a", S.ALLOCATED)], memory=memory))
    before = draft.plan()
    fork = draft.fork()
    fork.move(fork.instances["a"], S.TERMINATING)
    fork.create(S.QUEUED, "cpu", "new")
    fork.decided.health.clear()
    fork.decided.ended_nodes["m"] = 2.0
    fork.nodes = {"n": None}
    fork.quarantine("x", "y")
    fork.add_cluster_verdict(Reason.READ_ONLY, "z")
    fork.planned.may_scale = False
    assert draft.plan() == before
    allocated, queued = draft.in_state(S.ALLOCATED), draft.in_state(S.QUEUED)
    assert (len(allocated), queued, draft.nodes, draft.planned.may_scale) == (1, [], {}, True)
    assert draft.fresh("i") == "t-1-i1"


def test_records_are_copied_at_the_first_change_and_neither_the_snapshot_nor_the_original_sees_it():
    seen = world([record("a", S.ALLOCATED), record("b", S.ALLOCATED)])
    draft = Draft(seen)
    assert [i.instance_id for i in draft.in_state(S.ALLOCATED)] == ["a", "b"]
    fork = draft.fork()
    assert fork.instances is seen.instances
    fork.move(fork.instances["a"], S.TERMINATING)
    fork.amend(fork.instances["b"], internal_ip="1.1.1.1")
    assert [i.internal_ip for i in fork.in_state(S.TERMINATING, S.ALLOCATED)] == ["", "1.1.1.1"]
    assert [i.internal_ip for i in draft.in_state(S.TERMINATING, S.ALLOCATED)] == ["", ""]
    assert seen.instances["a"].state is S.ALLOCATED
    again = fork.fork()
    again.set_aside(again.instances["b"], "odd")
    assert (again.in_state(S.ALLOCATED), len(fork.in_state(S.ALLOCATED))) == ([], 1)
    assert "b" in fork.instances


def test_verdicts_are_dated_from_when_they_were_first_given():
    stuck = Verdict(subject=Subject.DEMAND, subject_id="d", reason=Reason.INFEASIBLE)
    node = Verdict(subject=Subject.NODE, subject_id="i", reason=Reason.KEPT_BUSY)
    placed = Verdict(subject=Subject.DEMAND, subject_id="e", reason=Reason.PLACED)
    memory = Memory(verdict_since={"demand/d/infeasible": 7.0, "demand/gone/infeasible": 1.0})
    draft = Draft(world(memory=memory))
    draft.add_verdicts(stuck, node, placed)
    draft.add_cluster_verdict(Reason.READ_ONLY, "")
    plan = draft.plan()
    assert [v.since for v in plan.verdicts] == [7.0, None, None, NOW]
    assert plan.memory.verdict_since == {"demand/d/infeasible": 7.0, "cluster//read-only": NOW}
