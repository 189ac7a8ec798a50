"""Run a training loop of Ray Train with one worker, in the process that calls `fit`.

Inside a trial, what the loop reports becomes the Result of `fit`; the trial reports for itself.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from muster.base.clock import SystemClock
from muster.errors import TuneError, public
from muster.host import machine
from muster.session import session as sessions
from muster.session.checkpoint import Checkpoint
from muster.session.progress import Progress
from muster.session.publish import checkpoint_name
from muster.session.session import PreemptionInfo, Session, TuneContext
from muster.tune.config import RunConfig
from muster.tune.execution.paths import dated_name
from muster.tune.integration.ray_train import TuneReportCallback
from muster.tune.result import Result

_ONE = "use one worker: ScalingConfig(num_workers=1)"


@public
@dataclass
class ScalingConfig:
    """What a trainer runs on, with Ray's fields; here one worker, on this machine.

    Args:
        num_workers: Must be 1 when the trainer runs.
        use_gpu: Whether `get_device` returns a GPU.
    """

    trainer_resources: dict[str, Any] | None = None
    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: dict[str, Any] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    use_tpu: bool = False
    topology: str | None = None
    bundle_label_selector: Any = None

    @property
    def total_resources(self) -> dict[str, float]:
        one = {"CPU": 1, **({"GPU": 1} if self.use_gpu else {}), **(self.resources_per_worker or {})}
        return {name: float(amount) * self.num_workers for name, amount in one.items()}


def check_workers(scaling: ScalingConfig, trainer: str) -> None:
    """Refuse more than one worker: the one place that decides it."""
    if scaling.num_workers != 1:
        raise TuneError(
            f"{trainer}(scaling_config=ScalingConfig(num_workers={scaling.num_workers!r})): muster.as_ray "
            "runs trainers with one worker, in the process of the trial",
            fix=_ONE,
        )


class UserCallback:
    """Base of callbacks of Ray Train; the trainer calls `after_report` and `after_exception`."""

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:  # noqa: ANN401 - Ray's
        """Follow a report of the worker."""

    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:  # noqa: ANN401 - Ray's
        """Follow an exception of the worker."""


@public
def get_dataset_shard(dataset_name: str | None = None) -> NoReturn:
    """Refuse: datasets are Ray Data's."""
    raise TuneError(
        f"get_dataset_shard({dataset_name!r}): muster.as_ray has no Ray Data",
        fix="load the data in the training loop",
    )


class BackendConfig:
    """Base of the settings of a framework's process group."""


class WorkerContext(TuneContext):
    """Names of the trial, and the ranks of a group with one worker."""

    @staticmethod
    def _rank_shim(name: str, answer: int) -> int:
        del name
        return answer


class _WorkerSession:
    """Session of the training loop: keeps the last metrics and checkpoint, and tells the callbacks."""

    def __init__(self, folder: str, outer: Session | None, callbacks: list[Any]) -> None:
        self.folder, self._outer, self._callbacks = folder, outer, callbacks
        self.progress = Progress()
        self.context: TuneContext = WorkerContext(**_names(outer, folder))
        self.metrics: dict[str, Any] | None = None
        self.checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = []
        self.start: Checkpoint | None = None

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        kept = None if checkpoint is None else self._keep(checkpoint)
        self.metrics = dict(metrics)
        if kept is not None:
            self.checkpoints.append((kept, self.metrics))
        for callback in self._callbacks:
            if isinstance(callback, TuneReportCallback) and self._outer is not None:
                path = {} if kept is None else {"checkpoint_path": kept.path}
                self._outer.report({**self.metrics, **path})
            elif hasattr(callback, "after_report"):
                callback.after_report(None, [self.metrics], kept)

    def _keep(self, checkpoint: Checkpoint) -> Checkpoint:
        """Copy what the loop may delete as soon as `report` returns."""
        target = os.path.join(self.folder, checkpoint_name(len(self.checkpoints)))
        shutil.rmtree(target, ignore_errors=True)
        return Checkpoint(checkpoint.to_directory(target))

    def get_checkpoint(self) -> Checkpoint | None:
        return self.checkpoints[-1][0] if self.checkpoints else self.start

    def get_preemption_info(self) -> PreemptionInfo | None:
        return None if self._outer is None else self._outer.get_preemption_info()

    def should_checkpoint(self) -> bool:
        return self._outer is not None and self._outer.should_checkpoint()


