"""Run one trainable inside a worker: a function to its end, a class step by step until it is stopped.

Classes are known by their methods (setup, step, save_checkpoint, load_checkpoint, reset_config, cleanup); the
constructor takes the config and calls setup, as Ray's does.
"""

from __future__ import annotations

import errno
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from numbers import Number
from types import GeneratorType
from typing import Any

from muster.engines.worker.session import Saved, TrialSession, refuse_tensors
from muster.session import older
from muster.session.progress import Signature, fill_result
from muster.session.publish import (
    deleted_on_failure,
    explained,
    publish_staged,
    staging_path,
    when_there_is_room,
)
from muster.session.session import current

IMPORT_OURS = "import it from muster (`muster compat SCRIPT --write` changes the imports)"
_RAYS_SESSION = "ray.train._internal.session"


class ResetRefused(Exception):
    """A class trainable cannot take another config in the same process."""


class CheckpointMissing(Exception):
    """The checkpoint to continue from does not exist any more."""


def run_function(function: Callable[[Any], Any], config: dict[str, Any], session: TrialSession) -> None:
    """Call the function, and report what it returns or yields too."""
    refuse_rays_session()
    session.begin()
    report_output(function(config), session.report)


def report_output(output: object, report: Callable[[dict[str, Any]], None]) -> None:
    """Report what a function trainable returned, or yields."""
    if isinstance(output, GeneratorType):
        for value in output:
            _report_value(value, report)
    else:
        _report_value(output, report)


def _report_value(value: object, report: Callable[[dict[str, Any]], None]) -> None:
    refuse_tensors(value)
    if isinstance(value, dict | Number):
        if value:
            report(value if isinstance(value, dict) else {"_metric": value})
        else:
            warnings.warn(
                f"a trainable returned {value!r}, which is not reported; report it instead", stacklevel=2
            )
    elif value is not None and (not isinstance(value, str | list | tuple) or value):
        raise ValueError(f"a trainable may return or yield a dict or a number, not {type(value).__name__}")


class ClassRun:
    """Holds an instance of a class trainable; it lives as long as the process, through resets."""

    def __init__(self, kind: Callable[..., Any], config: dict[str, Any]) -> None:
        self._trainable = kind(config=config)

    def reset(self, config: dict[str, Any]) -> None:
        """Take another config, or raise ResetRefused."""
        reset_config = getattr(self._trainable, "reset_config", None)
        self._trainable.config = config
        if reset_config is None or not reset_config(config):
            name = type(self._trainable).__name__
            raise ResetRefused(
                f"{name}.reset_config did not return True; implement it or do not reuse processes"
            )

    def load(self, path: str) -> None:
        """Hand a checkpoint to load_checkpoint."""
        require_checkpoint(path)
        self._trainable.load_checkpoint(read_saved(path))

    def train(self, session: TrialSession, trial_dir: str, who: Signature) -> None:
        """Run step after step, until a stop raises."""
        session.on_save = lambda is_optional: self._save(session, trial_dir, is_optional)
        log_result = getattr(self._trainable, "log_result", None)
        # The public base class has one that does nothing: not worth filling in every result here too.
        if log_result is not None and not log_result.__module__.startswith("muster.tune."):
            session.on_result = lambda metrics, stamp, now: log_result(
                fill_result(dict(metrics), stamp, who, now=now)
            )
        while True:
            session.begin()
            result = self._trainable.step()
            if not isinstance(result, dict):
                raise TypeError(f"step() must return a dict, not {type(result).__name__}")
            session.report(result)

    def _save(self, session: TrialSession, trial_dir: str, is_optional: bool) -> Saved:
        """Let the trainable save itself; on a full disk again, until there is room."""
        who, (index, name) = type(self._trainable).__name__, session.next_checkpoint()
        partial = staging_path(trial_dir, name)
        try:
            answer = when_there_is_room(lambda: self._answer(partial), trial_dir)
            with deleted_on_failure(partial), explained(name, partial):
                when_there_is_room(lambda: write_answer(answer, partial, who), trial_dir)
                path = when_there_is_room(lambda: publish_staged(partial, trial_dir, name), trial_dir)
            session.note_checkpoint(index, path)
        except (NotImplementedError, OSError) as error:
            if not is_optional:
                raise
            return None, str(error) or f"{who} has no save_checkpoint"
        return index, ""

    def _answer(self, partial: str) -> object:
        with deleted_on_failure(partial):
            os.makedirs(partial, exist_ok=True)
            return self._trainable.save_checkpoint(partial)

    def cleanup(self) -> None:
        cleanup = getattr(self._trainable, "cleanup", None)
        if cleanup is not None:
            cleanup()


def require_checkpoint(path: str) -> None:
    """Raise CheckpointMissing when a local directory does not exist; other places are checked when read."""
    if "://" not in path and not os.path.isdir(path):
        raise CheckpointMissing(f"the checkpoint {path} does not exist any more")


def write_answer(answer: object, folder: str, who: str) -> None:
    """Complete the checkpoint in `folder`, given what `save_checkpoint(folder)` returned."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "save_checkpoint deleted its directory", folder)
    place = os.path.relpath(answer, folder) if isinstance(answer, str) else ""
    if isinstance(answer, Mapping):
        from muster.base.framing import pickled

        file = os.path.join(folder, older.DICT_CHECKPOINT)
        with deleted_on_failure(file), open(file, "wb") as stream:
            stream.write(pickled(dict(answer)))
    elif place and place != "." and not place.startswith(os.pardir) and older.is_on():
        older.keep_returned_file(place, folder, who)
    elif place not in ("", "."):
        fix = "write the files into the given directory and return it, or return a dict"
        raise ValueError(f"{who}.save_checkpoint was given {folder} and returned {answer}; {fix}")
    elif answer is not None and not place:
        kind = type(answer).__name__
        raise TypeError(f"{who}.save_checkpoint returned a {kind}; return a dict, its directory or nothing")


def read_saved(folder: str) -> Any:  # noqa: ANN401 - a user's dict
    """Return the argument of load_checkpoint: the dict that was saved, else the directory."""
    saved = os.path.join(folder, older.DICT_CHECKPOINT)
    if not os.path.exists(saved):
        return older.returned_path(folder)
    with open(saved, "rb") as stream:
        return pickle.load(stream)


class _RaysSession:
    """Guards Ray's session when a trial imports it; a finder of modules."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> Any:  # noqa: ANN401 - a ModuleSpec with its loader changed
        if name != _RAYS_SESSION:
            return None
        sys.meta_path.remove(cls)
        spec: Any = find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), refuse_rays_session())  # type: ignore[func-returns-value]
        return spec


def refuse_rays_session() -> None:
    """Make Ray's own `report` and `get_checkpoint` raise in a trial, where Ray only warns, once."""
    module: Any = sys.modules.get(_RAYS_SESSION)
    warns = getattr(module, "log_once", None)
    if module is None and _RaysSession not in sys.meta_path:
        sys.meta_path.insert(0, _RaysSession)
    elif warns is not None and warns.__module__ != __name__:

        def refuse(key: str) -> object:
            name = key.rpartition("-")[2]
            if current() is not None and name in ("report", "get_checkpoint"):
                raise RuntimeError(f"Ray's own {name}() has no effect in a trial of muster: {IMPORT_OURS}")
            return warns(key)

        module.log_once = refuse  # Ray calls it where it has no session, with the name of the function
