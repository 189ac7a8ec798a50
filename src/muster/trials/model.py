"""Define Trial and its policies. Attribute names are Ray's, because plug-ins and users read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from muster.base.framing import SCALARS, is_plain, pack, unpack, unpickle
from muster.trials.metrics import Statistics
from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles
from muster.trials.states import FINISHED, PUBLIC, TRIAL_MACHINE, LiveState, TrialState

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint, TrainingResult
    from muster.session.session import TrialStorage


class ExperimentPlace(Protocol):
    """Finds the files of an experiment, here or on a remote storage."""

    def checkpoint(self, path: str) -> Checkpoint: ...

    def for_trials(self) -> bytes | None: ...

    def content(self, name: str) -> bytes | None: ...


class CheckpointRef(Struct, frozen=True, kw_only=True):
    """A checkpoint that exists: its directory, and the metrics when it was made."""

    path: str  # absolute path or URL of the directory
    index: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    # Rows of results that the trial had when it got this; iterations would not tell: an exploit goes back.
    rows: int = 0


class CheckpointPolicy(Struct, frozen=True, kw_only=True):
    """Defines when checkpoints are made and which are kept, from a CheckpointConfig."""

    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: str = "max"
    frequency: int = 0
    at_end: bool = False
    only_score: bool = False  # all but the newest are kept without their other metrics


class FailurePolicy(Struct, frozen=True, kw_only=True):
    """Defines what a failed trial means for itself and for the others."""

    max_failures: int = 0  # -1: retry forever
    fail_fast: bool = False
    raise_first: bool = False  # fail_fast="raise"
    restore_retries: int = 0  # failures while restoring that do not count
    count_preemption: bool = False  # a machine that was taken back counts as a failure


class TrialPolicies(Struct, frozen=True, kw_only=True):
    """The settings that all trials of an experiment share."""

    checkpoint_policy: CheckpointPolicy = CheckpointPolicy()
    max_failures: int = 0
    restore_path: str | None = None
    log_to_file: tuple[str | None, str | None] = (None, None)


_DEFAULTS = TrialPolicies()


class _Policy:
    """A _Policy attribute is the template's until somebody assigns another value to the trial's."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trial: Trial, owner: type | None = None) -> Any:  # noqa: ANN401 - as annotated there
        return getattr(trial.policies, self._name)

    def __set__(self, trial: Trial, value: object) -> None:
        trial.policies = replace(trial.policies, **{self._name: value})


# What is seldom read of a finished trial: bytes stand for it until then.
_PACKABLE = (
    "config",
    "evaluated_params",
    "experiment_tag",
    "export_formats",
    "last_result",
    "last_result_time",
    "location",
    "start_time",
    "statistics",
    "stopping_criterion",
)
_PACKABLE_SET = frozenset({*_PACKABLE, "live"})
_REPEATED = frozenset({int, float, str})
PackedKeys = tuple[tuple[str, Any], ...]  # what the bytes hold: attributes, each with its keys if a dict
_known_keys: dict[PackedKeys, PackedKeys] = {}  # most trials of an experiment have the same
_MOST_KEYS = 256


