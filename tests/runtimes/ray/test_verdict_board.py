"""Verdicts on the board."""

from __future__ import annotations

from muster.cluster.plan import Reason, Subject, Verdict
from muster.runtimes.ray.verdict_board import DemandVerdict, GangVerdict, PublishedVerdicts, board_of


def test_gangs_and_demands_are_shown_and_nothing_else() -> None:
    board = board_of(
        12.5,
        [
            Verdict(subject=Subject.GANG, subject_id="ab", reason=Reason.WAITING_FOR_NODE, count=1),
            Verdict(subject=Subject.GANG, subject_id="ab", reason=Reason.INFEASIBLE, detail="too large"),
            Verdict(subject=Subject.DEMAND, subject_id="{CPU: 1}", reason=Reason.PLACED, count=3),
            Verdict(subject=Subject.NODE, subject_id="i-1", reason=Reason.KEPT_BUSY),
        ],
    )
    assert board == PublishedVerdicts(
        at=12.5,
        gangs={"ab": GangVerdict(reason="infeasible", detail="too large")},
        demands=(DemandVerdict(name="{CPU: 1}", count=3, reason="placed"),),
    )
