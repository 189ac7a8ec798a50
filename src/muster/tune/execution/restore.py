"""Write and read what an experiment was started with (tuner.pkl, trainable.pkl), and restore it.

Both are pickles and run code when they are read: only `Tuner.restore` and `muster tune resume` do that, for a
directory the user names.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from muster.base import by_value
from muster.base.clock import Clock, SteadyClock, ahead_s
from muster.base.untrusted import error_text, message_text
from muster.errors import RestoreError, StoreError, TuneError
from muster.host.atomic_write import atomic_write
from muster.host.regular_file import read_regular
from muster.session.publish import MANIFEST
from muster.stores.checkpoints import CheckpointStore, delete_directory, sweep
from muster.stores.storage import PARAMETERS, Storage, with_retries
from muster.trials.model import CheckpointRef, Trial
from muster.trials.restore import ResumeRules, apply_resume_rules
from muster.tune.analysis.ray_results import rays_hint
from muster.tune.execution.between_steps import drop_unusable
from muster.tune.execution.launch import ExperimentSpec
from muster.tune.execution.paths import ExperimentPaths, directory_namer
from muster.tune.logger.files.trial_log import ERRORS, PICKLED_ERROR
from muster.tune.logger.logger import file_kinds
from muster.tune.search.paths import flat_name, flattened
from muster.tune.trainable.function_trainable import can_be_pickled
from muster.tune.tune_config import ResumeConfig, TuneConfig

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState
    from muster.trials.ports import SavedExperiment
    from muster.trials.restore import MakeTrial
    from muster.tune.callback import CallbackList
    from muster.tune.execution.between_steps import ExperimentSaver
    from muster.tune.logger.files.writer import LogWriter
    from muster.tune.trainable.stored_object import StoredObject


TUNER_FILE = "tuner.pkl"
TRAINABLE_FILE = "trainable.pkl"
DEFAULT_NAME = "ask"  # of trials without a trainable, which a loop of the user's runs


def write_spec(spec: ExperimentSpec) -> None:
    """Write both files, with the plug-ins as they are before the first trial.

    Raises:
        TuneError: A part cannot be pickled; the message names it.
    """
    run = copy(spec.run)
    run.storage_filesystem = None  # restore is given it again: it may hold a password
    kept = {
        "trainable_name": spec.trainable_name,
        "param_space": spec.param_space,
        "tune_config": spec.tune,
        "run_config": run,
        "overrides": spec.overrides,
    }
    try:
        content = by_value.dumps(kept)
    except Exception as error:
        parts = [name for name, part in kept.items() if not can_be_pickled(part)]
        raise TuneError(
            f"the experiment could not be resumed later, because its {' and '.join(parts)} cannot be "
            f"pickled: {message_text(error)}. Keep open files, locks and connections out of it"
        ) from error
    atomic_write(spec.place.directory / TRAINABLE_FILE, spec.code)
    atomic_write(spec.place.directory / TUNER_FILE, content)


def read_spec(directory: Path, address: str = "") -> ExperimentSpec:
    """Read the file; `address` is the name the user knows, when the directory is only a copy."""
    file = directory / TUNER_FILE
    try:
        found: dict[str, Any] = pickle.loads(read_regular(file))
        return ExperimentSpec(tune=found.pop("tune_config"), run=found.pop("run_config"), **found)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{address or directory} has no {TUNER_FILE}, so it cannot be resumed. "
            "Give the directory that fit() or run() wrote: <storage_path>/<name>"
        ) from None
    except Exception as error:  # a pickle may raise anything
        raise RestoreError(
            f"{file}: cannot be read ({error_text(error)}). Run this where the modules that "
            "the experiment used can be imported"
        ) from error


def save_limits(place: ExperimentPaths, tune: TuneConfig) -> None:
    """Have a resume begin with these limits; the rest of the file stays as it was written at the start."""
    file = place.directory / TUNER_FILE
    kept = pickle.loads(read_regular(file))
    kept["tune_config"].cost_budget, kept["tune_config"].deadline = tune.cost_budget, tune.deadline
    atomic_write(file, by_value.dumps(kept))


def open_experiment(path: str, filesystem: Any = None) -> tuple[ExperimentPaths, ExperimentSpec]:  # noqa: ANN401 - untyped fsspec
    """Open the experiment at `path`, fetched when it is remote; its run config names its current place."""
    is_local = filesystem is None and "://" not in path
    whole = os.path.abspath(os.path.expanduser(path)) if is_local else path.rstrip("/")  # "." has a name too
    parent, _, name = whole.rpartition("/")
    place = ExperimentPaths(parent or ("/" if whole.startswith("/") else "."), name, filesystem)
    if hint := rays_hint(place.storage.listing(), place.address):
        raise RestoreError(f"{place.address} cannot be resumed: {hint}")
    place.fetch()
    saved = read_spec(place.directory, place.address)
    run = saved.run
    run.name, run.storage_path, run.storage_filesystem = name, place.parent, filesystem
    return place, saved


def saved_trainable(place: ExperimentPaths) -> Any:  # noqa: ANN401 - function or class
    """Return the saved trainable; RestoreError when that is not possible."""
    file = place.directory / TRAINABLE_FILE
    try:
        return pickle.loads(read_regular(file))
    except FileNotFoundError:
        raise RestoreError(
            f"{place.address}: has no {TRAINABLE_FILE}. Name the trainable: Tuner.restore(path, "
            "trainable=...), or muster tune resume with --trainable module:name or --script FILE"
        ) from None
    except Exception as error:
        raise RestoreError(
            f"{file}: cannot be read ({error_text(error)}). Run this where the modules that the "
            "trainable used can be imported, or name the trainable"
        ) from error


def _objects_in(code: bytes) -> list[StoredObject]:
    """Return the large parameters of a pickled trainable."""
    if b"StoredObject" not in code:  # most trainables have none
        return []
    from muster.tune.trainable.stored_object import objects_in

    return objects_in(code)


def check_parameters(code: bytes, trainable: str, place: ExperimentPaths) -> None:
    """Raise RestoreError when a large parameter of the trainable is neither here nor with the experiment."""
    objects = [each for each in _objects_in(code) if not each.is_here]
    names = [each.name for each in objects if not each.is_kept(place.directory, place.elsewhere)]
    if names:
        raise RestoreError(
            f"{place.address}: parameters of {trainable} are missing or damaged: {', '.join(names)}. No "
            "trial was started",
            fix=f"pass them again: Tuner.restore({place.address!r}, "
            f"trainable=tune.with_parameters({trainable}, {', '.join(f'{name}=...' for name in names)}))",
        )


def keep_parameters(code: bytes, place: ExperimentPaths, clock: Clock) -> None:
    """Store the large parameters of the trainable with the experiment, before any trial needs them."""
    for each in _objects_in(code):
        name, there = f"{PARAMETERS}/{each.digest}", place.elsewhere
        try:
            file = each.keep_in(place.directory)
            if there is not None and with_retries(partial(there.size, name), clock) != file.stat().st_size:
                with_retries(partial(there.upload_file, file, name), clock)
        except (OSError, StoreError) as error:
            raise TuneError(
                f"with_parameters: {each.name} cannot be kept in {place.address} ({error})",
                fix=("make room there, or choose another place with RunConfig(storage_path=...)"),
            ) from error


def drop_old_parameters(code: bytes, place: ExperimentPaths) -> None:
    """Delete the large parameters of earlier runs, which nothing refers to any more."""
    used = {each.digest for each in _objects_in(code)}
    with suppress(StoreError):  # the next run tries again
        for storage in filter(None, (place.local, place.elsewhere)):
            for name in set(storage.listing(PARAMETERS)) - used:
                storage.delete_file(f"{PARAMETERS}/{name}")


def can_restore(path: str | os.PathLike[str], filesystem: Any = None) -> bool:  # noqa: ANN401 - untyped fsspec
    """Return whether `path` is the directory of an experiment; warns about one that Ray Tune wrote."""
    storage = Storage(os.fspath(path), filesystem)
    names = storage.listing()
    if hint := rays_hint(names, storage.uri):
        logger.warning("%s cannot be resumed: %s", storage.uri, hint)
    return TUNER_FILE in names and not hint


def checked_space(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space passed to restore: it may have other objects, but not other keys."""
    before, now = (sorted(flat_name(path) for path in flattened(dict(each))) for each in (saved, given))
    if before != now:
        gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
        differences = [f"missing: {', '.join(gone)}"] * bool(gone) + [f"new: {', '.join(new)}"] * bool(new)
        raise ValueError(
            f"Tuner.restore(param_space=...): its keys are not those of the experiment "
            f"({'; '.join(differences)}). Pass the same space, with other objects if you like, or start a "
            "new experiment"
        )
    return dict(given)


