"""Provide an engine and a driver that answers its events, for the tests of EngineContract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.trainables import TRAINABLES

from muster.base.clock import SystemClock
from muster.trials.events import (
    ContinueTrial,
    EngineEvent,
    StartTrial,
    TrialExited,
    TrialReported,
    TrialStarted,
)
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import Engine

PATIENCE_S = 60.0  # for a machine that is busy with something else; nothing here should take a tenth of it


class Driver:
    """Polls an engine, keeps every event, and lets trials continue unless `answer` is False."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.events: list[EngineEvent] = []
        self.clock = SystemClock()

    def start(
        self,
        trial_id: str,
        trainable: str,
        config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Submit a StartTrial with one CPU; `resources` may be a dict."""
        resources = more.pop("resources", {"CPU": 1})
        if not isinstance(resources, PlacementGroupFactory):
            resources = PlacementGroupFactory([resources])
        self.engine.submit(
            StartTrial(
                trial_id=trial_id,
                trial_name=f"{trainable}_{trial_id}",
                trainable_name=trainable,
                config=config or {},
                resources=resources,
                trial_dir=str(self.folder / trial_id),
                experiment_name="contract",
                **more,
            )
        )

    def go_on(self, trial_id: str) -> None:
        self.engine.submit(ContinueTrial(trial_id=trial_id))

    def poll_until(self, done: Callable[[], bool], *, answer: bool = True) -> None:
        """Poll until `done`; with `answer`, every report is answered by Continue."""
        give_up = self.clock.monotonic() + PATIENCE_S
        while not done():
            assert self.clock.monotonic() < give_up, f"gave up waiting; events so far: {self.events}"
            for event in self.engine.poll(0.5):
                self.events.append(event)
                if answer and isinstance(event, TrialReported):
                    self.go_on(event.trial_id)

    def quiet_for(self, seconds: float) -> Sequence[EngineEvent]:
        """Return what arrives in this time, unanswered."""
        until, found = self.clock.monotonic() + seconds, list[EngineEvent]()
        while self.clock.monotonic() < until:
            found.extend(self.engine.poll(0.05))
        self.events.extend(found)
        return found

    def of(self, trial_id: str, kind: type) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and getattr(e, "trial_id", None) == trial_id]

    def results(self, trial_id: str, key: str) -> list[Any]:
        return [event.result.get(key) for event in self.of(trial_id, TrialReported)]

    def to_report(self, trial_id: str, *, count: int = 1) -> TrialReported:
        """Wait, answering nothing, until the trial has reported this often."""
        self.poll_until(lambda: len(self.of(trial_id, TrialReported)) >= count, answer=False)
        found: TrialReported = self.of(trial_id, TrialReported)[count - 1]
        return found

    def to_start(self, trial_id: str) -> TrialStarted:
        self.poll_until(lambda: bool(self.of(trial_id, TrialStarted)))
        found: TrialStarted = self.of(trial_id, TrialStarted)[0]
        return found

    def to_exit(self, *trial_ids: str, answer: bool = True) -> TrialExited:
        """Wait until all of them have exited; returns the exit of the last named."""
        self.poll_until(lambda: all(self.of(i, TrialExited) for i in trial_ids), answer=answer)
        exits = [self.of(i, TrialExited) for i in trial_ids]
        assert [len(found) for found in exits] == [1] * len(trial_ids)
        last: TrialExited = exits[-1][0]
        return last


class EngineFixture:
    """Gives tests a fresh engine with the usual trainables."""

    def open_engine(self, trainables: Mapping[str, Any], capacity: Mapping[str, float]) -> Engine:
        """Return an engine that knows these functions and classes and has this capacity."""
        raise NotImplementedError

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        opened = self.open_engine(TRAINABLES, {"CPU": 2.0})
        yield opened
        opened.close()

    @pytest.fixture
    def driver(self, engine: Engine, tmp_path: Path) -> Driver:
        return Driver(engine, tmp_path)
