"""Check that the simulator finds problems: each test breaks the cluster in one way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.simulation.checkers import VersionsGrow, states_follow_the_table
from tests.simulation.cluster import FaultyCluster
from tests.simulation.money import PurchasesAreExplained
from tests.simulation.run import SeedRun
from tests.support.builders import instance

from muster.cluster import controller, cost
from muster.cluster.model import Instance, StopCause
from muster.cluster.plan import Drain, Plan, Reason, Terminate
from muster.cluster.planner import pack
from muster.cluster.reconcile import RULES, reconcile
from muster.cluster.rules import draft, launch, observe_cloud, observe_nodes
from muster.cluster.rules.draft import is_head
from muster.cluster.states import InstanceState as S
from muster.sim.cluster.build import CommittedPlan


def with_rules(monkeypatch, *, without: str = "", instead=None, also=None) -> None:
    """Let the controller decide by other rules."""
    kept = tuple(rule for rule in RULES if rule.__name__ != without)
    rules = (*kept[:5], *([instead] if instead else []), *kept[5:], *([also] if also else []))
    monkeypatch.setattr(controller, "reconcile", lambda snapshot: reconcile(snapshot, rules))


def is_found(text: str, seeds: int) -> bool:
    """Return whether one of the first seeds has this violation."""
    return any(text in found for seed in range(seeds) for found in SeedRun(seed).to_end().violations)


def test_machines_that_are_never_given_back_are_found(monkeypatch):
    with_rules(monkeypatch, without="terminate")
    assert is_found("not at rest", 6)


def test_requests_that_wait_for_ever_are_found(monkeypatch):
    with_rules(monkeypatch, without="timeouts")
    assert is_found("is REQUESTED for", 12)


def test_demand_without_a_reason_is_found(monkeypatch):
    with_rules(monkeypatch, without="verdicts", also=_only_a_word)
    assert is_found("0 reasons for", 6)


def test_a_rule_that_fails_is_found(monkeypatch):
    def clumsy(draft: object) -> None:
        raise KeyError("gpu")

    with_rules(monkeypatch, also=clumsy)
    assert is_found("rule clumsy failed: KeyError", 1)


def test_a_type_that_is_asked_for_without_a_pause_is_found(monkeypatch):
    monkeypatch.setattr(pack, "is_blocked", lambda health, now: False)
    with_rules(monkeypatch, without="backoff")
    assert is_found("after a refusal was known", 12)


def test_a_busy_node_that_is_given_up_is_found(monkeypatch):
    with_rules(monkeypatch, instead=_end_whatever_runs)
    assert is_found("was given up under", 6)


def test_a_head_that_is_terminated_is_found(monkeypatch):
    with_rules(monkeypatch, also=_end_the_head)
    assert is_found("the head was terminated", 1)


def test_requests_above_a_limit_are_found(monkeypatch):
    with_rules(monkeypatch, also=_wish_for_many)
    assert is_found("were wanted, its maximum is", 1)


def test_a_machine_with_two_records_is_found(monkeypatch):
    with_rules(monkeypatch, also=_adopt_everything_again)
    assert is_found("is owned by 2 live records", 1)


def test_a_machine_without_a_record_is_found(monkeypatch):
    with_rules(monkeypatch, without="observe_cloud")
    assert is_found("has no owner", 1)


def test_a_request_that_is_repeated_although_its_machine_came_is_found(monkeypatch):
    """A node that joins before its machine is listed gets a record of its own: launched again and again."""
    monkeypatch.setattr(observe_nodes, "_waiting", lambda draft, node: None)
    assert is_found("was asked for again, although", 20)


def test_a_record_that_ends_because_one_list_lacks_its_machine_is_found(monkeypatch):
    monkeypatch.setattr(observe_cloud, "_waited", lambda draft, record, limit_s: True)
    assert is_found("its record ended without a call", 10)


def test_somebodys_own_machine_that_is_terminated_is_found(monkeypatch):
    with_rules(monkeypatch, also=_end_what_joined_by_hand)
    assert is_found("a machine that somebody joined by hand was terminated", 10)


def test_somebodys_own_node_that_is_drained_is_found(monkeypatch):
    with_rules(monkeypatch, also=_drain_what_joined_by_hand)
    assert is_found("a node that somebody joined by hand was drained", 10)


def test_machines_that_nobody_wanted_are_found():
    cluster = SeedRun(0).cluster
    cluster.cloud.create(cluster.spec.spec.node_types[1].name, request="r-1")
    assert list(PurchasesAreExplained()(cluster)) == ["1 machines launched, 0 wanted, 0 replaced"]


@pytest.mark.parametrize("over", ["type", "cluster"])
def test_machines_that_are_paid_for_above_a_limit_are_found(over):
    cluster = SeedRun(0).cluster
    cluster.spec.spec, check = (
        _one_type(cluster.spec.spec, most=2 if over == "type" else 9),
        PurchasesAreExplained(),
    )
    name = cluster.spec.spec.node_types[1].name
    for number in range(3):
        machine = cluster.cloud.create(name, request="r-1")
        held = instance(f"i-{number}", S.ALLOCATED, cloud_id=machine.cloud_id, launch_request_id="r-1")
        cluster.store.live[held.instance_id] = held
        wanted = replace(held, history=instance("i", S.REQUESTED).history)
        cluster.store.commits.append(
            CommittedPlan({held.instance_id: None}, _plan(wanted), number, number + 1)
        )
    text = f"3 machines of {name} are paid for, its maximum is 2"
    if over == "cluster":
        text = "4 machines are paid for, the maximum of the cluster is 3"
    assert list(check(cluster)) == [text]
    cluster.cloud.terminate("t-1", [machine.cloud_id])
    cluster.store.commits.clear()
    assert list(check(cluster)) == []


@pytest.mark.parametrize("is_called_back", [True, False])
def test_a_machine_that_comes_for_a_request_which_was_called_back_is_not_above_a_limit(is_called_back):
    """It is ended as soon as it is listed; until then nothing can be done about it."""
    cluster = SeedRun(0).cluster
    cluster.spec.spec, check = _one_type(cluster.spec.spec, most=1), PurchasesAreExplained()
    name = cluster.spec.spec.node_types[1].name
    for number in (1, 2):
        machine = cluster.cloud.create(name, request=f"r-{number}")
        asked = instance(f"i-{number}", S.REQUESTED, node_type=name, launch_request_id=f"r-{number}")
        held = replace(asked, state=S.ALLOCATED, cloud_id=machine.cloud_id)
        record = held if number == 1 else replace(asked, cancelled=is_called_back)
        cluster.store.live[record.instance_id] = record
        cluster.store.commits.append(CommittedPlan({record.instance_id: None}, _plan(record), 0, 1))
    assert (list(check(cluster)) == []) is is_called_back


def test_a_record_of_a_machine_that_is_gone_and_stays_for_long_is_found(monkeypatch):
    monkeypatch.setattr(observe_cloud, "_waited", lambda draft, record, limit_s: False)
    assert is_found("too late after its end", 20)


def test_what_a_new_head_has_forgotten_is_not_bought_and_may_not_grow():
    cluster = SeedRun(0).cluster
    cluster.spec.spec, check = _one_type(cluster.spec.spec, most=1), PurchasesAreExplained()
    name = cluster.spec.spec.node_types[1].name
    _late, came = (cluster.cloud.create(name, request=request) for request in ("r-1", "r-1~2.t-9"))
    asked = instance("i-1", S.REQUESTED, node_type=name, launch_request_id="r-1")
    twice = replace(asked, history=(*asked.history, *instance("i-1", S.QUEUED).history, *asked.history))
    held = replace(twice, state=S.ALLOCATED, cloud_id=came.cloud_id)
    cluster.store.commits.append(CommittedPlan({held.instance_id: None}, _plan(held), 0, 1))
    cluster.store.live[held.instance_id] = held
    assert list(check(cluster)) == []
    cluster.store.commits.clear()
    cluster.store.live[asked.instance_id] = asked
    text = f"2 machines of {name} are paid for, its maximum is 1"
    assert list(check(cluster)) == [text]  # as if the record had let its machine go
    cluster.restored_at.append(0.0)  # an older ledger waits for it again, and for its late twin
    assert (list(check(cluster)), list(check(cluster))) == ([], [])
    cluster.cloud.end(came, "terminated")
    assert list(check(cluster)) == []
    more = replace(held, instance_id="i-2", cloud_id=cluster.cloud.create(name, request="r-2").cloud_id)
    cluster.store.live[more.instance_id] = more
    assert any("its maximum is 1" in found for found in check(cluster))


def test_spend_that_is_counted_twice_is_found(monkeypatch):
    cost_of = draft.cost_of
    monkeypatch.setattr(draft, "cost_of", lambda record, now: 2 * cost_of(record, now))
    assert is_found("the ledger has $", 6)


def test_a_dear_offer_bought_while_a_cheaper_one_can_be_had_is_found(monkeypatch):
    by_price = launch.by_price
    monkeypatch.setattr(launch, "by_price", lambda choices: by_price(choices)[::-1])
    assert is_found("was cheaper and available", 20)


def test_an_offer_that_is_bought_from_while_it_is_backed_off_is_found(monkeypatch):
    offer_states = draft.offer_states
    monkeypatch.setattr(draft, "offer_states", lambda known, health, now, risks: offer_states(known, {}, now))
    assert is_found("which is backed off", 20)


@pytest.mark.slow
def test_an_offer_above_its_own_maximum_is_found(monkeypatch):
    monkeypatch.setattr(draft, "left_of", lambda choices, taken: choices)
    assert is_found("at most 1", 20)


def test_spend_that_ignores_the_terms_of_the_offer_is_found(monkeypatch):
    monkeypatch.setattr(cost, "billed_s", lambda offer, used_s: used_s)
    assert is_found("the ledger has $", 20)


def test_hops_outside_the_table_are_found():
    before = instance("i-1", S.TERMINATED, since=1.0)
    after = replace(before, state=S.RAY_RUNNING, history=(*before.history, *instance("i-1").history))
    cluster = _cluster_with(CommittedPlan({before.instance_id: before}, _plan(after), 1, 2))
    assert list(states_follow_the_table(cluster)) == ["i-1: went from TERMINATED to RAY_RUNNING"]


def test_a_rewritten_history_is_found():
    before = instance("i-1", S.ALLOCATED, since=1.0)
    after = instance("i-1", S.ALLOCATED, since=2.0)
    cluster = _cluster_with(CommittedPlan({before.instance_id: before}, _plan(after), 1, 2))
    assert list(states_follow_the_table(cluster)) == ["i-1: its history was rewritten"]


def test_a_version_that_falls_is_found():
    check = VersionsGrow()
    list(check(_cluster_with(CommittedPlan({}, _plan(), 6, 7))))
    assert list(check(_cluster_with(CommittedPlan({}, _plan(), 6, 6)))) == [
        "the ledger went from version 7 to 6"
    ]


@pytest.fixture(autouse=True)
def _no_log_lines(caplog):
    caplog.set_level("CRITICAL")


def _cluster_with(commit: CommittedPlan) -> FaultyCluster:
    cluster = SeedRun(0).cluster
    cluster.store.commits.append(commit)
    return cluster


def _plan(*writes: Instance) -> Plan:
    return Plan(tick_id="t", at=1.0, writes=writes)


def _one_type(spec, most: int):
    """The head and one type; the cluster may have one machine more than two."""
    return replace(
        spec,
        node_types=(spec.node_types[0], replace(spec.node_types[1], max_nodes=most)),
        max_nodes=3 if most > 3 else None,
    )


def _by_hand(draft):
    return [r for r in draft.in_state(S.RAY_RUNNING) if (r.cloud_id or "").startswith("hand")]


def _end_what_joined_by_hand(draft) -> None:
    for record in _by_hand(draft):
        draft.move(record, S.RAY_STOPPED, "on a whim")
        moved = draft.move(record, S.TERMINATING, "on a whim")
        ids = {"cloud_ids": (moved.cloud_id,), "instance_ids": (moved.instance_id,)}
        draft.act(Terminate(request_id=draft.fresh("t"), **ids))


def _drain_what_joined_by_hand(draft) -> None:
    for record in _by_hand(draft):
        draft.move(record, S.RAY_STOP_REQUESTED, "on a whim")
        ids = {"instance_id": record.instance_id, "node_id": record.node_id}
        draft.act(Drain(request_id=draft.fresh("d"), cause=StopCause.MAX_NODES, deadline_s=1.0, **ids))


def _only_a_word(draft) -> None:
    draft.add_cluster_verdict(Reason.STUCK, "nothing else is said")


def _end_whatever_runs(draft) -> None:
    for record in draft.in_state(S.RAY_RUNNING):
        if not is_head(record):
            draft.move(record, S.TERMINATING, "on a whim")


def _end_the_head(draft) -> None:
    for record in draft.in_state(S.RAY_RUNNING):
        if is_head(record):
            draft.move(record, S.TERMINATING, "on a whim")
            ids, machines = (record.instance_id,), (record.cloud_id,)
            draft.act(Terminate(request_id="whim", cloud_ids=machines, instance_ids=ids))


def _wish_for_many(draft) -> None:
    for _ in range(30):
        draft.create(S.QUEUED, draft.spec.node_types[-1].name, "on a whim")


def _adopt_everything_again(draft) -> None:
    for cloud_id in draft.snapshot.cloud or ():
        draft.create(S.ALLOCATED, draft.spec.node_types[0].name, "on a whim", cloud_id=cloud_id)