def _without(values: Mapping[str, Any], result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values with `...` for those that a plain result holds under the same key."""
    known = result or {}
    return {
        key: ... if value and value == (last := known.get(key)) and type(last) in _REPEATED else value
        for key, value in values.items()
    }


class Trial:
    """One configuration being tried. Only `ExperimentState` changes its state.

    Once finished, it may be packed: some of its attributes become bytes until one of them is read.
    """

    # The values of `status`, by the names that plug-ins written for Ray use.
    PENDING, RUNNING, PAUSED, TERMINATED, ERROR = "PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"

    checkpoint_policy, max_failures, restore_path, log_to_file = (_Policy() for _ in range(4))

    __slots__ = (
        "__weakref__",
        "_keys",
        "_packed",
        "adopted",
        "checkpoint_index",
        "checkpoints",
        "config",
        "cost_usd",
        "custom_dirname",
        "custom_trial_name",
        "error_filename",
        "evaluated_params",
        "experiment_dir",
        "experiment_tag",
        "export_formats",
        "has_new_resources",
        "intent",
        "is_unpriced",
        "last_result",
        "last_result_time",
        "live",
        "location",
        "num_failures",
        "num_restore_failures",
        "num_rows",
        "number",
        "pickled_error_filename",
        "place",
        "placement_group_factory",
        "policies",
        "priced_at",
        "relative_logdir",
        "save_s",
        "start_time",
        "state",
        "statistics",
        "stopping_criterion",
        "trainable_name",
        "trial_id",
        "usd_per_hour",
    )

    def __init__(
        self,
        trainable_name: str,
        *,
        trial_id: str,
        config: dict[str, Any] | None = None,
        evaluated_params: Mapping[str, Any] | None = None,
        experiment_tag: str = "",
        placement_group_factory: PlacementGroupFactory | None = None,
        **policies: Any,  # noqa: ANN401 - the remaining attributes, by name
    ) -> None:
        self._packed: bytes | None = None
        self._keys: PackedKeys = ()
        self.trainable_name, self.trial_id = trainable_name, trial_id
        self.config: dict[str, Any] = config if config is not None else {}
        self.live = LiveState()
        self.evaluated_params: dict[str, Any] = dict(evaluated_params or {})
        self.experiment_tag = experiment_tag
        self.placement_group_factory = placement_group_factory or PlacementGroupFactory([{"CPU": 1}])
        self.has_new_resources = False  # other than the template's: part of its saved state
        self.state = TrialState.PENDING
        self.intent = TrialState.TERMINATED  # what STOPPING leads to: PAUSED or TERMINATED
        self.stopping_criterion: dict[str, Any] = {}
        self.policies = _DEFAULTS
        self.export_formats: list[str] = []
        self.custom_trial_name: str | None = None
        self.custom_dirname: str | None = None
        self.relative_logdir: str | None = None
        self.experiment_dir = ""  # set when it is added to an experiment, and so is its place; not saved
        self.place: ExperimentPlace | None = None
        self.number = -1  # in the order of creation; set when the trial is added
        self.location: Mapping[str, Any] = {}  # pid, hostname, node_ip of its process
        self.start_time: float | None = None
        self.num_failures = self.num_restore_failures = 0
        self.num_rows = 0  # results that its files hold; a start takes those after its checkpoint away
        self.error_filename: str | None = None
        self.pickled_error_filename: str | None = None
        self.last_result: dict[str, Any] = {"trial_id": trial_id}
        self.last_result_time = float("-inf")
        self.statistics = Statistics()
        self.checkpoints: tuple[CheckpointRef, ...] = ()  # retained ones, worst first; kept by checkpoints.py
        self.save_s: float | None = None  # how long its last save took, of those that were asked for
        self.checkpoint_index = -1  # of the newest checkpoint ever made
        self.adopted: CheckpointRef | None = None  # of another trial: where it starts until it makes its own
        self.cost_usd: float | None = None  # of the attempts that are over; None: none of them had a price
        self.is_unpriced = False  # an attempt had no price: the cost is not known
        self.usd_per_hour: float | None = None  # of the place it holds; None: not known, or it holds none
        self.priced_at = 0.0  # since when it costs that
        for name, value in policies.items():
            setattr(self, name, value)

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def pack(self) -> None:
        """Turn what is seldom read of a finished trial into bytes; objects of the user stay as they are."""
        if self._packed is not None or self.state not in FINISHED:
            return
        plain: dict[str, Any] = {}
        for name in _PACKABLE:
            value = getattr(self, name)
            if name == "statistics":
                value = _without(value.saved(), plain.get("last_result"))  # plain by itself
            elif name == "last_result":
                value = self._plain_result("config" in plain)
            elif type(value) not in SCALARS and not is_plain(value):
                value = None
            elif name == "location":
                value = _without(value, plain.get("last_result"))
            if value is not None:
                plain[name] = value
        keys = tuple((name, tuple(value) if type(value) is dict else None) for name, value in plain.items())
        values = [list(value.values()) if type(value) is dict else value for value in plain.values()]
        if len(_known_keys) >= _MOST_KEYS:
            _known_keys.clear()
        self._keys, self._packed = _known_keys.setdefault(keys, keys), pack(values, is_small=True)
        for name in (*plain, "live"):
            delattr(self, name)

    def _plain_result(self, config_is_plain: bool) -> dict[str, Any] | None:
        """Return the last result with `...` for the trial's config; None when it is not plain."""
        result = self.last_result
        config = result.get("config")
        if not config_is_plain or not is_plain(config) or pack(config) != pack(self.config):
            return result if is_plain(result) else None
        result = {**result, "config": None}
        if not is_plain(result):
            return None
        result["config"] = ...
        return result

    def unpacked(self) -> dict[str, Any]:
        """Return attributes that are packed, without a change of the trial; empty for a whole one."""
        if self._packed is None:
            return {}
        found: dict[str, Any] = {}
        for (name, inner), value in zip(self._keys, unpack(self._packed), strict=True):
            found[name] = value if inner is None else dict(zip(inner, value, strict=True))
        last = found.get("last_result", {})
        if last.get("config") is ...:
            last["config"] = dict(found["config"])
        for name, kind in (("location", None), ("statistics", float)):
            for key, value in found.get(name, {}).items():
                if value is ...:
                    found[name][key] = kind(last[key]) if kind else last[key]
        found["statistics"] = Statistics(found["statistics"])
        for name in list(found):
            with suppress(AttributeError):
                object.__getattribute__(self, name)
                del found[name]  # assigned since
        return found

    if not TYPE_CHECKING:  # or every name would be an attribute

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any attribute
            """Unpack the trial: called only for a slot without a value."""
            if name not in _PACKABLE_SET or self._packed is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            values, self._packed, self._keys = self.unpacked(), None, ()
            self.live = LiveState()
            for each, value in values.items():
                setattr(self, each, value)
            return getattr(self, name)

    @property
    def status(self) -> str:
        """The state by one of Ray's five names. A trial that is stopping counts as stopped."""
        return PUBLIC[self.intent if self.state is TrialState.STOPPING else self.state]

    def is_finished(self) -> bool:
        """Return whether the trial has ended for good, or is about to."""
        return self.state in FINISHED or (
            self.state is TrialState.STOPPING and self.intent is TrialState.TERMINATED
        )

    @property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """A copy of `max, min, avg, last, last-5-avg, last-10-avg` of every flat metric."""
        return self.statistics.analysis()

    @property
    def metric_n_steps(self) -> dict[str, dict[str, deque[float]]]:
        """A copy of the last `5` and `10` values of every flat metric."""
        return self.statistics.windows()

    @property
    def newest(self) -> CheckpointRef | None:
        """The checkpoint that the trial continues from: an adopted one, else its newest."""
        if self.adopted is not None:
            return self.adopted
        return max(self.checkpoints, key=lambda c: c.index, default=None)

    @property
    def local_path(self) -> str | None:
        """The directory of the trial on this machine; None before it was added to an experiment."""
        return f"{self.experiment_dir}/{self.relative_logdir}" if self.relative_logdir else None

    path = logdir = local_dir = local_path  # the other names scripts and callbacks read

    @property
    def checkpoint_freq(self) -> int:
        return int(self.checkpoint_policy.frequency)

    @property
    def checkpoint_at_end(self) -> bool:
        return bool(self.checkpoint_policy.at_end)

    def has_checkpoint(self) -> bool:
        return self.newest is not None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """A handle on the checkpoint that the trial continues from; `newest` has its metrics."""
        return None if self.newest is None else self.handle(self.newest)

    @property
    def latest_checkpoint_result(self) -> TrainingResult | None:
        """The same checkpoint, with the result that it was made at."""
        from muster.session.checkpoint import TrainingResult

        newest = self.newest
        return None if newest is None else TrainingResult(self.handle(newest), newest.metrics)

    def handle(self, ref: CheckpointRef) -> Checkpoint:
        """Return the checkpoint as the object that users know: here, or on a remote storage."""
        from muster.session.checkpoint import Checkpoint

        return Checkpoint(ref.path) if self.place is None else self.place.checkpoint(ref.path)

    @property
    def storage(self) -> TrialStorage:
        """The places of the trial's files, with the names of Ray's storage context."""
        from muster.session.session import TrialStorage

        remote = None if self.place is None else self.place.for_trials()
        return TrialStorage(self.local_path or "", remote, self.checkpoint_index)

    @property
    def run_metadata(self) -> Trial:
        """The trial itself, for code that reads `start_time` or `last_result` where Ray keeps them."""
        return self

    @property
    def num_failures_after_restore(self) -> int:
        return 0  # Ray never counts these either

    @property
    def has_reported_at_least_once(self) -> bool:
        return self.last_result_time > float("-inf")

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint of the trial is being made; a decision may wait for it."""
        return self.state is TrialState.SAVING

    @property
    def is_restoring(self) -> bool:
        """Whether the trial is loading a checkpoint; its process may not be up yet."""
        return self.state is TrialState.STARTING and self.newest is not None

    @property
    def node_ip(self) -> str | None:
        """The address of the machine on which the trial runs; None before it runs."""
        found: str | None = self.location.get("node_ip")
        return found

    @property
    def experiment_dir_name(self) -> str:
        return self.experiment_dir.rstrip("/").rpartition("/")[2]

    @property
    def local_experiment_path(self) -> str:
        """The directory of the experiment, in which files are written directly."""
        return self.experiment_dir

    remote_experiment_path = local_experiment_path

    @property
    def error_file(self) -> str | None:
        """The text file about the failures of the trial; None when it has not failed."""
        return self._file(self.error_filename)

    @property
    def pickled_error_file(self) -> str | None:
        return self._file(self.pickled_error_filename)

    def get_error(self) -> str | None:
        """Return what `error.txt` holds; None when the trial has not failed."""
        content = self._content(self.error_filename)
        return None if content is None else content.decode("utf-8", "replace")

    def get_pickled_error(self) -> Exception | None:
        """Return the exception of the last failure; None as `get_error` does, or if it has no pickle."""
        content = self._content(self.pickled_error_filename)
        return None if content is None else unpickle(content)

    def _content(self, name: str | None) -> bytes | None:
        return self.place.content(f"{self.relative_logdir}/{name}") if name and self.place else None

    def _file(self, name: str | None) -> str | None:
        return f"{self.local_path}/{name}" if name and self.local_path else None

    def note_result(
        self, result: dict[str, Any], flat: Mapping[str, Any], at: float, *, is_light: bool = False
    ) -> None:
        """Make this the last result and add it to the statistics; `flat` must not be changed afterwards."""
        self.last_result, self.last_result_time = result, at
        self.num_rows += 1
        self.statistics.note(flat, is_light=is_light)

    def set_config(self, config: dict[str, Any]) -> None:
        """Set what the trial is tried with from its next start on; schedulers call it."""
        self.config = config

    def set_experiment_tag(self, experiment_tag: str) -> None:
        self.experiment_tag = experiment_tag

    def update_resources(self, resources: PlacementGroupFactory | Mapping[str, Any]) -> None:
        """Set what the trial needs from its next start on; schedulers call it while the trial is paused."""
        if self.status == Trial.RUNNING:
            raise ValueError(
                f"trial {self.trial_id} is running: its resources can change only while it is paused or waits"
            )
        if not isinstance(resources, PlacementGroupFactory):
            resources = resource_dict_to_bundles(resources)
        self.placement_group_factory = resources
        self.has_new_resources = True

    def move(self, target: TrialState) -> None:
        """Take one transition of the table; a transition to the same state does nothing."""
        if target is not self.state:
            TRIAL_MACHINE.check(f"trial {self.trial_id}", self.state, target)
            self.state = target

    def __str__(self) -> str:
        if self.custom_trial_name:
            return self.custom_trial_name
        env = self.config.get("env")
        name = getattr(env, "__name__", env) if env is not None else None
        parts = [self.trainable_name, *([str(name)] if name else []), self.trial_id]
        return "_".join(parts).replace("/", "_")

    __repr__ = __str__
