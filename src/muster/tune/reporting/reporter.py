"""Reporter: the base of all that show an experiment; by itself it is silent (`verbose=0`).

A Callback with four more calls, made by the tuner around the run. It overrides no hook, so a silent
experiment pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from muster.tune.callback import Callback
from muster.tune.reporting.outlet import Outlet
from muster.tune.reporting.summary import resume_lines

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.info import RunInfo


class Reporter(Callback):
    """Shows nothing, except how to go on after Ctrl-C: that goes to standard error."""

    info: RunInfo

    def catching(self) -> AbstractContextManager[None]:
        """Processes made inside print through the reporter, so that they do not tear a live view."""
        return nullcontext()

    def begin(self, info: RunInfo) -> None:
        """Before the first trial."""
        self.info = info

    def note(self, text: str) -> None:
        """A line for the person, such as a warning; may be called between `begin` and `end`."""
        Outlet(sys.stderr).say(text)

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        """After the last trial, or when somebody stopped the run."""
        if interrupted:
            Outlet(sys.stderr).say("\n".join(resume_lines(self.info, trials)))

    def abort(self) -> None:
        """An exception leaves the run: give the terminal back. May be called at any time, also twice."""
