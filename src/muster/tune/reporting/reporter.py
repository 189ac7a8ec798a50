"""Define Reporter, the base of all that show an experiment, and chooses one for a run.

A Reporter is a Callback with four more calls, made by the tuner around the run. It overrides no hook, so a
silent experiment pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from muster.tune.callback import Callback

if TYPE_CHECKING:
    from muster.base.clock import Clock
    from muster.trials.model import Trial
    from muster.tune.config import RunConfig


class LiveAmounts(Mapping[str, float]):
    """Reads `read()` again each time: a cluster grows and shrinks."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Describes a run; its callables are called per snapshot and must be cheap and not raise."""

    name: str
    directory: str
    metric: str | None = None  # None: nothing is optimized, or several metrics at once
    mode: str | None = None
    objectives: Mapping[str, str] = field(default_factory=dict)  # several metrics, and the mode of each
    constraints: Mapping[str, float] = field(default_factory=dict)
    searcher: str = ""
    scheduler: str = ""
    total: int | None = None  # trials planned; None: unknown
    capacity: Mapping[str, float] = field(default_factory=dict)
    used: Callable[[], Mapping[str, float]] = dict
    starting: Callable[[], int] = int  # pending trials whose processes are being started
    parameters: tuple[str, ...] = ()  # flat keys that are searched
    is_resumed: bool = False
    scheduler_debug: Callable[[], str] = str
    time_budget_s: float | None = None
    program: str = "muster"  # as this user's shell finds it
    cost: Callable[[], str] = str  # `cost $1.20 of $5.00`; "": no price is known
    ended_by: Callable[[], str] = str  # "budget" or "deadline", once one of them has ended the run


class Reporter(Callback):
    """Shows nothing, except how to continue after Ctrl-C: that goes to standard error."""

    info: RunInfo
    prints_errors = True  # TUNE_PRINT_ALL_TRIAL_ERRORS

    def catching(self) -> AbstractContextManager[None]:
        """Make processes started inside print through the reporter, which keeps a live view intact."""
        return nullcontext()

    def begin(self, info: RunInfo) -> None:
        """Called before the first trial."""
        self.info = info

    def note(self, text: str) -> None:
        """Show a line, such as a warning; may be called between `begin` and `end`."""
        from muster.tune.reporting.formats import SafeStream

        SafeStream(sys.stderr).print(text)

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        """Called after the last trial, or when the user stopped the run."""
        if interrupted:
            from muster.tune.reporting.formats import SafeStream
            from muster.tune.reporting.summary import resume_lines

            SafeStream(sys.stderr).print("\n".join(resume_lines(self.info, trials)))

    def abort(self) -> None:
        """Restore the terminal when an exception leaves the run. May be called at any time, also twice."""


def reporter_for(
    run_config: RunConfig,
    *,
    clock: Clock,
    environment: Mapping[str, str],
    stream: TextIO | None = None,
    is_notebook: bool | None = None,
) -> Reporter:
    """Return a reporter for this run.

    `stream` is standard output and `is_notebook` is detected unless given. `RunConfig.progress_reporter` is
    used by its own protocol, RAY_AIR_NEW_OUTPUT=0 selects Ray's older text, and `verbose=0` shows nothing.
    """
    level = run_config.verbose or 0
    stream = stream if stream is not None else sys.stdout
    notebook = in_notebook() if is_notebook is None else is_notebook
    if level == 0:
        return Reporter()
    if run_config.progress_reporter is not None or environment.get("RAY_AIR_NEW_OUTPUT") == "0":
        return _driven(run_config, clock, environment, notebook)
    if notebook:
        from muster.tune.reporting.notebook import NotebookReporter

        return NotebookReporter(clock=clock)
    if can_redraw(stream, environment):
        from muster.tune.reporting.live import DetailedLiveReporter, LiveReporter

        if level == 1:
            return LiveReporter(stream, clock=clock, environment=environment)
        return DetailedLiveReporter(stream, clock=clock, environment=environment, level=level)
    from muster.tune.reporting.plain import DetailedPlainReporter, PlainReporter

    kind = PlainReporter if level == 1 else DetailedPlainReporter
    return kind(stream, clock=clock, level=level)


def in_notebook() -> bool:
    """Return whether a notebook's kernel runs this; a plain IPython shell is a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal whose cursor can move."""
    try:
        is_terminal = stream.isatty()
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return is_terminal and environment.get("TERM", "").lower() not in ("", "dumb", "unknown")


def _driven(run_config: RunConfig, clock: Clock, environment: Mapping[str, str], notebook: bool) -> Reporter:
    from muster.tune.progress_reporter import DetailedLegacyReporter, LegacyReporter, detect_reporter

    given = run_config.progress_reporter
    reporter = given if given is not None else detect_reporter(is_notebook=notebook)
    # A user who passes a reporter wants to see its tables, whatever the level of the new console means.
    tables = given is not None and environment.get("RAY_AIR_NEW_OUTPUT") != "0"
    level = run_config.verbose or 0
    kind = LegacyReporter if level == 1 else DetailedLegacyReporter
    return kind(reporter, clock=clock, level=level, tables=tables)
