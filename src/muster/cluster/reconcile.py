"""Decide one tick: applies the ordered list of rules to a snapshot. A separate layer, without ports.

The order: what the world shows, what expired, what the cloud will take, what the planner wants, what follows
from it, why.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from muster.base.untrusted import error_text
from muster.cluster.plan import Plan
from muster.cluster.rules.capacity import capacity
from muster.cluster.rules.consolidate import consolidate
from muster.cluster.rules.draft import Draft
from muster.cluster.rules.effects import idle_cluster, install, terminate
from muster.cluster.rules.launch import launch
from muster.cluster.rules.limit_launches import defer_launches, enforce_budget
from muster.cluster.rules.notices import notices
from muster.cluster.rules.observe_cloud import observe_cloud
from muster.cluster.rules.observe_nodes import observe_nodes
from muster.cluster.rules.report import report, verdicts
from muster.cluster.rules.resize import resize
from muster.cluster.rules.scale import scale_down, scale_up
from muster.cluster.rules.timeouts import backoff, repair, timeouts
from muster.cluster.snapshot import Snapshot

Rule = Callable[[Draft], None]

RULES: tuple[Rule, ...] = (
    repair,
    observe_cloud,
    observe_nodes,
    timeouts,
    notices,
    backoff,
    resize,
    capacity,
    defer_launches,
    consolidate,
    enforce_budget,
    scale_down,
    scale_up,
    terminate,
    launch,
    install,
    idle_cluster,
    report,
    verdicts,
)


_OBSERVES = {"observe_cloud": "cloud", "observe_nodes": "runtime"}  # what each mirrors, a field of Snapshot


def reconcile(snapshot: Snapshot, rules: tuple[Rule, ...] = RULES) -> Plan:
    """Decide one tick. The plan is a function of the snapshot alone; no snapshot makes it raise."""
    draft = Draft(snapshot)
    for rule in rules:
        draft = _attempt(rule, draft)
    return draft.plan()


def _attempt(rule: Rule, draft: Draft) -> Draft:
    """A rule that fails is undone and reported; the others still run.

    When an observing rule failed, the others must not take what was not observed for what is not there.
    """
    trial = draft.fork()
    try:
        rule(trial)
    except Exception as error:  # noqa: BLE001 - one rule's bug must not stop the loop
        draft.quarantine(f"rule {rule.__name__}", error_text(error))
        unseen = _OBSERVES.get(rule.__name__)
        if unseen is not None:
            draft.snapshot = replace(draft.snapshot, **{unseen: None})
        return draft
    return trial
