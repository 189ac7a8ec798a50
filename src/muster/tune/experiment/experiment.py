"""Define Experiment, the arguments of `tune.run` as one object; run_experiments takes several of them.

An Experiment is checked when it is made, and starts nothing: tune/tune.py runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import type_text
from muster.errors import TuneError, public
from muster.session.checkpoint import Checkpoint
from muster.session.older import accept_older, warn_user
from muster.tune.config import CheckpointConfig, RunConfig, SyncConfig, log_files, seconds
from muster.tune.registry import get_trainable, register_trainable
from muster.tune.stopper.function_stopper import resolve_stop
from muster.tune.trainable.function_trainable import checked_trainable, trainable_name
from muster.tune.trainable.util import checkpoint_policy

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.stopper import Stopper

OLDER_POLICY = {  # Ray 1's arguments for checkpoints, and the fields of CheckpointConfig
    "keep_checkpoints_num": "num_to_keep",
    "checkpoint_score_attr": "checkpoint_score_attribute",
    "checkpoint_freq": "checkpoint_frequency",
    "checkpoint_at_end": "checkpoint_at_end",
}
PUBLIC_KEYS = frozenset({"stop", "num_samples", "time_budget_s"})


@public
class Experiment:
    """A trainable, its search space and how its trials are run.

    Args:
        name: The name of the experiment and its directory; empty: made from the trainable and the time.
        run: A function of a config, a Trainable class, or a registered name.
        stop: As in RunConfig.
        config: The search space.
        restore: A checkpoint's directory that every trial begins with.

    The others mean what they mean in RunConfig and TuneConfig.

    Example:
        >>> Experiment("squares", lambda config: {"y": config["x"] ** 2}, config={"x": 3}).run_identifier
        'lambda'
    """

    PUBLIC_KEYS = PUBLIC_KEYS
    run_identifier: str  # the name of the trainable

    def __init__(  # noqa: PLR0913 - Ray's parameters, in Ray's order
        self,
        name: str | None,
        run: Any,  # noqa: ANN401 - function, class or name
        *,
        stop: Any = None,  # noqa: ANN401
        time_budget_s: float | timedelta | None = None,
        config: dict[str, Any] | None = None,
        resources_per_trial: Any = None,  # noqa: ANN401
        num_samples: int = 1,
        storage_path: str | os.PathLike[str] | None = None,
        storage_filesystem: Any = None,  # noqa: ANN401
        sync_config: SyncConfig | Mapping[str, Any] | None = None,
        checkpoint_config: CheckpointConfig | Mapping[str, Any] | None = None,
        trial_name_creator: Callable[[Trial], str] | None = None,
        trial_dirname_creator: Callable[[Trial], str] | None = None,
        log_to_file: bool | str | Sequence[str] = False,
        export_formats: Sequence[str] | None = None,
        max_failures: int = 0,
        restore: str | os.PathLike[str] | None = None,
        local_dir: str | None = None,
        **older: Any,  # noqa: ANN401 - Ray 1's arguments for checkpoints
    ) -> None:
        if local_dir is not None:
            accept_older("Experiment(local_dir=...)", "use storage_path")
            storage_path = storage_path or local_dir
        if older:
            checkpoint_config = with_older_policy(checkpoint_config, older, "Experiment")
        self.name = name
        self.trainable = get_trainable(run) if isinstance(run, str) else checked_trainable(run)
        self.run_identifier = self.register_if_needed(run)
        self.stop, self.time_budget_s = stop, time_budget_s
        self.config = _checked_config(config)
        self.resources_per_trial = resources_per_trial
        self.num_samples, self.max_failures = num_samples, max_failures
        self.storage_path, self.storage_filesystem = storage_path, storage_filesystem
        self.sync_config = _part(SyncConfig, sync_config)
        self.checkpoint_config = _part(CheckpointConfig, checkpoint_config)
        # By default run() makes no checkpoint at the end; the Tuner does, for classes.
        self.checkpoint_config.checkpoint_at_end = bool(self.checkpoint_config.checkpoint_at_end)
        self.trial_name_creator = trial_name_creator
        self.trial_dirname_creator = trial_dirname_creator
        self.log_to_file = log_to_file
        self.export_formats = (
            [export_formats] if isinstance(export_formats, str) else list(export_formats or ())
        )
        self.restore = None if restore is None else os.fspath(restore)
        if self.restore is not None and "://" not in self.restore:  # absolute, because trials run elsewhere
            self.restore = Checkpoint(os.path.abspath(os.path.expanduser(self.restore))).path
        self._check()

    def _check(self) -> None:
        checkpoint_policy(self.trainable, self.checkpoint_config)
        if not all(isinstance(each, str) for each in self.export_formats):
            raise TuneError(
                f"Experiment(export_formats=...): export_formats takes names, not {self.export_formats!r}"
            )
        log_files(self.log_to_file)
        resolve_stop(self.stop)
        seconds(self.time_budget_s, "Experiment(time_budget_s=...)")

    @property
    def stopper(self) -> Stopper | None:
        """A new object that ends the experiment early; new each time, because it counts."""
        return resolve_stop(deepcopy(self.stop), self.time_budget_s).stopper

    @property
    def public_spec(self) -> dict[str, Any]:
        """What callbacks receive in their `setup`."""
        return {name: getattr(self, name) for name in sorted(PUBLIC_KEYS)}

    @property
    def path(self) -> str | None:
        """The directory of the experiment; None while it has no name."""
        place = RunConfig(storage_path=self.storage_path).storage_path
        return None if not self.name else os.path.join(os.path.expanduser(str(place)), self.name)

    local_path = local_dir = remote_path = checkpoint_dir = path  # Ray's other names of the one directory

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Return an Experiment from a dict of arguments, with `run`; TuneError names what is wrong.

        Args:
            name: The experiment's name.
            spec: Its settings by Ray's names; `run` is the trainable.
        """
        if "run" not in spec:
            raise TuneError(f"the experiment {name!r} has no trainable: add the key `run` to {dict(spec)!r}")
        try:
            return cls(name, **spec)
        except TypeError as error:
            raise TuneError(f"the experiment {name!r} cannot be understood: {error}") from error

    @classmethod
    def get_trainable_name(cls, run_object: Any) -> str:  # noqa: ANN401
        """Return the name of the trainable, which the trials carry."""
        return trainable_name(run_object)

    @classmethod
    def register_if_needed(cls, run_object: Any) -> str:  # noqa: ANN401
        """Register the trainable and return its name; TuneError for a name that is not registered."""
        name = trainable_name(run_object)
        if isinstance(run_object, str):
            get_trainable(name)
        else:
            register_trainable(name, run_object, warn=False)
        return name

    def __repr__(self) -> str:
        return f"Experiment({self.name!r}, {self.run_identifier})"


