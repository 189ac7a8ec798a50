"""Defines the Session protocol that engines install in the process of a trial, and where `report` finds it.

Engines call `install`; `muster.session.report` calls `current`. Nothing here knows an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.session.context import TuneContext
    from muster.session.progress import Progress


class Session(Protocol):
    """A Session is what one running trial offers to the code that runs in it."""

    @property
    def context(self) -> TuneContext:
        """Names, directory and resources of the trial."""
        ...

    @property
    def progress(self) -> Progress:
        """Iterations and times so far; `Trainable.iteration` reads it."""
        ...

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Sends one result; returns when the trial may continue, raises SystemExit when it must stop."""
        ...

    def get_checkpoint(self) -> Checkpoint | None:
        """Returns the newest checkpoint of this trial: made by it, or the one it continues from."""
        ...

    def get_preemption_info(self) -> PreemptionInfo | None:
        """Returns what is announced about the machine of the trial; None: nothing."""
        ...

    def should_checkpoint(self) -> bool:
        """Returns whether the trial should report a checkpoint, because its machine will be taken."""
        ...


class TrialStopped(SystemExit):
    """TrialStopped is raised by `report` when the trial is to end; `except Exception` does not catch it."""


_current: ContextVar[Session | None] = ContextVar("muster_session", default=None)
# Threads of user code start with an empty context, yet may report: so a trial's process has a default.
_default: list[Session | None] = [None]


def current() -> Session | None:
    """Returns the session of this context, else the one of this process, else None."""
    return _current.get() or _default[0]


def install(session: Session, *, whole_process: bool = False) -> Token[Session | None]:
    """Makes `session` the current one; the caller gives the token to `uninstall`."""
    if whole_process:
        _default[0] = session
    return _current.set(session)


def uninstall(token: Token[Session | None]) -> None:
    _default[0] = None
    _current.reset(token)


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
