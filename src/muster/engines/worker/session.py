"""TrialSession is the Session of a trial in a worker: numbers results, publishes checkpoints."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

from muster.base.clock import Clock
from muster.base.framing import SCALARS, FrameKind, frame, is_plain, pack, pickled, portable, unpack
from muster.base.untrusted import message_text, ray_object_hint
from muster.engines.worker.channel import WorkerChannel
from muster.engines.worker.protocol import StartOrder
from muster.session.checkpoint import Checkpoint
from muster.session.progress import Progress, Stamp
from muster.session.publish import checkpoint_name, publish_copy, publish_staged, staging_path
from muster.session.session import PreemptionInfo, TrialStopped, TuneContext
from muster.session.usage import RESULT_KEY, UsageMonitor
from muster.trials.placement_group import PlacementGroupFactory


class CheckpointTransfer(Protocol):
    """Brings checkpoints to and from a node; one per process, one trial at a time."""

    def prepare(self, order: StartOrder) -> StartOrder:
        """Fetch the checkpoint to start from, and return the order with directories of this node."""

    def clear_leftovers(self, name: str) -> None:
        """Delete what an earlier attempt left under this name, before a checkpoint of it is made."""

    def keep(self, path: str) -> None:
        """Store a complete checkpoint, before the driver learns of it; raises why it could not."""

    def finish(self) -> None:
        """End the transfer for a trial, however it ended; never raises."""

    def own_threads(self) -> int:
        """Return how many threads of this process are its own, and not left behind by a trial."""


class ReportBuffer:
    """Keeps at most `length` frames until they are due, the first for at most `age_s`.

    A checkpoint is due at multiples of `every`: reports before it are sent first. The driver may change the
    age: it grows with the number of trials, between the least and the most of `StartTrial.buffering`.
    """

    def __init__(self, length: int, age_s: float, every: int) -> None:
        self._length, self.age_s, self._every = length, age_s, every
        self._frames: list[bytes] = []
        self._since = 0.0

    def add(self, report: bytes, *, iteration: int, now: float, is_urgent: bool) -> bytes:
        """Return all frames that have to be sent now, in order; nothing when the report may wait."""
        if not self._frames:
            self._since = now
        self._frames.append(report)
        is_due = self._every > 0 and iteration % self._every == 0
        is_full = len(self._frames) >= self._length or now - self._since >= self.age_s
        return self.take() if is_urgent or is_due or is_full else b""

    def take(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)


# How many forks led to this process: a session belongs to the process that made it, not to its forks. (Asking
# the kernel for the pid at each report would cost as much as packing the result.)
_forks = [0]
LASTING_S = 2.0  # a trial this old gets a heartbeat


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)

Saved = tuple["int | None", str]  # checkpoint index, or why there is none


MAX_RESULT_DEPTH, MAX_RESULT_VALUES, MAX_RESULT_BYTES = 100, 1_000_000, 16_000_000


class UnsendableResult(TypeError):
    """A reported value cannot leave the trial's process."""


