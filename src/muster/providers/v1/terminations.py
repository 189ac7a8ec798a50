"""TerminationDesk: terminations of the port as calls of a v1 provider, on a pool of their own.

Used by V1Adapter only. What matters after a broken call is not the call but which machines are still there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind, TerminateFailure
from muster.providers.v1.calls import V1Calls
from muster.providers.v1.failures import BROKEN, kind_of, message_of
from muster.providers.v1.thread_pools import Pool
from muster.providers.v1.v1_requests import Requests


class TerminationDesk:
    """Takes ids at once and ends them on its pool."""

    def __init__(self, calls: V1Calls, pool: Pool, clock: Clock, given_up_s: float) -> None:
        self.requests: Requests[TerminateFailure] = Requests()
        self._calls, self._pool, self._clock, self._given_up_s = calls, pool, clock, given_up_s
        self._ending: dict[CloudId, float] = {}  # id -> when its call was made
        self._lock = threading.Lock()

    def take(self, request_id: RequestId, cloud_ids: Iterable[CloudId]) -> None:
        """A request id taken before changes nothing. Ids already on their way are left to that call."""
        wanted = [cloud_id for cloud_id in dict.fromkeys(cloud_ids) if cloud_id]
        limit = self._calls.max_terminate or max(len(wanted), 1)
        calls = [wanted[start : start + limit] for start in range(0, len(wanted), limit)]
        if not self.requests.take(request_id, jobs=len(calls)):
            return
        for ids in calls:
            try:
                self._pool.submit(lambda ids=ids: self._end(request_id, ids))  # type: ignore[misc]
            except RuntimeError:
                self.requests.drop(request_id)
                raise

    def _end(self, request_id: RequestId, wanted: Sequence[CloudId]) -> None:
        ids = self._not_yet_ending(wanted)
        try:
            if ids:
                self._calls.terminate(ids)
        except BROKEN as error:
            self._sort_out(request_id, ids, error)
        finally:
            self._forget(ids)
            self.requests.job_done(request_id)

    def _not_yet_ending(self, ids: Sequence[CloudId]) -> list[CloudId]:
        """Without those another call is ending right now; one that seems to hang is not waited for."""
        now = self._clock.monotonic()
        with self._lock:
            mine = [c for c in ids if now - self._ending.get(c, float("-inf")) > self._given_up_s]
            self._ending.update(dict.fromkeys(mine, now))
        return mine

    def _sort_out(self, request_id: RequestId, ids: Sequence[CloudId], error: BaseException) -> None:
        """A batch that broke: those still there are tried one by one, so that each is told its own truth."""
        errors = dict.fromkeys(self._still_there(ids), error)
        if len(ids) > 1 and kind_of(error) is not FailureKind.THROTTLED:
            errors = self._one_by_one(errors)
            errors = {cloud_id: errors[cloud_id] for cloud_id in self._still_there(errors)}
        for cloud_id, reason in errors.items():
            failure = TerminateFailure(cloud_id=cloud_id, kind=kind_of(reason), message=message_of(reason))
            self.requests.fail(request_id, failure)

    def _one_by_one(self, ids: Iterable[CloudId]) -> dict[CloudId, BaseException]:
        failed: dict[CloudId, BaseException] = {}
        for cloud_id in ids:
            try:
                self._calls.terminate([cloud_id])
            except BROKEN as error:
                failed[cloud_id] = error
        return failed

    def _still_there(self, ids: Iterable[CloudId]) -> list[CloudId]:
        """In the order given; all of them when nobody can say."""
        asked = list(ids)
        if not asked:
            return []
        try:
            living = self._calls.living(asked)
        except BROKEN:
            return asked
        return [cloud_id for cloud_id in asked if cloud_id in living]

    def _forget(self, ids: Iterable[CloudId]) -> None:
        with self._lock:
            for cloud_id in ids:
                self._ending.pop(cloud_id, None)
