"""Read an experiment of Ray Tune into one of muster, for `muster compat --experiment`; unpickles nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.errors import StoreError
from muster.session.publish import deleted_on_failure
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials import events
from muster.trials.metrics import flatten
from muster.trials.model import CheckpointRef
from muster.tune.analysis import result_files as keys
from muster.tune.analysis.result_files import TrialFolder

_LOGS = (keys.EXPR_RESULT_FILE, keys.EXPR_PROGRESS_FILE)
_PICKLES = (keys.EXPR_PARAM_PICKLE_FILE, keys.EXPR_ERROR_PICKLE_FILE)  # never read, hence not kept


def rays_hint(names: Sequence[str], place: str) -> str:
    """Return what to do about a directory that Ray Tune wrote; "" for another one."""
    is_rays = any(name.startswith("experiment_state-") for name in names)
    return f"Ray Tune wrote it; to read its results, run `muster compat --experiment {place}`" * is_rays


def convert(source: Path, target: Path) -> int:
    """Copy the trials to a new directory that has a store of their facts; returns how many there are."""
    folders = [each for each in sorted(source.glob("*")) if _has(each, *_LOGS, keys.EXPR_PARAM_FILE)]
    if not folders or target.exists():
        fault = f"{target} exists already" if folders else f"{source} has no results of Ray Tune"
        raise StoreError(f"{fault}: give the directory <storage_path>/<name>, and a new one with -o")
    known = _known_trials(source)
    with deleted_on_failure(str(target)):
        target.mkdir(parents=True)
        with SqliteTrialStore(target) as store:
            store.save_settings({"trainable_name": next(iter(known.values()), {}).get("trainable_name")})
            for folder in folders:
                copy = Path(shutil.copytree(folder, target.resolve() / folder.name, symlinks=True))
                for name in _PICKLES:
                    (copy / name).unlink(missing_ok=True)
                store.append(list(_facts(copy, known.get(folder.name, {}))))
            store.append([events.SearchExhausted(at=source.stat().st_mtime)])
    return len(folders)


def _has(folder: Path, *names: str) -> bool:
    return not folder.is_symlink() and any((folder / name).is_file() for name in names)


def _known_trials(source: Path) -> dict[str, dict[str, Any]]:
    """Return what Ray's newest state file says about trials, by the name of their directory."""
    for file in sorted(source.glob("experiment_state-*.json"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # torn, or of another version of Ray
            trials = [json.loads(trial) for trial, *_ in json.loads(file.read_text())["trial_data"]]
            return {str(trial["relative_logdir"]): trial for trial in trials}
    return {}


def _facts(folder: Path, known: Mapping[str, Any]) -> Iterator[events.Fact]:
    params, errors = folder / keys.EXPR_PARAM_FILE, folder / keys.EXPR_ERROR_FILE
    try:
        config = json.loads(params.read_text()) if params.is_file() else {}
        rows = TrialFolder(str(folder)).rows() if _has(folder, *_LOGS) else []
    except ValueError as error:
        raise StoreError(
            f"{folder.name}: its files are damaged ({error})", fix="repair or remove them"
        ) from error
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    began = first.get(keys.TIMESTAMP, folder.stat().st_mtime) - (first.get(keys.TIME_TOTAL_S) or 0.0)
    who = str(known.get("trial_id") or first.get(keys.TRIAL_ID) or folder.name)
    yield events.TrialCreated(
        trial_id=who,
        at=began,
        config=config or first.get(keys.CONFIG, {}),
        evaluated_params=known.get("evaluated_params", flatten(config)),
        experiment_tag=known.get("experiment_tag", ""),
        trial_name=known.get("custom_trial_name") or f"{known.get('trainable_name', 'trial')}_{who}",
        relative_logdir=folder.name,
    )
    yield events.TrialStarted(trial_id=who, at=began)
    for number, row in enumerate(rows, 1):
        at, saved = row.get(keys.TIMESTAMP, began), _checkpoint(folder, row, number)
        yield events.TrialReported(trial_id=who, at=at, result=row, checkpoint=saved)
    text = re.sub(r"\x1b\[\d*m", "", errors.read_text(errors="replace")) if errors.is_file() else ""
    status = known.get("status", "ERROR" if text else "TERMINATED")
    failure = events.TrialFailure(kind=events.TrialFailureKind.USER_ERROR, message=text, traceback=text)
    if status in ("ERROR", "TERMINATED"):
        at, why = last.get(keys.TIMESTAMP, began), failure if status == "ERROR" else None
        yield events.TrialExited(trial_id=who, at=at, failure=why, is_done=why is None)


def _checkpoint(folder: Path, row: Mapping[str, Any], number: int) -> CheckpointRef | None:
    path = folder / str(row.get(keys.CHECKPOINT_DIR_NAME) or "nothing")
    digits = re.fullmatch(r"checkpoint_(\d+)", path.name)
    if digits is None or not path.is_dir():
        return None
    return CheckpointRef(path=str(path), index=int(digits[1]), metrics=row, rows=number)
