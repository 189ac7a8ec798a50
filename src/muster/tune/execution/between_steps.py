"""Do what a driver does besides handling events: saves the experiment, checks it, reports what is wrong.

The longer a save takes, the rarer it is done: saving costs at most a twentieth of the time. Its share for
trials that have ended is not counted: each is saved once, sooner or later, and waits in memory until then.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.text import did_you_mean
from muster.errors import RestoreError, StoreError, StoreFull
from muster.stores.checkpoints import CheckpointStore, DeletionQueue, delete_directory
from muster.stores.experiment import values
from muster.trials.controller import TrialController
from muster.trials.events import StartTrial
from muster.trials.experiment import ExperimentState
from muster.trials.metrics import TRAINING_ITERATION, flatten
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import Hooks
from muster.trials.ports import Engine, SavedExperiment, TrialStore
from muster.trials.restore import MakeTrial, ended_records, restore, snapshot
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.callback import Callback
from muster.tune.plugin_state import PluginState

logger = logging.getLogger(__name__)

SAVE_SHARE = 20.0  # times the duration of the last save
MANY_ENDED = 500  # trials that wait to be saved: a save comes early, because they take memory until then
MOST_ENDED = 2 * MANY_ENDED  # from here on, each step waits for the log writer, so that no more come
BACKLOG_WAIT_S = 0.5
LOG_TIMEOUT_S = 2.0
LAST_LOG_TIMEOUT_S = 30.0  # nothing else is left to do, and without this save the next start is slow


class ExperimentSaver:
    """Writes snapshots of one experiment to its store, and restores it from them."""

    min_period_s = 1.0

    def __init__(
        self, state: ExperimentState, *, store: TrialStore, clock: Clock, logs: LogWriter | None = None
    ) -> None:
        """`logs` writes the result files: a snapshot, which drops results from the store, waits for it."""
        self._state, self._store, self._clock, self._logs = state, store, clock, logs
        self._callbacks = state.plugins.hooks  # the state has other hooks while facts are replayed
        self._mark: threading.Event | None = None  # set once the rows before it are in their files
        self._ended_at_mark = 0
        self._save_at = self._early_at = float("-inf")  # the second: when many trials have ended

    def restore(self, saved: SavedExperiment, make_trial: MakeTrial, observer: Hooks | None = None) -> None:
        """Bring the experiment to where an earlier process left it; its new plug-ins are restored too."""
        seen = None if saved.snapshot is None else decode_snapshot(saved.snapshot, saved.ended)
        restore(self._state, seen, saved.facts, make_trial, observer, lambda: self._restore_plugins(saved))

    def _restore_plugins(self, saved: SavedExperiment) -> None:
        self._state.index.note_archived()  # the store holds these; later facts may end others
        for name, plugin in self._plugins().items():
            if name in saved.plugins:  # a user's scheduler may hold trials
                trials = [self._state.index.trials] if isinstance(plugin, PluginState) else []
                plugin.restore_state(saved.plugins[name], *trials)

    def is_due(self) -> bool:
        """Return whether a snapshot is due and the log writer has nearly caught up.

        So `save` has little to wait for. Waits here only while `MOST_ENDED` trials or more are not saved.
        """
        ended = len(self._state.index.unarchived)
        if self._clock.monotonic() < (self._early_at if ended >= MANY_ENDED else self._save_at):
            return False
        if self._logs is None:
            return True
        if self._mark is None or (self._mark.is_set() and ended - self._ended_at_mark > MANY_ENDED // 10):
            self._mark, self._ended_at_mark = self._logs.mark(), ended
        return self._mark.is_set() or (ended >= MOST_ENDED and self._mark.wait(BACKLOG_WAIT_S))

    def save(self, flush: Callable[[], None], *, is_last: bool = False) -> None:
        """Write a snapshot for a restore.

        Skipped when results cannot be written to their files, or when the disk is full: then the store keeps
        the facts, and a restore has more of them to replay.
        """
        began = self._clock.monotonic()
        self._mark = None
        if self._logs is not None:
            self._logs.mark()  # it catches up while the snapshot is made
        saved = {name: plugin.save_state() for name, plugin in self._plugins().items()}
        prepared = self._clock.monotonic()
        states = {name: state for name, state in saved.items() if state is not None}
        # From facts alone, readers cannot know which trials are paused, wait for a retry, or were stopped.
        index = self._state.index
        changed = (*index.live.values(), *index.unarchived.values())
        statuses = {trial.trial_id: trial.status for trial in changed}
        seen = encode_snapshot(snapshot(self._state, with_ended=False))
        # The trials that have ended, encoded a hundred at a time: all at once take much memory.
        records = ended_records(self._state)
        chunks = iter(lambda: list(islice(records, 100)), [])
        ended = [encode_snapshot({"ended": chunk}) for chunk in chunks]
        encoded = self._clock.monotonic()
        if self._logs is not None and not self._logs.flush(LAST_LOG_TIMEOUT_S if is_last else LOG_TIMEOUT_S):
            is_slow = self._clock.monotonic() - encoded >= LOG_TIMEOUT_S  # else a file cannot be written
            self._save_at = began + SAVE_SHARE * LOG_TIMEOUT_S
            self._early_at = began if is_slow else self._save_at
            return
        waited_s = self._clock.monotonic() - encoded
        try:
            flush()
            self._store.snapshot(seen, states, statuses, ended)
        except StoreFull as error:
            logger.warning("no snapshot, the facts are kept instead: %s", error)
            self._save_at = self._early_at = began + SAVE_SHARE * LOG_TIMEOUT_S
            return
        index.note_archived()
        now = self._clock.monotonic()
        live_share = (1 + len(index.live)) / (1 + len(changed))
        # What the next save repeats. Where many trials end, waiting for the log writer costs nothing: it is
        # the slowest part, and works meanwhile.
        again_s = prepared - began + (now - prepared - waited_s) * live_share
        self._early_at = now + SAVE_SHARE * again_s
        self._save_at = max(self._early_at + SAVE_SHARE * waited_s, now + self.min_period_s)

    def _plugins(self) -> dict[str, Any]:
        """Return the plug-ins that have a state; a user's scheduler may lack `save_state`."""
        plugins = self._state.plugins
        candidates: dict[str, object] = {"search": plugins.search, "scheduler": plugins.scheduler}
        candidates |= {"stopper": plugins.stopper, "callbacks": self._callbacks}
        return {name: each for name, each in candidates.items() if hasattr(each, "save_state")}


