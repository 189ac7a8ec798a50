"""Shows an experiment on a terminal, redrawn in place. Imported lazily: only a terminal needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from muster.base.clock import Clock
from muster.tune.reporting.periodic import PeriodicReporter
from muster.tune.reporting.plain import HEARTBEAT_S, DetailedEventReporter, EventLines
from muster.tune.reporting.reporter import RunInfo
from muster.tune.reporting.screen import Screen
from muster.tune.reporting.snapshot import ExperimentSnapshot
from muster.tune.reporting.tables import frame_for

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.live_view import LiveView

REDRAW_S = 0.25


class LiveReporter(PeriodicReporter):
    """A LiveReporter shows what `verbose=1` shows on a terminal."""

    def __init__(self, stream: TextIO, *, clock: Clock, environment: Mapping[str, str]) -> None:
        super().__init__(clock=clock, period_s=REDRAW_S)
        self._screen = Screen(stream, clock=clock, environment=environment)
        self._home = environment.get("HOME", "")
        self._view: LiveView | None = None

    def catching(self) -> AbstractContextManager[None]:
        return self._screen.catching()

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._view = None
        self._screen.open()

    def note(self, text: str) -> None:
        self._screen.print(text)

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        self._screen.draw(self._live_view().draw(snapshot, self._screen.size()))

    def _live_view(self) -> LiveView:
        """Returns the view, which is made after the first step: loading rich takes a while."""
        if self._view is None:
            from muster.tune.reporting.live_view import LiveView, glyphs_for

            self._view = LiveView(glyphs_for(self._screen.encoding), home=self._home)
        return self._view

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        self._screen.drain()
        self._screen.clear()
        size = self._screen.size()
        self._screen.print(*self._live_view().conclusion(snapshot, trials, size, interrupted=interrupted))
        self._screen.close()

    def abort(self) -> None:
        self._screen.close()


class DetailedLiveReporter(DetailedEventReporter, LiveReporter):
    """A DetailedLiveReporter prints, from `verbose=2` on, the events of trials above the view."""

    def __init__(self, stream: TextIO, *, clock: Clock, environment: Mapping[str, str], level: int) -> None:
        super().__init__(stream, clock=clock, environment=environment)
        frame = frame_for(self._screen.encoding)
        self._event_lines = EventLines(self._screen.print, clock=clock, level=level, frame=frame)
        self._window_ends = 0.0

    def begin(self, info: RunInfo) -> None:
        self._event_lines.begin(info.metric)
        self._window_ends = self._clock.monotonic() + HEARTBEAT_S
        super().begin(info)

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        if self._clock.monotonic() >= self._window_ends:
            self._window_ends = self._clock.monotonic() + HEARTBEAT_S
            self._event_lines.new_window()
        super().show(snapshot, trials)

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        self._event_lines.new_window()
        super().conclude(snapshot, trials, interrupted=interrupted)
