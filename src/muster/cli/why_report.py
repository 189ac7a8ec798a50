"""WhyReport: what `muster why --json` prints, and what its page draws. Values only."""

from __future__ import annotations

from msgspec import Struct

from muster.cli.cluster_report import NodeRow, PendingRow, TypeRow

FORMAT = 1


class StoryLine(Struct, frozen=True, kw_only=True):
    """One thing that happened, or one verdict that changed."""

    at: float
    what: str  # a state, or a verdict
    details: str
    count: int = 1


class MachineStory(Struct, frozen=True, kw_only=True):
    """One machine, from wish to grave."""

    instance_id: str
    node_type: str
    state: str
    cost: float
    ended: bool
    story: tuple[StoryLine, ...]


class WhyReport(Struct, frozen=True, kw_only=True):
    """The whole answer of `muster why`; parts that do not concern the subject are empty."""

    format: int = FORMAT
    cluster: str
    subject: str
    kind: str  # machine, node type, gang or demand
    at: float  # of the newest look; 0 when there was none
    problem: str  # why what is said about now may be out of date
    machine: NodeRow | None  # as it is now
    pending: tuple[PendingRow, ...]
    node_types: tuple[TypeRow, ...]
    machines: tuple[MachineStory, ...]
    story: tuple[StoryLine, ...]  # how its verdicts changed