def encode_snapshot(seen: Mapping[str, Any]) -> bytes:
    """Return the data and, beside it, the pickles of users' objects in configurations."""
    return msgspec.msgpack.encode(values.encode(dict(seen)))


def decode_snapshot(data: bytes, ended: Sequence[bytes] = ()) -> dict[str, Any]:
    """Return the snapshot, with the trials that were archived when they ended."""
    seen = _decoded(data)
    seen["ended"] = [record for each in ended for record in _decoded(each)["ended"]]
    return seen


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        content, pickles = msgspec.msgpack.decode(data, type=tuple[bytes, bytes | None])
        seen = values.decode(content, pickles, trust=True)
    except (ValueError, msgspec.MsgspecError) as error:
        raise RestoreError(f"the saved state of the experiment cannot be read: {error}") from error
    if not isinstance(seen, dict):
        raise RestoreError("the saved state of the experiment is not a snapshot of trials")
    return seen


if TYPE_CHECKING:
    from muster.trials.decide import PluginCalls
    from muster.tune.execution.upload import Uploads
    from muster.tune.logger.files.writer import LogWriter
    from muster.tune.reporting.reporter import Reporter

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
    """Warns once when the first result lacks what stop criteria or the scheduler read."""

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
        flat = list(map(str, flatten(result)))
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
        """Begin to watch the thread that makes this object."""
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
        """Return the outermost call of a plug-in in a step, by name; read the locals of no other frame."""
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


class CheckedCheckpoints:
    """The checkpoint directories of one experiment."""

    def __init__(
        self,
        engine: Engine,
        checkpoints: CheckpointStore,
        find: Callable[[str], Trial | None],
        deletions: DeletionQueue,
    ) -> None:
        """`find` returns a trial by its id."""
        self._engine, self._checkpoints, self._find = engine, checkpoints, find
        self.discard = deletions.discard

    def check(self, command: StartTrial) -> StartTrial:
        """Return the command with a checkpoint that is complete, and fetched where the engine needs that."""
        trial = self._find(command.trial_id)
        if command.checkpoint is None or trial is None or trial.newest is None:
            return command
        drop_unusable(trial, self._checkpoints)
        self._fetch(trial)
        return replace(command, checkpoint=trial.newest)

    def _fetch(self, trial: Trial) -> None:
        """Fetch a checkpoint that a cluster made elsewhere, for the processes of this machine."""
        if trial.newest is None or self._engine.traits().fetches_checkpoints:
            return
        try:
            self._checkpoints.bring_here(trial.newest)
        except StoreError as error:
            logger.warning("the checkpoint of trial %s cannot be fetched: %s", trial.trial_id, error)


def drop_unusable(trial: Trial, checkpoints: CheckpointStore) -> None:
    """Drop the checkpoints of a trial that are newer than the newest complete one."""
    if trial.adopted is not None:
        if checkpoints.newest_usable([trial.adopted]) is not None:
            return
        trial.adopted = None
    usable = checkpoints.newest_usable(trial.checkpoints)
    newest = -1 if usable is None else usable.index
    trial.checkpoints = tuple(each for each in trial.checkpoints if each.index <= newest)


def delete_checkpoint(ref: CheckpointRef, uploads: Uploads | None) -> None:
    """Delete a checkpoint here and on the storage."""
    if uploads is None or uploads.discard(ref):
        delete_directory(Path(ref.path))
