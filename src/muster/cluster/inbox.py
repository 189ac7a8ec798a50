"""Inbox: failures not yet part of a committed decision, so that no lost commit loses one (W9)."""

from __future__ import annotations

from muster.cluster.model import DrainFailure, InstallFailure, LaunchFailure, TerminateFailure

Failure = LaunchFailure | TerminateFailure | DrainFailure | InstallFailure


class Inbox:
    """Filled by the observer (polled failures) and the executor (refused calls); emptied after a commit."""

    def __init__(self) -> None:
        self.launch: list[LaunchFailure] = []
        self.terminate: list[TerminateFailure] = []
        self.drain: list[DrainFailure] = []
        self.install: list[InstallFailure] = []

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

    def clear(self) -> None:
        """What was in here has been decided upon and the decision is durable."""
        for pile in (self.launch, self.terminate, self.drain, self.install):
            pile.clear()
