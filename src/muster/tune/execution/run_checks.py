"""Checks a run while it lasts: background workers, stop criteria, and plug-ins whose calls take long."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock
from muster.base.text import did_you_mean
from muster.trials.controller import TrialController
from muster.trials.metrics import TRAINING_ITERATION, flatten
from muster.tune.analysis.result_keys import AUTO_RESULT_KEYS
from muster.tune.callback import Callback

if TYPE_CHECKING:
    from muster.trials.decide import PluginCalls
    from muster.trials.model import Trial
    from muster.tune.reporting.reporter import Reporter

logger = logging.getLogger(__name__)

CHECK_PERIOD_S = 5.0


class BackgroundProblems(Callback):
    """BackgroundProblems shows problems of background workers; each one once, then every ten minutes."""

    REPEAT_S = 600.0

    def __init__(self, sources: Sequence[Any], reporter: Reporter, clock: Clock) -> None:
        self._sources, self._reporter, self._clock = tuple(sources), reporter, clock
        self._due_at = clock.monotonic() + CHECK_PERIOD_S
        self._shown: dict[str, float] = {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        now = self._clock.monotonic()
        if now >= self._due_at:
            self._due_at = now + CHECK_PERIOD_S
            self._show(now)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        self._show(self._clock.monotonic())

    def _show(self, now: float) -> None:
        for source in self._sources:
            for problem in source.take_problems():
                key = problem.partition(" (failure")[0]
                if now - self._shown.get(key, float("-inf")) >= self.REPEAT_S:
                    self._shown[key] = now
                    self._reporter.note(f"warning: {problem}")


class CriteriaCheck(Callback):
    """A CriteriaCheck warns once when the first result lacks what stop criteria or the scheduler read."""

    def __init__(self, stop: object, scheduler: object, reporter: Reporter) -> None:
        self._reporter = reporter
        criteria = stop if isinstance(stop, Mapping) else {}
        self._wanted = {key: f"RunConfig(stop={{{key!r}: {criteria[key]!r}}})" for key in criteria}
        if isinstance(time := getattr(scheduler, "_time_attr", None), str):
            self._wanted[time] = f"{type(scheduler).__name__}(time_attr={time!r})"

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        if not self._wanted:  # nearly always
            return
        reported = (trial.last_result for trial in trials if TRAINING_ITERATION in trial.last_result)
        if (result := next(reported, None)) is None:
            return
        wanted, self._wanted = self._wanted, {}
        flat = flatten(result)
        own = [name for name in flat if name not in AUTO_RESULT_KEYS and not name.startswith("config/")]
        for name in (name for name in wanted if name not in flat):
            near = did_you_mean(name, flat)
            self._reporter.note(
                f"warning: {wanted[name]} ends nothing, because the first result has no {name!r}; "
                f"it has {', '.join(own)}{near and f': {near}'}"
            )

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        self.on_step_end(0, trials)


_SLOW = "%s took over %g s (%d times), and all trials waited; make it faster or raise TUNE_WARN_THRESHOLD_S"


class SlowCalls:
    """A SlowCalls thread names plug-ins whose calls take long: it looks at what the control thread does.

    Nothing is measured at the calls themselves, of which there are several per result.
    """

    LOOKS = 5  # so many in a row must find the same call

    def __init__(self, plugins: PluginCalls, callbacks: Iterable[object], threshold_s: float) -> None:
        """Begins to watch the thread that makes this object."""
        search: object = plugins.search
        while inner := getattr(search, "searcher", None):  # the user's, not what wraps it
            search = inner
        watched = (search, plugins.scheduler, plugins.stopper, *callbacks)
        self._plugins = {id(one): type(one).__name__ for one in watched if one is not None}
        self._threshold_s, self._control = threshold_s, threading.get_ident()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="muster-slow-calls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        last, looks, counts = None, 0, dict[str, int]()
        while not self._is_over.wait(max(0.005, self._threshold_s / self.LOOKS)):
            name, call = self._current()
            looks = looks + 1 if call is not None and call is last else 0
            last = call
            if looks == self.LOOKS:
                counts[name] = count = counts.get(name, 0) + 1
                if count & (count - 1) == 0:  # the first time, the second, the fourth, ...
                    logger.warning(_SLOW, name, self._threshold_s, count)

    def _current(self) -> tuple[str, FrameType | None]:
        """Returns the outermost call of a plug-in in a step, by name; reads the locals of no other frame."""
        frame, calls = sys._current_frames().get(self._control), list[FrameType]()
        while frame is not None and frame.f_code is not TrialController.step.__code__:
            calls.append(frame)
            frame = frame.f_back
        for call in reversed(calls) if frame is not None else ():
            code = call.f_code
            owner = id(call.f_locals.get(code.co_varnames[0])) if code.co_argcount else 0
            if owner in self._plugins:
                return f"{self._plugins[owner]}.{code.co_name}", call
        return "", None
