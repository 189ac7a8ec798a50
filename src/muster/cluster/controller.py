"""ClusterController.tick(): observe, reconcile, commit, execute. The whole loop; it decides nothing."""

from __future__ import annotations

import logging

from muster.base.ambient import Ambient
from muster.base.log import OnChange, fields
from muster.cluster.execute import Executor
from muster.cluster.failure_inbox import Inbox
from muster.cluster.observe import Observer
from muster.cluster.plan import Plan
from muster.cluster.ports import Ledger, Ports
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Quarantined
from muster.errors import VersionConflict

__all__ = ["ClusterController", "Ports"]

logger = logging.getLogger(__name__)


class ClusterController:
    """Drives one cluster. Everything durable is in the store, so a new controller may take over any time."""

    def __init__(self, ports: Ports, ambient: Ambient) -> None:
        self._ports = ports
        self._ambient = ambient
        self._inbox = Inbox()
        self._observer = Observer(ports, ambient, self._inbox)
        self._executor = Executor(ports, self._inbox)
        self._changes = OnChange(logger)
        self._set_aside: set[str] = set()

    def tick(self) -> Plan:
        """One round. Without a usable ledger nothing is decided or done; it is said, and tried again."""
        try:
            seen, ledger = self._observer.observe()
            plan = reconcile(seen)
            self._inbox.offer(seen.version)
            version = self._ports.store.commit(seen.version, plan)
            self._inbox.clear()
            self._carry_out(plan, ledger)
        except VersionConflict as error:
            self._inbox.settle(error.expected)  # nothing was written: everything in it is still to be decided
            return self._without_ledger(error)
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the next tick tries again
            return self._without_ledger(error)
        self._publish(version, plan)
        self._tell(plan)
        return plan

    def _carry_out(self, plan: Plan, ledger: Ledger) -> None:
        """What an earlier tick, or an earlier life, could not hand over goes first."""
        known = {action.request_id for action in plan.actions}
        leftover = [action for action in ledger.outbox if action.request_id not in known]
        actions = [*leftover, *plan.actions]
        if actions:
            after = {**ledger.instances, **{i.instance_id: i for i in plan.writes}}
            self._executor.execute(actions, after)

    def _without_ledger(self, error: Exception) -> Plan:
        self._changes.log(logging.ERROR, "store", f"the ledger could not be used: {error}")
        note = Quarantined(source="ledger", message=f"{type(error).__name__}: {error}")
        now = self._ambient.clock.now()
        return Plan(tick_id=self._ambient.ids.fresh("t"), at=now, quarantined=(note,))

    def _publish(self, version: int, plan: Plan) -> None:
        try:
            self._ports.nodes.publish(version, plan.report)
        except Exception as error:  # noqa: BLE001 - a runtime that cannot listen must not stop the loop
            self._changes.log(
                logging.WARNING, "publish", f"report not delivered: {type(error).__name__}: {error}"
            )

    def _tell(self, plan: Plan) -> None:
        if plan.writes or plan.actions:
            logger.info("tick %s", fields(plan.fields()))
        for note in plan.quarantined:
            self._changes.log(logging.WARNING, note.source, f"set aside: {note.source}: {note.message}")
        sources = {note.source for note in plan.quarantined}
        for gone in self._set_aside - sources:
            self._changes.forget(gone)  # when it comes back, it is news again
        self._set_aside = sources
