"""Summarise each trial from its facts, for `muster tune ls|show|best`; small enough to keep.

The store turns facts into digests when a snapshot replaces them; readers do so with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from muster.stores.experiment import values
from muster.stores.experiment.codec import (
    ADMITTED,
    CHARGED,
    CREATED,
    DECIDED,
    EXITED,
    FAILED,
    REPORTED,
    REPORTED_SAVED,
    RESIZED,
    SAVED,
    STARTED,
    ExperimentLocation,
    StoredFact,
    checkpoint_of,
    failure_of,
)
from muster.trials.events import TrialFailure
from muster.trials.metrics import tried_config
from muster.trials.model import CheckpointRef
from muster.trials.plugins import PAUSED

# Which fact replaces which: the last of each group is kept.
_GROUPS = {
    CREATED: (CREATED,),
    STARTED: (STARTED,),
    REPORTED: (REPORTED,),
    REPORTED_SAVED: (REPORTED, SAVED),
    SAVED: (SAVED,),
    EXITED: (EXITED,),
    FAILED: (EXITED,),
    RESIZED: (RESIZED,),
    DECIDED: (DECIDED,),
    CHARGED: (CHARGED,),
}
Kept = tuple[bytes, bytes | None]  # the body of a fact, and its pickles
_MADE_AT = 0  # no kind of fact: where a record keeps `Digest.made_at`
_ENCODER = msgspec.msgpack.Encoder()
_RECORD = msgspec.msgpack.Decoder(dict[int, Kept])


class TrialSummary(Struct, frozen=True, kw_only=True):
    """One trial as a reader sees it. Values that are not data show as `Pickled`."""

    trial_id: str
    status: str  # Ray's names
    trial_name: str = ""
    relative_logdir: str = ""
    experiment_tag: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)  # see `tried_config`
    evaluated_params: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)  # the last one
    starts: int = 0
    reports: int = 0
    failures: int = 0
    checkpoint: CheckpointRef | None = None  # the newest in the facts
    failure: TrialFailure | None = None  # of its last exit
    created_at: float | None = None
    started_at: float | None = None  # the last time
    reported_at: float | None = None
    ended_at: float | None = None  # None while it runs
    returned: bool = False  # its code came to its end by itself
    decision: str = ""  # the last one on it: stopped, paused, promoted or copied
    reason: str = ""  # of that decision, in words
    why_suggested: str = ""  # in words of the searcher, if it has any
    made_at: Mapping[int, int] = field(default_factory=dict)  # iterations of checkpoints of a class
    resources: list[Any] | None = None  # as `PlacementGroupFactory.saved` returns them
    cost_usd: float | None = None  # up to its last exit or result; None: no price was known


class Digest:
    """The last fact of each kind, and counts."""

    __slots__ = ("failures", "kept", "made_at", "reports", "starts", "status", "trial_id")

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
        self.status = ""  # nothing known
        self.starts = self.reports = self.failures = 0
        self.kept: dict[int, Kept] = {}
        self.made_at: dict[int, int] = {}  # iterations of checkpoints by number, but for reported ones

    def note(self, fact: StoredFact) -> None:
        """Add one more fact."""
        kind, _, body, pickles, reports = fact
        if kind in (REPORTED, REPORTED_SAVED):
            self.reports += reports
        elif kind in (CREATED, ADMITTED, RESIZED, STARTED):
            self.starts += kind == STARTED
            self.status = "RUNNING" if kind == STARTED else "PENDING"
            self.kept.pop(EXITED, None)
        elif kind in (EXITED, FAILED):
            # A trial that waits for a retry looks failed until it is admitted again, unless the core adds
            # the status when it saves.
            self.status = "ERROR" if kind == FAILED else self._status_at_exit(body, pickles)
            self.failures += kind == FAILED
        for group in _GROUPS.get(kind, ()):
            self.kept[group] = (body, pickles)
        if kind == SAVED:
            _, index, metrics = values.decode(body, pickles)[1]
            iteration = metrics.get("training_iteration")
            if type(iteration) is int:
                self.made_at[index] = iteration

    def _status_at_exit(self, body: bytes, pickles: bytes | None) -> str:
        """Return the status of a trial whose process was taken away, or whose code returned."""
        if DECIDED not in self.kept or values.decode(*self.kept[DECIDED])[1] != PAUSED:
            return "TERMINATED"
        return "TERMINATED" if values.decode(body, pickles)[2] else "PAUSED"

    def after(self, earlier: Digest) -> Digest:
        """Return this digest with what an earlier part adds."""
        merged = Digest(self.trial_id)
        merged.kept = {**earlier.kept, **self.kept}
        merged.made_at = {**earlier.made_at, **self.made_at}
        if self.status in ("PENDING", "RUNNING"):
            merged.kept.pop(EXITED, None)
        merged.starts = earlier.starts + self.starts
        merged.reports = earlier.reports + self.reports
        merged.failures = earlier.failures + self.failures
        merged.status = self.status or earlier.status
        if merged.status == "TERMINATED" and EXITED in self.kept and STARTED not in self.kept:
            merged.status = merged._status_at_exit(*self.kept[EXITED])  # `earlier` may hold the decision
        return merged

    def record(self) -> bytes:
        """Return what a row holds besides the counts."""
        extra = {_MADE_AT: (_ENCODER.encode(self.made_at), None)} if self.made_at else {}
        return _ENCODER.encode({**extra, **dict(sorted(self.kept.items()))})

    @classmethod
    def from_row(cls, trial_id: str, status: str, counts: tuple[int, int, int], record: bytes) -> Digest:
        """Return a digest from a row; ValueError when the record is damaged."""
        digest = cls(trial_id)
        digest.status = status
        digest.starts, digest.reports, digest.failures = counts
        digest.kept = _RECORD.decode(record)
        if _MADE_AT in digest.kept:
            digest.made_at = msgspec.msgpack.decode(digest.kept.pop(_MADE_AT)[0], type=dict[int, int])
        return digest

    def summary(self, place: ExperimentLocation) -> TrialSummary:
        """Return the summary for users; ValueError when the record is damaged."""
        made = self._body(CREATED, 6, 8)
        reported = self._body(REPORTED, 3)
        exited = self._body(EXITED, 4)
        decided = self._body(DECIDED, 3)
        result = self.last_result(reported[1] or {}, reported[0])
        body = self._body(SAVED, 3)  # a report holds the checkpoint last, the answer to a save second
        checkpoint = checkpoint_of(body[2] if isinstance(body[1], Mapping) else body[1], place)
        return TrialSummary(
            trial_id=self.trial_id,
            status=self.status or "PENDING",
            trial_name=made[4] or "",
            relative_logdir=made[5] or "",
            experiment_tag=made[3] or "",
            config=tried_config(result, made[1] or {}),
            evaluated_params=made[2] or {},
            result=result,
            starts=self.starts,
            reports=self.reports,
            failures=self.failures,
            checkpoint=checkpoint,
            failure=failure_of(exited[1]),
            created_at=made[0],
            started_at=self._body(STARTED, 3)[0],
            reported_at=reported[0],
            ended_at=exited[0],
            returned=bool(exited[2]),
            decision=decided[1] or "",
            reason=decided[2] or "",
            why_suggested=made[7] if len(made) > 7 else "",
            made_at=self.made_at,
            resources=self._body(RESIZED, 2, 3)[1] or (made[6] if len(made) > 6 else None),
            cost_usd=self._cost(reported[1] or {}, reported[0]),
        )

    def _cost(self, last: Mapping[str, Any], reported_at: float | None) -> float | None:
        """Return the newest known: of the last exit, or of a result after it."""
        at, charged = self._body(CHARGED, 2)
        if at is not None and at >= (reported_at or at):
            return None if charged is None else float(charged)
        found = last.get("cost_usd")
        return found if isinstance(found, float) else None

    def last_result(self, last: Mapping[str, Any], at: float | None) -> Mapping[str, Any]:
        """Return the last result; after a restart, the one at the checkpoint the trial continues from."""
        if self.starts < 2:
            return last
        started_at = self._body(STARTED, 3)[0]
        saved_with = self._body(SAVED, 3)[1]
        if at is None or started_at is None or started_at < at or not isinstance(saved_with, Mapping):
            return last
        is_behind = saved_with.get("training_iteration", math.inf) < last.get("training_iteration", 0)
        return saved_with if is_behind else last

    def _body(self, kind: int, length: int, most: int = 0) -> list[Any]:
        if kind not in self.kept:
            return [None] * length
        body, pickles = self.kept[kind]
        value = values.decode(body, pickles)
        if not isinstance(value, list) or not length <= len(value) <= max(length, most):
            raise ValueError(f"trial {self.trial_id}: a fact of kind {kind} is damaged")
        return value
