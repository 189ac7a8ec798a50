"""Define Trainable, the base class of class trainables.

Engines make an instance and call setup, step, save_checkpoint, load_checkpoint, reset_config and cleanup
themselves; `train`, `save`, `restore` and `reset` do the same by hand, outside of an experiment.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from muster.base.clock import Clock, SystemClock
from muster.base.untrusted import type_text
from muster.engines.worker.run_trainable import read_saved, write_answer
from muster.session.checkpoint import Checkpoint, TrainingResult
from muster.session.older import accept_older
from muster.session.progress import Progress, Signature, fill_result
from muster.session.publish import checkpoint_name, publish_copy
from muster.session.session import TuneContext, current
from muster.trials.metrics import DEBUG_METRICS
from muster.trials.placement_group import PlacementGroupFactory

_OLDER_METHODS = {  # until Ray 1.0
    "_log_result": "log_result",
    "_restore": "load_checkpoint",
    "_save": "save_checkpoint",
    "_setup": "setup",
    "_stop": "cleanup",
    "_train": "step",
}
COUNTERS = ("training_iteration", "time_total_s", "timesteps_total", "episodes_total")


def publish_next(folder: str, trial_dir: str) -> str:
    """Copy a checkpoint into the trial's directory, under a number that nothing there has."""
    os.makedirs(trial_dir, exist_ok=True)
    taken = [name[len("checkpoint_") :] for name in os.listdir(trial_dir) if name.startswith("checkpoint_")]
    newest = max((int(number) for number in taken if number.isdigit()), default=-1)
    return publish_copy(folder, trial_dir, checkpoint_name(newest + 1))


def as_training_result(given: TrainingResult | Checkpoint | str | os.PathLike[str]) -> TrainingResult:
    """Return whatever `restore` accepts as a TrainingResult, with the counters of its metadata."""
    if isinstance(given, TrainingResult):
        result = given
    elif isinstance(given, Checkpoint):
        result = TrainingResult(given, {})
    else:
        result = TrainingResult(Checkpoint(given), {})
    place = result.checkpoint
    if not place.filesystem.exists(place.path):
        raise ValueError(
            f"cannot restore: the checkpoint {place.path} does not exist (any more); "
            "save it outside of temporary directories, or keep more (CheckpointConfig.num_to_keep)"
        )
    return result if result.metrics else TrainingResult(place, place.get_metadata())


logger = logging.getLogger(__name__)

SLOW_SETUP_S = 10.0
_OUTSIDE = "default"  # the name of a trial that is none


