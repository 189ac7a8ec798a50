"""Save schedulers and stoppers as bytes and restores them.

Our own classes save plain JSON with a version; a user's class, whose attributes are unknown, is pickled as a
whole, with trials by reference. Called by the experiment store.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import to_builtins

from muster.base import by_value
from muster.base.untrusted import message_text
from muster.errors import RestoreError, public_constructor
from muster.host.machine import answers_for_ray, environment
from muster.trials.model import Trial
from muster.tune.config import seconds
from muster.tune.tune_config import TuneConfig, constraints_of, goal_of

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState


Plain = dict[str, Any]


class PluginState:
    """The base of schedulers and stoppers.

    A class whose state is plain data sets `_state_kind`, names the attributes that are saved as they are, and
    extends `_to_plain` and `_from_plain` for the others.
    Its subclasses are pickled nevertheless, because they may have more attributes.
    """

    _state_kind = ""
    _state_version = 1
    _plain_attributes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**options)
        public_constructor(cls)

    def save_state(self) -> bytes:
        """Return everything that determines later answers; equal states give equal bytes."""
        if not self._saves_plain_data:
            return _pickled(self)
        content = {"kind": self._state_kind, "version": self._written_version, "state": self._to_plain()}
        return json.dumps(content, separators=(",", ":")).encode()

    def restore_state(self, state: bytes, trials: Mapping[str, Trial] | None = None) -> None:
        """Restore the state that another object saved; `trials` resolves saved references to trials."""
        if self._saves_plain_data:  # never unpickles: a file cannot run code through it
            self._from_plain(self._checked(state))
        else:
            vars(self).update(_unpickled(self, state, trials or {}))

    @property
    def _written_version(self) -> int:
        return self._state_version

    @property
    def _saves_plain_data(self) -> bool:
        return "_state_kind" in vars(type(self))

    def _to_plain(self) -> Plain:
        return {name: getattr(self, name) for name in self._plain_attributes}

    def _from_plain(self, state: Plain) -> None:
        for name in self._plain_attributes:
            setattr(self, name, state[name])

    def _checked(self, state: bytes) -> Plain:
        name = type(self).__name__
        try:
            content = json.loads(state)
        except ValueError as error:
            raise RestoreError(
                f"{name}: its saved state is damaged ({error})", fix="restore an older one"
            ) from error
        if content.get("kind") != self._state_kind:
            raise RestoreError(
                f"{name}: the saved state is of kind {content.get('kind')!r}",
                fix="pass what the first run had",
            )
        if content["version"] > self._state_version:
            raise RestoreError(f"{name}: its state was saved by a newer muster", fix="upgrade to restore it")
        plain: Plain = content["state"]
        return plain


def refuse(owner: str, *faults: tuple[bool, str]) -> None:
    """Raise a ValueError with the first message whose condition is true."""
    for is_wrong, message in faults:
        if is_wrong:
            raise ValueError(f"{owner}: {message}")


def plain_number(value: Any) -> float:  # noqa: ANN401 - numpy's scalars cannot be saved as they are
    return value if type(value) in (int, float) else float(value)


def saved_by_path(save: Callable[[str], object]) -> bytes:
    """Return what Ray's `save(path)` of a plug-in writes; nothing for one that writes no file."""
    with TemporaryDirectory(prefix="muster-state-") as directory:
        path = Path(directory) / "state"
        save(str(path))
        return path.read_bytes() if os.listdir(directory) else b""


def restore_by_path(restore: Callable[[str], object], state: bytes) -> None:
    """Call Ray's `restore(path)` of a plug-in with a file that holds `state`, unless there is none."""
    if not state:
        return
    with TemporaryDirectory(prefix="muster-state-") as directory:
        path = Path(directory) / "state"
        path.write_bytes(state)
        restore(str(path))


def _pickled(plugin: PluginState) -> bytes:
    class ByReference(by_value.pickler()):  # type: ignore[misc]  # a base that is known only now
        def persistent_id(self, obj: object) -> str | None:
            return obj.trial_id if isinstance(obj, Trial) else None

    buffer = io.BytesIO()
    try:
        ByReference(buffer).dump(vars(plugin))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise RestoreError(
            f"{type(plugin).__name__} cannot be saved ({message_text(error)}): give it save_state() and "
            "restore_state(), or keep what cannot be pickled out of its attributes"
        ) from error
    return buffer.getvalue()


def _unpickled(plugin: PluginState, state: bytes, trials: Mapping[str, Trial]) -> Plain:
    name = type(plugin).__name__

    class ByReference(pickle.Unpickler):
        def persistent_load(self, pid: str) -> Trial:
            if pid not in trials:
                raise RestoreError(
                    f"{name}: its saved state names trial {pid}, which the experiment does not have"
                )
            return trials[pid]

    try:
        attributes: Plain = ByReference(io.BytesIO(state)).load()
    except RestoreError:
        raise
    except Exception as error:  # damaged pickles raise anything
        raise RestoreError(f"{name}: its saved state cannot be read ({error})") from error
    return attributes


def settings_record(
    trainable_name: str, tune: TuneConfig, state: ExperimentState, command: object = None
) -> dict[str, Any]:
    """Return names and numbers only, and the text of a command. Several metrics stay a list."""
    search: Any = state.plugins.search
    metric, mode = goal_of(tune.metric, tune.mode, search)
    constraints = constraints_of(tune.constraints, search)
    return {
        "trainable_name": trainable_name,
        "metric": _plain(metric) or state.settings.metric,
        "mode": _plain(mode) or state.settings.mode,
        "search_alg": type(getattr(search, "searcher", search)).__name__,
        "scheduler": type(state.plugins.scheduler).__name__,
        "num_samples": tune.num_samples,
        "total_trials": getattr(search, "total_samples", None) or None,
        "max_concurrent_trials": tune.max_concurrent_trials,
        "time_budget_s": seconds(tune.time_budget_s, "TuneConfig(time_budget_s=...)"),
        "cost_budget": state.limits.cost_budget,
        "deadline": state.limits.deadline,
        **({"constraints": constraints} if constraints else {}),
        **({} if command is None else {"command": to_builtins(command)}),
        **({"as_ray": environment()["MUSTER_AS_RAY"]} if answers_for_ray() else {}),
    }


def _plain(value: object) -> str | list[str] | None:
    if value is None or isinstance(value, str):
        return value
    return [str(each) for each in value] if isinstance(value, list | tuple) else str(value)
