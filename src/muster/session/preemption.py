"""Defines PreemptionInfo: what is announced about the machine on which a trial runs. Pure, imports nothing.

Engines make it, the trial core decides by it, and training code reads it with `get_preemption_info`.
"""

from __future__ import annotations

from typing import NamedTuple

EMPTIED = "consolidation"  # the node's trials are to go on elsewhere, because that costs less


class PreemptionInfo(NamedTuple):
    """A PreemptionInfo announces that a machine will be taken, with Ray Train's names where it has one.

    Example:
        >>> PreemptionInfo(deadline=1700000120.5, kind="interruption", node_id="ab").deadline_ms
        1700000120500
    """

    deadline: float | None = None  # seconds since the epoch; None: no time was named
    kind: str = "drain"  # interruption, maintenance, rebalance, EMPTIED; drain: somebody wants it to be empty
    source: str = ""  # where it was read, for people
    node_id: str = ""

    @property
    def deadline_ms(self) -> int | None:
        return None if self.deadline is None else round(self.deadline * 1000)

    @property
    def preempted_node_ids(self) -> list[str]:
        return [self.node_id] if self.node_id else []

    @property
    def preempted_ranks(self) -> list[int]:
        """The rank of a trial, which is one process, is always 0."""
        return [0]

    @property
    def preempted_node_to_ranks(self) -> dict[str, list[int]]:
        return dict.fromkeys(self.preempted_node_ids, self.preempted_ranks)

    def shifted(self, seconds: float) -> PreemptionInfo:
        """Returns the same by a clock that is so far ahead."""
        return self if self.deadline is None else self._replace(deadline=self.deadline + seconds)

    def left_s(self, now: float) -> float:
        """Returns the seconds until the deadline; infinity when none was named."""
        return float("inf") if self.deadline is None else self.deadline - now
