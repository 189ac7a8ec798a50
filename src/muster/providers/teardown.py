"""End machines of a cluster through its provider, and looks until none is listed.

For `muster down`: every worker, known or not; the head is left to the caller. For `muster gc`: named ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from muster.base.clock import Clock
from muster.base.ids import CloudId, IdSource, RequestId
from muster.base.text import counted
from muster.base.untrusted import error_text
from muster.cluster.model import NodeKind
from muster.cluster.ports import CloudProvider

QUIET_S = 2.0  # an empty list is looked at again: a machine may have been on its way
AGAIN_S = 20.0  # a machine that is still listed is terminated again after this long
REFUSED_S = 2.0  # and after a refusal
LOOK_S = 0.25


@dataclass(frozen=True)
class EndedMachines:
    """What became of a cluster's machines; `left` has a reason for each that is left."""

    ended: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)


NO_MACHINES = EndedMachines()


class WorkerTeardown:
    """A WorkerTeardown terminates, lists and terminates again, until nothing is listed or time is up."""

    def __init__(
        self,
        provider: CloudProvider,
        clock: Clock,
        ids: IdSource,
        *,
        known: Collection[CloudId],
        only: Collection[CloudId] | None = None,
        keep: Mapping[str, int] = {},
    ) -> None:
        """Take the ids of the ledger's live records as `known`: theirs are ended whatever their tags are.

        With `only` these are ended, heads among them, and no others. Of each type, `keep` workers are left.
        """
        self._provider, self._clock, self._ids, self._known = provider, clock, ids, known
        self._only, self._keep = only, keep
        self._due: dict[CloudId, float] = {}  # id -> when it is terminated (again)
        self._reasons: dict[CloudId, str] = {}
        self._list_problem = ""

    def run(
        self, report: Callable[[str], None], patience_s: float, quiet_s: float = QUIET_S
    ) -> EndedMachines:
        """Return when no worker has been listed for `quiet_s`, or when time is up; reports what changes."""
        give_up = self._clock.monotonic() + patience_s
        workers: list[CloudId] | None = None
        empty_since, reported = float("inf"), 0
        while (now := self._clock.monotonic()) < give_up:
            workers = self._listed()
            if workers is None or workers:
                empty_since = float("inf")
            elif now - (empty_since := min(empty_since, now)) >= quiet_s:
                return EndedMachines(ended=tuple(self._due))
            if workers:
                if len(workers) != reported:
                    report(f"terminating {counted(len(workers), 'machine')} of the provider")
                reported = len(workers)
                self._terminate([one for one in workers if self._due.get(one, now) <= now], now)
            self._note_refusals(now)
            self._clock.sleep(LOOK_S)
        return self._not_all(workers)

    def _not_all(self, workers: list[CloudId] | None) -> EndedMachines:
        left = dict.fromkeys(self._known) if workers is None else dict.fromkeys(workers)
        fallback = "still listed" if workers is not None else f"the list failed: {self._list_problem}"
        return EndedMachines(
            ended=tuple(one for one in self._due if one not in left),
            left={one: self._reasons.get(one, fallback) for one in left} or {"(not known)": fallback},
        )

    def _listed(self) -> list[CloudId] | None:
        try:
            found = self._provider.list_instances()
        except Exception as error:  # noqa: BLE001 - listed again in a moment
            self._list_problem = error_text(error)
            return None
        if self._only is not None:
            return [cloud_id for cloud_id in found if cloud_id in self._only]
        left = Counter(self._keep)
        workers = []
        for cloud_id, machine in sorted(found.items()):
            is_known = machine.kind is NodeKind.UNMANAGED and cloud_id in self._known
            if machine.kind is NodeKind.WORKER and left[machine.node_type] > 0:
                left[machine.node_type] -= 1
            elif machine.kind is NodeKind.WORKER or is_known:
                workers.append(cloud_id)
        return workers

    def _terminate(self, cloud_ids: list[CloudId], now: float) -> None:
        if not cloud_ids:
            return
        self._due.update(dict.fromkeys(cloud_ids, now + AGAIN_S))
        try:
            self._provider.terminate(RequestId(self._ids.fresh("t")), cloud_ids)
        except Exception as error:  # noqa: BLE001 - tried again, and told in the end
            self._refused(dict.fromkeys(cloud_ids, error_text(error)), now)

    def _note_refusals(self, now: float) -> None:
        try:
            failures = self._provider.poll_terminate_failures()
        except Exception:  # noqa: BLE001 - what is still listed is terminated again
            return
        self._refused({one.cloud_id: f"{one.kind.value}: {one.message}" for one in failures}, now)

    def _refused(self, reasons: Mapping[CloudId, str], now: float) -> None:
        self._reasons.update(reasons)
        self._due.update(dict.fromkeys(reasons, now + REFUSED_S))