class TrialSession:
    """One trial's side of the lock-step protocol."""

    def __init__(
        self,
        order: StartOrder,
        channel: WorkerChannel,
        clock: Clock,
        transfer: CheckpointTransfer | None = None,
    ) -> None:
        self._order = order
        self._transfer = transfer
        self._channel = channel
        self._clock = clock
        self._forks = _forks[0]
        self._turn = threading.RLock()  # user threads may report, one at a time
        self.progress = Progress()
        self.checkpoint_index = order.checkpoint_index
        self.stopped = False
        self.stays_when_stopped = False
        # A function saves only when it reports.
        self.on_save: Callable[[bool], Saved] = lambda is_optional: (self._last_report_saved, "")
        self.on_result: Callable[[Mapping[str, Any], Stamp, float], None] | None = None
        self._last_report_saved: int | None = None
        self._info: PreemptionInfo | None = None  # what is announced about this machine
        self._leaves_at, self._has_answered = 0.0, False  # by the monotonic clock; by a checkpoint
        self._publish_s = 0.0  # how long the last checkpoint took
        self._usage: UsageMonitor | None = None
        length, least_s, _, every = order.buffering
        self._buffer = ReportBuffer(length, least_s, every) if length > 1 else None
        self._checkpoint = Checkpoint(order.checkpoint_path) if order.checkpoint_path else None
        if order.checkpoint_path:
            self.progress.resume(order.checkpoint_metrics or {})
        self._resumed_at = clock.monotonic()

    @cached_property
    def context(self) -> TuneContext:
        order = self._order
        return TuneContext(
            experiment_name=order.experiment_name,
            trial_name=order.trial_name,
            trial_id=order.trial_id,
            trial_dir=order.trial_dir,
            resources=PlacementGroupFactory(*order.bundles),
            storage=order.storage,
        )

    def describe(self) -> dict[str, Any]:
        """Return names, directory, resources and checkpoint of the trial, for its other processes."""
        order, resources = self._order, PlacementGroupFactory(*self._order.bundles)
        return {
            "experiment_name": order.experiment_name,
            "trial_name": order.trial_name,
            "trial_id": order.trial_id,
            "trial_dir": order.trial_dir,
            "resources": {
                "bundles": order.bundles[0],
                "strategy": order.bundles[1],
                "required_resources": dict(resources.required_resources),
            },
            "checkpoint": None if self._checkpoint is None else self._checkpoint.path,
        }

    def get_checkpoint(self) -> Checkpoint | None:
        return self._checkpoint

    def get_preemption_info(self) -> PreemptionInfo | None:
        # A thread that reports has the turn, and takes notices itself; a fork must not read the channel.
        if _forks[0] == self._forks and self._turn.acquire(blocking=False):
            try:
                self._take_notices()
            finally:
                self._turn.release()
        return self._info

    def should_checkpoint(self) -> bool:
        info = self.get_preemption_info()
        if info is None or self._has_answered:
            return False
        return self._publish_s <= self._leaves_at - self._clock.monotonic()

    def _take_notices(self) -> None:
        for payload in self._channel.take(FrameKind.NOTICE):
            self._note(payload)

    def _note(self, payload: bytes) -> None:
        """Note what is announced; a notice that is only repeated stays answered."""
        told = unpack(payload)
        info = None if told is None else PreemptionInfo(*told)
        if info != self._info:
            self._info, self._has_answered = info, False
            if info is not None:
                self._leaves_at = self._clock.monotonic() + info.left_s(self._clock.now())

    def watch_usage(self) -> None:
        """Add to every result how busy the machine is."""
        self._usage = UsageMonitor()

    def end(self) -> None:
        """End the session, however the trial ended."""
        if self._usage is not None:
            self._usage.stop()

    def begin(self) -> None:
        """Start the time of the first iteration."""
        self._resumed_at = self._clock.monotonic()

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        elapsed_s = self._clock.monotonic() - self._resumed_at
        if _forks[0] != self._forks:
            _report_from_fork(metrics, checkpoint)
            return
        with self._turn:
            self._send(self._composed(metrics, checkpoint, elapsed_s))
            self._resumed_at = self._clock.monotonic()

    def post(self, results: Iterable[tuple[Mapping[str, Any], Checkpoint | None]]) -> bool:
        """Send results without waiting; return whether an answer follows, which `take_answer` takes."""
        frames = b""
        for metrics, checkpoint in results:
            now = self._clock.monotonic()
            frames += self._composed(metrics, checkpoint, now - self._resumed_at)
            self._resumed_at = now
        if frames:
            self._channel.send(frames)
        return bool(frames)

    def take_answer(self) -> bool:
        """Handle what the driver has sent; return whether the trial may continue, raise when it must stop."""
        may_continue = False
        for kind, payload in self._channel.arrived():
            may_continue |= self._handle(kind, payload)
        return may_continue

    @property
    def channel(self) -> WorkerChannel:
        return self._channel

    def _composed(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, elapsed_s: float) -> bytes:
        """Return the frame of one result; with a buffer, all that have to be sent now."""
        if self.stopped:
            raise TrialStopped
        if self._usage is not None:
            metrics = {**metrics, RESULT_KEY: self._usage.take()}
        body = self._sendable(metrics)
        index = None if checkpoint is None else self.publish(checkpoint)
        now = self._clock.now()
        stamp = self.progress.advance(metrics, elapsed_s=elapsed_s, now=now)
        if stamp[4] > LASTING_S and not self._channel.is_watched:
            self._channel.watch()
        if self.on_result is not None:
            self.on_result(metrics, stamp, now)
        self._last_report_saved = index
        self._has_answered |= index is not None
        report = frame(FrameKind.REPORT, pack((body, index, now, stamp)))
        if len(report) > MAX_RESULT_BYTES:
            size, most = len(report) / 1e6, MAX_RESULT_BYTES / 1e6
            raise UnsendableResult(
                f"the reported result has {size:.0f} MB, and at most {most:.0f} MB are sent: "
                "report numbers, and put large values into a checkpoint"
            )
        return report if self._buffer is None else self._buffered(self._buffer, report, metrics, index)

    def flush(self) -> None:
        """Send the reports that wait, because the trial's code has ended."""
        if self._buffer is not None and not self.stopped:
            self._send(self._buffer.take())

    def _send(self, reports: bytes) -> None:
        """Send reports, and wait for the answer."""
        if reports:
            self._channel.send(reports)
            if not self._channel.wait_for_continue():
                self._wait()

    def _buffered(
        self, buffer: ReportBuffer, report: bytes, metrics: Mapping[str, Any], index: int | None
    ) -> bytes:
        is_news = index is not None or bool(metrics.get("done") or metrics.get("should_checkpoint"))
        self._take_notices()
        is_urgent = is_news or self._info is not None or self._channel.has_received(FrameKind.STOP)
        now = self._clock.monotonic()
        return buffer.add(report, iteration=self.progress.iteration, now=now, is_urgent=is_urgent)

    def _sendable(self, metrics: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a plain dict, or its pickle
        refuse_endless(metrics)
        if is_plain(metrics):
            return metrics
        refuse_tensors(metrics)
        try:
            return portable(numbers_for_arrays(dict(metrics)))
        except Exception as error:
            raise UnsendableResult(_unpicklable_message(metrics, error)) from error

    def _wait(self) -> None:
        while not self._handle(*self._channel.receive()):
            pass

    def _handle(self, kind: int, payload: bytes) -> bool:
        """Handle one frame of the driver; return whether it lets the trial continue."""
        if kind == FrameKind.CONTINUE:
            if payload and self._buffer is not None:
                self._buffer.age_s = unpack(payload)
            return True
        if kind == FrameKind.STOP:
            self.stopped = True
            self.stays_when_stopped = unpack(payload)
            raise TrialStopped
        if kind == FrameKind.NOTICE:
            self._note(payload)
        elif kind == FrameKind.SAVE:
            saved = self.on_save(unpack(payload))
            self._has_answered |= saved[0] is not None
            self._channel.send(frame(FrameKind.SAVED, pack(saved)))
        return False

    @property
    def last_saved(self) -> int | None:
        """The number of the checkpoint of the last result; None when it had none."""
        return self._last_report_saved

    def publish(self, checkpoint: Any) -> int:  # noqa: ANN401 - checked here
        if not isinstance(checkpoint, Checkpoint):
            fault = ray_object_hint(checkpoint) or "must be a Checkpoint; use Checkpoint.from_directory"
            raise TypeError(f"report(checkpoint={checkpoint!r}): {fault}")
        if self._channel.has_received(FrameKind.STOP):
            self._wait()  # the driver would ignore it; raises
        began = self._clock.monotonic()
        index, name = self.next_checkpoint()
        trial_dir = self._order.trial_dir
        if checkpoint._is_local:
            target = publish_copy(checkpoint.path, trial_dir, name)
        else:
            target = publish_staged(checkpoint.to_directory(staging_path(trial_dir, name)), trial_dir, name)
        self.note_checkpoint(index, target)
        self._publish_s = self._clock.monotonic() - began
        return index

    def next_checkpoint(self) -> tuple[int, str]:
        """Return number and name of the checkpoint that is about to be made."""
        index = self.checkpoint_index + 1
        name = checkpoint_name(index)
        if self._transfer is not None:
            self._transfer.clear_leftovers(name)
        return index, name

    def note_checkpoint(self, index: int, path: str) -> int:
        """Record that the checkpoint of this number is in place."""
        if self._transfer is not None:
            self._transfer.keep(path)
        self.checkpoint_index = index
        self._checkpoint = Checkpoint(path)
        return index


def _report_from_fork(metrics: Mapping[str, Any], checkpoint: Checkpoint | None) -> None:
    from muster.session.child import child_session  # only where a trial forks

    session = child_session()
    if session is None:
        raise RuntimeError("report() was called in a process that the trial forked; call it in the trial")
    session.report(metrics, checkpoint)


def refuse_endless(metrics: Mapping[str, Any]) -> None:
    """Raise UnsendableResult for a result that contains itself, or is too deep or large to be a result."""
    if SCALARS.issuperset(map(type, metrics.values())):
        return
    left = MAX_RESULT_VALUES
    for key, whole in metrics.items():
        level = [whole]
        for _ in range(MAX_RESULT_DEPTH):
            level = [inner for outer in level for inner in _contained(outer)]
            left -= len(level)
            if not level or left < 0:
                break
        if level:
            raise UnsendableResult(
                f"the reported value {key!r} contains itself, is nested over {MAX_RESULT_DEPTH} deep or has "
                f"more than {MAX_RESULT_VALUES:,} parts: report numbers, and put the rest into a checkpoint"
            )


def _contained(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def refuse_tensors(metrics: object) -> None:
    """Raise ValueError for a torch tensor anywhere inside: the driver would have to import torch."""
    torch = sys.modules.get("torch")
    if torch is not None and _holds(metrics, torch.Tensor):
        raise ValueError("a torch tensor was reported; report numbers: call .item() or .tolist() on it first")


def numbers_for_arrays(value: Any) -> Any:  # noqa: ANN401 - a result, or a value in it
    """Return a result with a number for each array of one element; storing would make it a list."""
    if type(value) is dict:
        return {key: numbers_for_arrays(item) for key, item in value.items()}
    if getattr(value, "ndim", 0) and getattr(value, "size", 0) == 1 and hasattr(value, "item"):
        number = value.item()
        return number if isinstance(number, int | float) else value
    return value


def _holds(value: object, kind: type) -> bool:
    if isinstance(value, kind):
        return True
    if isinstance(value, Mapping):
        return any(_holds(item, kind) for item in value.values())
    return isinstance(value, list | tuple | set) and any(_holds(item, kind) for item in value)


def _unpicklable_message(metrics: Mapping[str, Any], error: Exception) -> str:
    for key, value in metrics.items():
        try:
            pickled(value)
        except Exception:  # noqa: BLE001 - as above
            kind, why = type(value).__name__, message_text(error)
            return f"the reported value {key!r} ({kind}) cannot be pickled: {why}"
    return f"the reported metrics cannot be pickled: {message_text(error)}"