class Trainable:
    """A trial as a class: override `setup`, `step` and the two checkpoint methods.

    Example:
        >>> class Quadratic(Trainable):
        ...     def setup(self, config):
        ...         self.x = config["x"]
        ...
        ...     def step(self):
        ...         self.x /= 2
        ...         return {"loss": self.x**2}
        ...
        ...     def save_checkpoint(self, checkpoint_dir):
        ...         return {"x": self.x}
        ...
        ...     def load_checkpoint(self, checkpoint):
        ...         self.x = checkpoint["x"]
        >>> Quadratic({"x": 8}).train()["loss"]
        16.0
    """

    _clock: ClassVar[Clock] = SystemClock()
    _own: Progress | None = None  # set by the first call of train() or restore(): this object counts itself
    _last_result: Mapping[str, Any] = {}
    _storage: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - of other base classes
        super().__init_subclass__(**kwargs)
        for old, now in _OLDER_METHODS.items():
            if old in vars(cls) and now not in vars(cls) and not cls.__module__.startswith("muster."):
                accept_older(f"{cls.__name__}.{old}", f"call it {now}")
                setattr(cls, now, vars(cls)[old])

    def __init__(
        self, config: dict[str, Any] | None = None, storage: str | os.PathLike[str] | None = None
    ) -> None:
        """`storage` is the directory of the trial, when it is used outside of an experiment."""
        self.config: dict[str, Any] = {} if config is None else config
        if storage is not None:
            self._storage = os.fspath(storage)
        began_at = self._clock.monotonic()
        self.setup(copy.deepcopy(self.config))
        took_s = self._clock.monotonic() - began_at
        if took_s > SLOW_SETUP_S:
            logger.info(
                "%s.setup took %.1f s: define reset_config and set TuneConfig(reuse_actors=True) to run it "
                "once per process instead of once per trial",
                type(self).__name__,
                took_s,
            )

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare to train; `config` is a copy."""

    def step(self) -> dict[str, Any]:
        """Run one iteration; its result may hold `done` and `should_checkpoint`."""
        raise NotImplementedError(f"{type(self).__name__} must define step()")

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Write files into the directory, or return a dict."""
        raise NotImplementedError(f"{type(self).__name__} must define save_checkpoint() to be saved")

    def load_checkpoint(self, checkpoint: Any) -> None:  # noqa: ANN401 - the user's dict, or a directory
        """Restore what save_checkpoint returned: its dict, or the directory with its files."""
        raise NotImplementedError(f"{type(self).__name__} must define load_checkpoint() to be restored")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Turn this into a trial of another config without a new process; False: that is impossible."""
        return False

    def cleanup(self) -> None:
        """Called once, at the end."""

    def log_result(self, result: dict[str, Any]) -> None:
        """Called with every result, where it was made."""

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model; return the paths by format."""
        return {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """Return what a trial with this config needs; None: what the experiment says, or 1 CPU."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """Return advice for users when resources are lacking."""
        return ""

    @property
    def _context(self) -> TuneContext:
        session = current()
        return TuneContext() if session is None else session.context

    @property
    def _progress(self) -> Progress:
        """Return the progress: its own once it trained by hand, else that of the trial it runs in."""
        if self._own is not None:
            return self._own
        session = current()
        return Progress() if session is None else session.progress

    @property
    def iteration(self) -> int:
        """Return the iterations so far, those before a restore included."""
        return self._progress.iteration

    training_iteration = iteration

    @property
    def trial_name(self) -> str:
        """The trial's name."""
        return self._context.get_trial_name() or _OUTSIDE

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        return self._context.get_trial_id() or _OUTSIDE

    @property
    def trial_resources(self) -> PlacementGroupFactory | None:
        """The resources of the trial."""
        found: PlacementGroupFactory | None = self._context.get_trial_resources()
        return found

    @property
    def logdir(self) -> str | None:
        """Return the directory of the trial; None when there is none."""
        return self._context.get_trial_dir() or self._storage

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return self.config

    def get_state(self) -> dict[str, Any]:
        """Return the counters of iterations, steps, episodes and time."""
        progress = self._progress
        counters = {name: getattr(progress, name) for name in COUNTERS[1:]}
        return {"training_iteration": progress.iteration, **counters}

    @staticmethod
    def get_current_ip_pid() -> tuple[str, int]:
        """Return the address and the process id of this process."""
        from muster.host.machine import node_ip

        return node_ip(), os.getpid()

    def train(self) -> dict[str, Any]:
        """Run one step, and fills in the automatic result keys."""
        began_at = self._clock.monotonic()
        result = self.step()
        if not isinstance(result, dict):
            raise TypeError(
                f"{type(self).__name__}.step() returned {type_text(result)}; it must return a dict"
            )
        elapsed_s = self._clock.monotonic() - began_at
        now = self._clock.now()
        stamp = self._counting().advance(result, elapsed_s=elapsed_s, now=now)
        filled = fill_result(dict(result), stamp, self._signature(), now=now)
        self._last_result = filled
        self.log_result(filled)
        return filled

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> list[dict[str, Any]]:
        """Return the results of as many steps as fit; ends early at a result that is done or saves.

        Args:
            buffer_time_s: Seconds after which no further step starts.
            max_buffer_length: The largest number of steps.
        """
        began_at = self._clock.monotonic()
        results: list[dict[str, Any]] = []
        while len(results) < max_buffer_length:
            result = self.train()
            results.append(result)
            is_over = self._clock.monotonic() - began_at >= buffer_time_s
            if result.get("done") or result.get("should_checkpoint") or is_over:
                break
        return results

    def get_auto_filled_metrics(
        self,
        now: datetime | float | None = None,
        time_this_iter: float | None = None,
        timestamp: int | None = None,
        debug_metrics_only: bool = False,
    ) -> dict[str, Any]:
        """Return the keys that are added to a result, as they are now.

        Args:
            now: The time of the result.
            time_this_iter: Seconds of this step.
            timestamp: The time of the result in whole seconds.
            debug_metrics_only: Accepted for Ray's signature.
        """
        moment = now.timestamp() if isinstance(now, datetime) else now
        at = self._clock.now() if moment is None else moment
        progress = copy.copy(self._progress)
        progress.iteration -= 1  # `advance` counts one more result; here nothing has happened
        progress.iterations_since_restore -= 1
        given = {} if timestamp is None else {"timestamp": timestamp}
        stamp = progress.advance(given, elapsed_s=0.0, now=at)
        filled = fill_result(dict(given), stamp, self._signature(), now=at)
        filled["time_this_iter_s"] = time_this_iter
        if debug_metrics_only:
            return {key: value for key, value in filled.items() if key in DEBUG_METRICS}
        return filled

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> TrainingResult:
        """Make a checkpoint: in the given directory, else in the trial's, else in a temporary one."""
        import tempfile

        folder = tempfile.mkdtemp() if checkpoint_dir is None else os.fspath(checkpoint_dir)
        os.makedirs(folder, exist_ok=True)
        try:
            write_answer(self.save_checkpoint(folder), folder, type(self).__name__)
            Checkpoint(folder).update_metadata(self.get_state())
            kept = folder if self._storage is None else publish_next(folder, self._storage)
        finally:
            if checkpoint_dir is None and (self._storage is not None or not os.listdir(folder)):
                import shutil

                shutil.rmtree(folder, ignore_errors=True)
        return TrainingResult(Checkpoint(kept), {**self._last_result, **self.get_state()})

    def restore(self, checkpoint_path: TrainingResult | Checkpoint | str | os.PathLike[str]) -> None:
        """Continue from a checkpoint; ValueError when it is not there."""
        result = as_training_result(checkpoint_path)
        self._counting().resume(result.metrics)
        with result.checkpoint.as_directory() as folder:
            self.load_checkpoint(read_saved(folder))

    def reset(self, new_config: dict[str, Any], storage: str | os.PathLike[str] | None = None) -> bool:
        """Turn this into a trial of another config; False when `reset_config` cannot.

        Args:
            new_config: The configuration of the other trial.
            storage: Its directory.
        """
        self.config = new_config
        if storage is not None:
            self._storage = os.fspath(storage)
        if not self.reset_config(new_config):
            return False
        self._own = Progress()
        self._last_result = {}
        return True

    def stop(self) -> None:
        """End the trial; calls `cleanup`."""
        self.cleanup()

    def export_model(
        self, export_formats: str | Sequence[str], export_dir: str | None = None
    ) -> dict[str, str]:
        """Write the model in formats that `_export_model` knows; returns the paths by format.

        Args:
            export_formats: One format or several.
            export_dir: Where to write; by default the trial's directory.
        """
        formats = [export_formats] if isinstance(export_formats, str) else list(export_formats)
        folder = export_dir or self.logdir
        if folder is None:
            raise ValueError(
                f"{type(self).__name__}.export_model has no directory to write to: pass export_dir=..."
            )
        return self._export_model(formats, folder)

    def _counting(self) -> Progress:
        if self._own is None:
            self._own = Progress()
        return self._own

    def _signature(self) -> Signature:
        from muster.host.machine import hostname

        who = Signature(trial_id=self.trial_id, config=self.config, from_function=False)
        who.node_ip, who.pid = self.get_current_ip_pid()
        who.hostname = hostname()
        return who
