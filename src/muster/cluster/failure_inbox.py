"""Inbox: failures not yet part of a committed decision, so that no lost commit loses one (W9)."""

from __future__ import annotations

from typing import Any

from muster.cluster.model import DrainFailure, InstallFailure, LaunchFailure, TerminateFailure

Failure = LaunchFailure | TerminateFailure | DrainFailure | InstallFailure


class FailureInbox:
    """Filled by the observer (polled failures) and the executor (refused calls); emptied after a commit."""

    def __init__(self) -> None:
        self.launch: list[LaunchFailure] = []
        self.terminate: list[TerminateFailure] = []
        self.drain: list[DrainFailure] = []
        self.install: list[InstallFailure] = []
        self._offered: tuple[int, tuple[int, ...]] | None = None  # ledger version, length of each pile

    def put(self, failure: Failure) -> None:
        match failure:
            case LaunchFailure():
                self.launch.append(failure)
            case TerminateFailure():
                self.terminate.append(failure)
            case DrainFailure():
                self.drain.append(failure)
            case InstallFailure():
                self.install.append(failure)

    def offer(self, version: int) -> None:
        """What is in here now is part of a decision about to be committed at this version of the ledger."""
        self._offered = (version, tuple(len(pile) for pile in self._piles()))

    def settle(self, version: int) -> None:
        """The ledger is at `version`: past the offer's, the commit was stored although nobody said so.

        A failure decided upon twice would fail a second machine, one that may be on its way.
        """
        if self._offered is not None and version > self._offered[0]:
            for pile, decided in zip(self._piles(), self._offered[1], strict=True):
                del pile[:decided]
        self._offered = None

    def clear(self) -> None:
        """What was in here has been decided upon and the decision is durable."""
        self._offered = None
        for pile in self._piles():
            pile.clear()

    def _piles(self) -> tuple[list[Any], ...]:
        return self.launch, self.terminate, self.drain, self.install
