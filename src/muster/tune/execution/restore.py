"""tuner.pkl and trainable.pkl: what an experiment was started with, so that it can be gone on with.

Both are pickles and run code when they are read: only `Tuner.restore` and `muster tune resume` do that, for a
directory the user names.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import RestoreError, TuneError
from muster.stores.storage import Storage
from muster.tune.config import RunConfig, TuneConfig
from muster.tune.execution.paths import Place
from muster.tune.search.paths import flat_name, flattened

TUNER_FILE = "tuner.pkl"
TRAINABLE_FILE = "trainable.pkl"
DEFAULT_NAME = "ask"  # of trials without a trainable, which a loop of the user's runs


@dataclass(kw_only=True)
class SavedTuner:
    """The configs as they were before the first trial: searcher and scheduler included."""

    trainable_name: str
    param_space: dict[str, Any]
    tune_config: TuneConfig
    run_config: RunConfig
    overrides: dict[str, Any]  # what tune.run() may be told besides

    def write(self, directory: Path, code: bytes) -> None:
        """TuneError names the part that cannot be pickled."""
        import cloudpickle  # type: ignore[import-untyped]

        kept = {**vars(self), "run_config": copy(self.run_config)}
        kept["run_config"].storage_filesystem = None  # restore is given it again: it may hold a password
        try:
            content = cloudpickle.dumps(kept)
        except Exception as error:
            parts = [name for name, part in kept.items() if not _can_be_pickled(part)]
            raise TuneError(
                f"the experiment could not be resumed later, because its {' and '.join(parts)} cannot be "
                f"pickled: {error}. Keep open files, locks and connections out of it"
            ) from error
        _write(directory / TRAINABLE_FILE, code)
        _write(directory / TUNER_FILE, content)

    @staticmethod
    def read(directory: Path, address: str = "") -> SavedTuner:
        """`address` is what the user calls it, when the directory is only a copy."""
        file = directory / TUNER_FILE
        try:
            found: Mapping[str, Any] = pickle.loads(file.read_bytes())
            return SavedTuner(**found)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{address or directory} has no {TUNER_FILE}, so it is no experiment that can go on. Give "
                "the directory that fit() or run() wrote: <storage_path>/<name>"
            ) from None
        except Exception as error:  # a pickle may raise anything
            raise RestoreError(
                f"{file}: cannot be read ({type(error).__name__}: {error}). Run this where the modules that "
                "the experiment used can be imported"
            ) from error


def opened(path: str, filesystem: Any = None) -> tuple[Place, SavedTuner]:  # noqa: ANN401 - untyped fsspec
    """The experiment at `path`, fetched when it is elsewhere; its run config says where it is now."""
    is_local = filesystem is None and "://" not in path
    whole = os.path.abspath(os.path.expanduser(path)) if is_local else path.rstrip("/")  # "." has a name too
    parent, _, name = whole.rpartition("/")
    place = Place(parent or ("/" if whole.startswith("/") else "."), name, filesystem)
    place.fetch()
    saved = SavedTuner.read(place.directory, place.address)
    run = saved.run_config
    run.name, run.storage_path, run.storage_filesystem = name, place.parent, filesystem
    return place, saved


def saved_trainable(directory: Path) -> Any:  # noqa: ANN401 - function or class
    """The trainable as it was; FileNotFoundError or RestoreError when it cannot be had."""
    file = directory / TRAINABLE_FILE
    try:
        return pickle.loads(file.read_bytes())
    except FileNotFoundError:
        raise
    except Exception as error:
        raise RestoreError(
            f"{file}: cannot be read ({type(error).__name__}: {error}). Run this where the modules that the "
            "trainable used can be imported, or name the trainable"
        ) from error


def can_restore(path: str | os.PathLike[str], filesystem: Any = None) -> bool:  # noqa: ANN401 - untyped fsspec
    return Storage(os.fspath(path), filesystem).exists(TUNER_FILE)


def checked_space(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The space passed to restore: it may bring other objects, but not other keys."""
    before, now = (sorted(flat_name(path) for path in flattened(dict(each))) for each in (saved, given))
    if before != now:
        gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
        told = [f"missing: {', '.join(gone)}"] * bool(gone) + [f"new: {', '.join(new)}"] * bool(new)
        raise ValueError(
            f"Tuner.restore(param_space=...): its keys are not those of the experiment ({'; '.join(told)}). "
            "Pass the same space, with other objects if you like, or start a new experiment"
        )
    return dict(given)


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all: a crash in between must not leave half a pickle."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, file)


def _can_be_pickled(part: object) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(part)
    except Exception:  # noqa: BLE001 - any object may refuse in any way
        return False
    return True
