"""Publishes the planner's verdicts in the cluster's key-value store: the monitor writes, RayEngine reads.

So a trial that can never be placed fails fast with the reason, on whatever machine its driver runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, field

from muster.cluster.plan import Subject, Verdict
from muster.runtimes.ray.client import GcsClient

SPACE = "__muster"
KEY = "verdicts"


class GangVerdict(Struct, frozen=True, kw_only=True):
    reason: str  # a value of cluster.plan.Reason
    detail: str = ""


class DemandVerdict(Struct, frozen=True, kw_only=True):
    name: str  # the shape and its selectors, as `parse.demand_name` writes them
    count: int
    reason: str
    detail: str = ""


class PublishedVerdicts(Struct, frozen=True, kw_only=True):
    """A PublishedVerdicts holds the verdicts of one tick, `at` seconds since the epoch."""

    at: float = 0.0
    gangs: Mapping[str, GangVerdict] = field(default_factory=dict)  # by placement group id, hex
    demands: tuple[DemandVerdict, ...] = ()


def board_of(at: float, verdicts: Iterable[Verdict]) -> PublishedVerdicts:
    """Returns the verdicts; of a gang the worst, because they come from "placed" to "infeasible"."""
    gangs: dict[str, GangVerdict] = {}
    demands: list[DemandVerdict] = []
    for one in verdicts:
        reason, detail = one.reason.value, one.detail
        if one.subject is Subject.GANG:
            gangs[one.subject_id] = GangVerdict(reason=reason, detail=detail)
        elif one.subject is Subject.DEMAND:
            demand = DemandVerdict(name=one.subject_id, count=one.count, reason=reason, detail=detail)
            demands.append(demand)
    return PublishedVerdicts(at=at, gangs=gangs, demands=tuple(demands))


class VerdictWriter:
    """A VerdictWriter writes when the verdicts changed, and now and then to show that the monitor lives."""

    def __init__(self, client: GcsClient, refresh_s: float = 10.0) -> None:
        self._client = client
        self._refresh_s = refresh_s
        self._written = PublishedVerdicts(at=float("-inf"))
        self._generation = 0

    def write(self, at: float, verdicts: Iterable[Verdict]) -> None:
        """Writes the verdicts if necessary; raises an EngineError when the GCS is away."""
        board = board_of(at, verdicts)
        same = (board.gangs, board.demands) == (self._written.gangs, self._written.demands)
        known = self._generation == self._client.generation
        if same and known and 0 <= at - self._written.at < self._refresh_s:
            return
        self._client.kv_put(KEY, msgspec.json.encode(board), SPACE)
        self._written, self._generation = board, self._client.generation


def read_board(client: GcsClient) -> PublishedVerdicts:
    """Returns the published verdicts; empty ones when no monitor writes there."""
    text = client.kv_get(KEY, SPACE)
    if text is None:
        return PublishedVerdicts()
    try:
        return msgspec.json.decode(text, type=PublishedVerdicts)
    except msgspec.DecodeError:  # written by another version of muster: as good as none
        return PublishedVerdicts()