def _names(outer: Session | None, folder: str) -> dict[str, Any]:
    if outer is None:
        return {"experiment_name": os.path.basename(folder), "trial_dir": folder}
    context = outer.context
    return {
        "experiment_name": context.get_experiment_name(),
        "trial_name": context.get_trial_name(),
        "trial_id": context.get_trial_id(),
        "trial_dir": folder,
        "resources": context.get_trial_resources(),
    }


@contextmanager
def _in_place_of_the_trial(session: _WorkerSession) -> Iterator[None]:
    """Make a session the current one of this process, threads included, and restore the trial's after it."""
    before = sessions._default[0]
    token = sessions.install(session, whole_process=True)
    try:
        yield
    finally:
        sessions.uninstall(token)
        sessions._default[0] = before


class OneWorkerTrainer:
    """Trainer whose loop runs once, in this process."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: dict[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        **ignored: Any,  # noqa: ANN401 - metadata, dataset_config and the like
    ) -> None:
        """Take Ray's arguments; `datasets` and further ones must be empty.

        Args:
            train_loop_per_worker: Function of the config, or of nothing.
            train_loop_config: What the function is called with.
            scaling_config: The number of workers, 1.
            run_config: The place of checkpoints outside of a trial, and callbacks.
            resume_from_checkpoint: What `get_checkpoint` returns before the first report.

        Raises:
            TuneError: More than one worker, or datasets.
        """
        self.__name__ = type(self).__name__  # a trainable has one
        self.scaling_config = scaling_config or ScalingConfig()
        check_workers(self.scaling_config, self.__name__)
        if datasets:
            raise TuneError(
                f"{self.__name__}(datasets=...): muster.as_ray has no Ray Data",
                fix="load the data in the training loop",
            )
        self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = dict(train_loop_config or {})
        self.run_config = run_config or RunConfig()
        self.resume_from_checkpoint = resume_from_checkpoint
        del ignored

    def fit(self) -> Result:
        """Run the loop and return its last metrics and checkpoint; what the loop raises is raised."""
        outer = sessions.current()
        folder = self._folder(outer)
        os.makedirs(folder, exist_ok=True)
        session = _WorkerSession(folder, outer, list(self.run_config.callbacks or ()))
        session.start = self.resume_from_checkpoint
        with _in_place_of_the_trial(session):
            self._loop(self.train_loop_config)
        newest = session.checkpoints[-1][0] if session.checkpoints else None
        return Result(session.metrics, newest, None, folder, best_checkpoints=list(session.checkpoints))

    def _folder(self, outer: Session | None) -> str:
        name = self.run_config.name or dated_name(self.__name__, SystemClock().now(), machine.environment())
        place = None if outer is None else outer.context.get_trial_dir()
        return os.path.join(place or os.path.expanduser(str(self.run_config.storage_path)), name)

    def _loop(self, config: dict[str, Any]) -> Any:  # noqa: ANN401 - what the loop returns
        takes = inspect.signature(self.train_loop_per_worker).parameters
        return self.train_loop_per_worker(config) if takes else self.train_loop_per_worker()

    def __call__(self, config: dict[str, Any]) -> None:
        """Run the loop as a trial, which then reports what the loop reports: `Tuner(trainer)`."""
        own = config.get("train_loop_config", {})
        self._loop({**self.train_loop_config, **own})


def is_gpu_wanted(scaling: ScalingConfig | None = None) -> bool:
    return bool(machine.gpu_ids()) and (scaling is None or scaling.use_gpu)