def as_experiments(given: object) -> list[Experiment]:
    """Return Experiments from one, a list, or a dict `name -> arguments`; TuneError for anything else."""
    if isinstance(given, Experiment):
        return [given]
    if isinstance(given, Mapping):
        return [
            spec if isinstance(spec, Experiment) else Experiment.from_json(name, spec)
            for name, spec in given.items()
        ]
    if isinstance(given, list | tuple) and all(isinstance(each, Experiment) for each in given):
        return list(given)
    raise TuneError(
        f"experiments are given as an Experiment, a list of them, or a dict name -> arguments, not {given!r}"
    )


def _checked_config(config: object) -> dict[str, Any]:
    if config is not None and not isinstance(config, Mapping):
        kind = type(config).__name__
        raise ValueError(f"Experiment(config=...): must be a dict (the search space), not a {kind}")
    from muster.tune.search.check_space import check_space

    check_space(config or {}, "config")
    return dict(config or {})


def _part(kind: type[Any], given: Any) -> Any:  # noqa: ANN401 - an instance of `kind`
    if given is None:
        return kind()
    if isinstance(given, Mapping):
        return kind(**given)
    if not isinstance(given, kind):
        raise ValueError(f"Experiment: got {type_text(given)} where a {kind.__name__} is needed")
    return deepcopy(given)


def with_older_policy(given: Any, older: Mapping[str, Any], caller: str) -> CheckpointConfig:  # noqa: ANN401
    """Return a CheckpointConfig with what Ray 1 took as separate arguments."""
    if unknown := older.keys() - OLDER_POLICY.keys():
        raise TypeError(f"{caller}() got an unexpected keyword argument {min(unknown)!r}")
    config: CheckpointConfig = _part(CheckpointConfig, given)
    for name, attribute in OLDER_POLICY.items():
        if older.get(name):
            warn_user(f"{caller}({name}=...) is deprecated: use CheckpointConfig({attribute}=...)")
            setattr(config, attribute, older[name])
    score = older.get("checkpoint_score_attr")
    if score:
        config.checkpoint_score_attribute = score.removeprefix("min-")
        config.checkpoint_score_order = "min" if score.startswith("min-") else "max"
    config.__post_init__()  # the values that came in are checked too
    return config
