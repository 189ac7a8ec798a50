"""Trials that wait for resources: first come, first served, so that nobody starves."""

from __future__ import annotations

from collections.abc import Iterator

from muster.engines.worker.handle import Run


class WaitingLine:
    """In order of arrival. Who waits blocks only those after it that want some of the same resources."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        self._runs[run.command.trial_id] = run

    def remove(self, run: Run) -> None:
        self._runs.pop(run.command.trial_id, None)

    def may_start(self) -> Iterator[Run]:
        """Who may be tried now; one that is still there when the next is asked for is taken to be blocked."""
        wanted_by_blocked: set[str] = set()
        for run in list(self._runs.values()):
            names = run.command.resources.required_resources
            if wanted_by_blocked.isdisjoint(names):
                yield run
                if run.command.trial_id not in self._runs:
                    continue
            wanted_by_blocked.update(names)
            if "CPU" in wanted_by_blocked:
                return  # nearly everybody wants some: do not look through thousands