_KIND = ResumeConfig.ResumeType
_RULES = {
    "ERRORED": ResumeConfig(errored=_KIND.RESUME),
    "RESTART_ERRORED": ResumeConfig(errored=_KIND.RESTART),
    "ERRORED_ONLY": ResumeConfig(unfinished=_KIND.SKIP, errored=_KIND.RESUME),
    "RESTART_ERRORED_ONLY": ResumeConfig(unfinished=_KIND.SKIP, errored=_KIND.RESTART),
}
_GONE = ("LOCAL", "REMOTE", "PROMPT", "ERRORED_ONLY")


def resume_rules(resume: bool | str | None, explicit: ResumeConfig | None = None) -> ResumeConfig | None:
    """Return what to do with the trials of an earlier run of this name; None: start a new experiment.

    Example:
        >>> resume_rules("AUTO+ERRORED").errored.value, resume_rules(False)
        ('resume', None)
    """
    if not resume:
        return explicit
    base, *suffixes = ["AUTO"] if resume is True else str(resume).upper().split("+")
    if base in _GONE:
        raise DeprecationWarning(f"resume={resume!r} does not exist any more: use 'AUTO', or 'AUTO+ERRORED'")
    unknown = [each for each in suffixes if each not in _RULES]
    if base != "AUTO" or unknown:
        known = ", ".join(f"'AUTO+{each}'" for each in _RULES)
        raise ValueError(f"resume={resume!r}: must be True, False, 'AUTO' or one of {known}")
    if explicit is not None:
        return explicit
    return _RULES[suffixes[-1]] if suffixes else ResumeConfig()


