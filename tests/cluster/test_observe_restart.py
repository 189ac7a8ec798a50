"""What a restart does to time, and a cloud to ids: durations that nobody saw pass, ids in another case."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace
from tests.cluster.fakes import START, Stage
from tests.cluster.worlds import (
    HEAD_MACHINE,
    HEAD_NODE,
    S,
    after,
    machine,
    node,
    past,
    record,
    spec,
    world,
)
from tests.support.builders import NOW, node_type

from muster.base.clock import Boot
from muster.cluster.budget_policy import Budget
from muster.cluster.controller import ClusterController
from muster.cluster.cost import spend_so_far
from muster.cluster.model import RuntimeReport
from muster.cluster.observe import FailureInbox, Observer
from muster.cluster.plan import Drain, Plan
from muster.cluster.ports import Ledger
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import BudgetPeriod, Memory, ProviderTraits
from muster.stores.ledger.backup import settled

MONTH_S = 30 * 86_400.0


def notes(seen):
    return [note.source for note in seen.quarantined]


def booted(stage, boot_id="b-1", elapsed_s=50.0):
    """The observer of a process that starts so long after this boot."""
    boot = Boot(boot_id, lambda: stage.clock.monotonic() + elapsed_s)
    return Observer(stage.ports, dataclasses.replace(stage.ambient, boot=boot), FailureInbox())


def remembered(stage, seen):
    """The ledger after the plan of this snapshot."""
    stage.store.commit(seen.version, reconcile(seen))


@pytest.mark.parametrize(("head", "version"), [("n-head", None), ("n-new", 8)])
def test_a_new_process_ignores_a_report_older_than_what_its_ledger_follows_unless_the_head_is_new(
    head, version
):
    stage = Stage()
    stage.provider.answers["list_instances"] = {HEAD_MACHINE.cloud_id: HEAD_MACHINE}
    stage.runtime.answers["read"] = RuntimeReport(version=9, nodes=(HEAD_NODE,))
    remembered(stage, booted(stage).observe()[0])
    stage.runtime.answers["read"] = RuntimeReport(version=8, nodes=(replace(HEAD_NODE, node_id=head),))
    seen = booted(stage).observe()[0].runtime
    assert (seen and seen.version) == version


@pytest.mark.parametrize("jump_s", [MONTH_S, -4000.0])
def test_a_process_of_the_same_boot_continues_the_time_of_the_one_before(jump_s):
    stage = Stage()
    remembered(stage, booted(stage).observe()[0])
    stage.clock.advance(60.0)
    stage.clock.jump(jump_s)
    seen, _ = booted(stage).observe()
    assert (seen.now, seen.unseen_s, notes(seen)) == (START + 60.0, 0.0, ["clock"])


def test_on_another_boot_what_only_the_wall_clock_shows_is_not_charged_beyond_an_hour():
    stage = Stage()
    remembered(stage, booted(stage).observe()[0])
    stage.clock.jump(MONTH_S)
    eye = booted(stage, "b-2", 3.0)
    seen, _ = eye.observe()
    assert (seen.now, seen.unseen_s, notes(seen)) == (START + MONTH_S, MONTH_S - 3600.0, ["clock"])
    assert eye.observe()[0].unseen_s == MONTH_S - 3600.0  # nothing was written down yet
    remembered(stage, eye.observe()[0])
    assert eye.observe()[0].unseen_s == 0.0


def test_a_month_that_nobody_saw_pass_uses_up_no_budget():
    serving = record("a", S.RAY_RUNNING, price_per_hour=4.0, history=past((S.ALLOCATED, NOW - MONTH_S)))
    priced = node_type("cpu", {"CPU": 1}, price_per_hour=4.0)
    wishes = spec(priced, budget=Budget(total=50.0))
    period = BudgetPeriod(since=NOW - MONTH_S)
    memory = Memory(budget_period=period)
    jumped = world([serving], spec=wishes, memory=memory, unseen_s=MONTH_S - 3600.0)
    plan = reconcile(jumped)
    assert spend_so_far(after(jumped, plan).values(), plan.memory, NOW) == pytest.approx(4.0)
    assert not [action for action in plan.actions if isinstance(action, Drain)]
    assert [a for a in reconcile(replace(jumped, unseen_s=0.0)).actions if isinstance(a, Drain)]


def test_a_copy_of_a_ledger_is_charged_for_an_hour_of_what_only_the_clock_shows():
    serving = record("a", S.RAY_RUNNING, price_per_hour=4.0, history=past((S.ALLOCATED, START)))
    ledger = Ledger(instances={"a": serving}, newest_at=START)
    plan = settled(ledger, "t-9", START + MONTH_S)
    left = {**ledger.instances, **{one.instance_id: one for one in plan.writes}}
    assert spend_so_far(left.values(), plan.memory, plan.at) == pytest.approx(4.0)


# Clouds that ignore the case of ids.


def test_a_list_in_upper_case_shows_the_same_machines_and_calls_spell_ids_as_listed():
    stage = Stage()
    stage.provider.answers["traits"] = ProviderTraits(ids_ignore_case=True)
    known = record("a", S.RAY_STOPPED, history=past((S.ALLOCATED, START - 99), (S.RAY_STOPPED, START - 9)))
    stage.store.commit(0, Plan(tick_id="t-0", at=START, writes=(known,)))
    shouted = {name.upper(): replace(machine(name[2:]), cloud_id=name.upper()) for name in ("c-a", "c-b")}
    stage.provider.answers["list_instances"] = {**shouted, "C-HEAD": replace(HEAD_MACHINE, cloud_id="C-HEAD")}
    stage.runtime.nodes = [replace(HEAD_NODE, cloud_id="C-Head"), replace(node("b"), cloud_id="C-B")]
    result = ClusterController(stage.ports, stage.ambient).tick()
    assert {one.cloud_id: one.state for one in result.records} == {
        "c-head": S.RAY_RUNNING,
        "c-a": S.TERMINATING,
        "c-b": S.RAY_RUNNING,
    }
    assert [ids for _, ids in stage.provider.called("terminate")] == [("C-A",)]