logger = logging.getLogger(__name__)
_CHECKPOINT = re.compile(r"([^/]+)/(checkpoint_\d{6,})/")


class Restorer:
    """Used once, before the first step."""

    def __init__(self, config: ResumeConfig, place: ExperimentPaths, clock: SteadyClock) -> None:
        from muster.tune.logger.files.catch_up import CatchUp  # a new experiment has nothing to catch up with

        self._rules = ResumeRules(
            finished=config.finished.value, unfinished=config.unfinished.value, errored=config.errored.value
        )
        self._place, self._clock = place, clock
        self._catch_up = CatchUp()
        self._files_there: Mapping[str, int] = {}  # of a remote storage, with their sizes

    def restore(
        self, saver: ExperimentSaver, state: ExperimentState, saved: SavedExperiment, make_trial: MakeTrial
    ) -> None:
        """Restore trials, searcher and scheduler; then applies the rules."""
        saver.restore(saved, make_trial, self._catch_up)
        self._clock.not_before(state.spend.seen_at)
        if state.guard is not None and (deadline := state.limits.deadline) is not None:
            state.limits = state.guard.limits = replace(
                state.limits, deadline=deadline + ahead_s(self._clock)
            )
        apply_resume_rules(state, self._rules, self._clock.now(), self._forget_failure)
        checkpoints = self._place.checkpoints()
        for trial in state.index.live.values():
            drop_unusable(trial, checkpoints)
        state.facts.schedule_deletion(self._forgotten(state, checkpoints))
        if self._place.is_remote:
            state.lifecycle.directory_for = self._replacing_lost(state)

    def _replacing_lost(self, state: ExperimentState) -> Callable[[Trial], str]:
        """Return a namer that deletes what a lost machine left of a trial of the same id.

        Directories reach the storage before the store that knows their trials; ids repeat after a restore.
        Known trials are looked at once: a driver may have been killed before it deleted, on the storage
        up to `MirrorInterval.store_s` later than here.
        """
        folder, longest = str(self._place.directory), state.settings.max_len_identifier
        found = {each.name for each in os.scandir(folder) if each.is_dir()}
        found |= {name.partition("/")[0] for name in self._files_there if "/" in name}
        lost = sorted(found - {trial.relative_logdir for trial in state.index.order})
        named = directory_namer(self._place.directory, self._clock, longest, lost)

        def name(trial: Trial) -> str:
            delete_lost(trial)
            return named(trial)

        def delete_lost(trial: Trial) -> None:
            for each in lost:
                if each.startswith(trial.trainable_name) and f"_{trial.trial_id}_" in each:
                    state.facts.schedule_deletion([CheckpointRef(path=f"{folder}/{each}", index=-1)])

        for trial in state.index.order if lost else ():
            delete_lost(trial)
        return name

    def _forgotten(self, state: ExperimentState, checkpoints: CheckpointStore) -> list[CheckpointRef]:
        """Return the checkpoints that no trial knows, because a crash came before a deletion or a fact."""
        known = {ref.path for trial in state.index.order for ref in trial.checkpoints}
        known |= state.index.borrowed
        sweep(self._place.directory)
        found = []
        for trial in state.index.order:
            if trial.relative_logdir is None or not os.path.isdir(str(trial.local_path)):
                continue
            sweep(str(trial.local_path))
            for index, path in checkpoints.listed(trial.relative_logdir):
                if index > trial.checkpoint_index:
                    delete_directory(Path(path))  # now: the trial is about to use this name again
                elif path not in known:
                    found.append(CheckpointRef(path=path, index=index))
        return [*found, *self._forgotten_there(state, known | {ref.path for ref in found})]

    def _forgotten_there(self, state: ExperimentState, known: set[str]) -> list[CheckpointRef]:
        """Return the same for a remote storage, where nodes of a cluster may have put them."""
        there, found = self._place.elsewhere, []
        if there is None:
            return []
        numbers = {trial.relative_logdir: trial.checkpoint_index for trial in state.index.order}
        try:
            names = self._files_there = there.sizes()
            for folder, name in sorted({match.groups() for match in map(_CHECKPOINT.match, names) if match}):
                path, index = f"{self._place.directory}/{folder}/{name}", int(name.rpartition("_")[2])
                if folder not in numbers or path in known:
                    continue
                if index > numbers[folder]:
                    there.delete_dir(f"{folder}/{name}")  # now, as above
                elif f"{folder}/{name}/{MANIFEST}" in names:
                    found.append(CheckpointRef(path=path, index=index))
        except StoreError as error:
            logger.warning("what a crash left in the storage stays: %s", error)
        return found

    def repair_logs(self, writer: LogWriter, hooks: CallbackList) -> None:
        """Write the results that the store has and the files may lack."""
        self._catch_up.write_to(
            writer, file_kinds(hooks.callbacks), str(self._place.directory), self._clock.now()
        )

    def _forget_failure(self, trial: Trial) -> None:
        """Remove the error files of a trial that runs again."""
        for name in (ERRORS, PICKLED_ERROR):
            with suppress(OSError):
                os.unlink(f"{trial.local_path}/{name}")
