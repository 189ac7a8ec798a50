"""Read an experiment's directory from its store; nothing is unpickled and nothing is changed.

Works while another process runs the experiment. Prints nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any

import msgspec

from muster.base.text import moment
from muster.errors import ConfigError, StoreError
from muster.host.machine import program
from muster.stores.experiment.reader import (
    STORE_NAME,
    TrialReader,
    experiments_below,
    is_experiment,
    open_trials,
)
from muster.stores.experiment.summary import TrialSummary
from muster.tune.analysis.ray_results import rays_hint

if TYPE_CHECKING:
    from muster.tune.analysis.trial_record import TrialRecord
    from muster.tune.commands.command import Command

FINISHED = ("TERMINATED", "ERROR")
INTERRUPTED = "INTERRUPTED"  # was running when the process that ran the experiment went away
STATUSES = ("RUNNING", "PENDING", "PAUSED", INTERRUPTED, "TERMINATED", "ERROR")


@dataclass(frozen=True)
class Writer:
    """The process that runs an experiment now."""

    pid: int  # 0 when it is unknown
    since: float

    def __str__(self) -> str:
        return f"{f'process {self.pid}' if self.pid else 'another process'} since {moment(self.since)}"


@dataclass(frozen=True)
class ExperimentView:
    """One committed state of an experiment."""

    path: str
    trials: tuple[TrialSummary, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    writer: Writer | None = None
    is_exhausted: bool = True  # nothing is left to suggest, as far as is known
    filesystem: Any = None  # fsspec's, when the directory is not on this machine
    url: str = ""  # its address then; `path` is without the scheme

    @property
    def address(self) -> str:
        """Return the path or URL that commands take."""
        return self.url or self.path

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/")) or self.path

    @property
    def metric(self) -> str | None:
        """Return what the experiment optimizes; None when that was not set."""
        return _text(self.settings.get("metric"))

    @property
    def mode(self) -> str | None:
        return _text(self.settings.get("mode"))

    @property
    def state(self) -> str:
        """Return running, finished, or interrupted: `muster tune resume` would find something to do.

        A remote experiment that is not finished is "unfinished": whether it runs is not known.
        """
        if self.writer is not None:
            return "running"
        is_done = self.is_exhausted and all(trial.status in FINISHED for trial in self.trials)
        return "finished" if is_done else "interrupted" if self.filesystem is None else "unfinished"

    @property
    def ended_by(self) -> str:
        """Return "budget" or "deadline" when that has ended the last run early; "" otherwise."""
        found = self.settings.get("ended_by")
        return found if isinstance(found, str) and self.writer is None else ""

    @property
    def resume_command(self) -> str:
        """Return the line of a shell that continues it; more of what has ended it is part of the line."""
        option = {"budget": " --cost-budget ...", "deadline": " --deadline ..."}.get(self.ended_by, "")
        return f"{program()} tune resume {quote(self.address)}{option}"

    @cached_property
    def counts(self) -> dict[str, int]:
        """Return the number of trials by status, in a fixed order."""
        found = Counter(trial.status for trial in self.trials)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def updated_at(self) -> float | None:
        """Return the time of the newest event."""
        times = (trial.ended_at or trial.reported_at or trial.created_at for trial in self.trials)
        return max((time for time in times if time is not None), default=None)

    @property
    def started_at(self) -> float | None:
        times = (trial.created_at for trial in self.trials)
        return min((time for time in times if time is not None), default=None)

    def trial_path(self, trial: TrialSummary) -> str:
        """Return the path or URL of a trial's directory, for users."""
        return f"{self.address.rstrip('/')}/{trial.relative_logdir or trial.trial_id}"

    @cached_property
    def command(self) -> Command | None:
        """Return the command that trials run; None when they run a function or class."""
        from muster.tune.commands.command import Command

        try:
            return msgspec.convert(self.settings.get("command"), Command | None)
        except msgspec.ValidationError:  # of another version of muster
            return None

    def command_line(self, trial: TrialSummary) -> str:
        """Return a trial's command, for a shell; ConfigError when trials run no command."""
        if self.command is None:
            raise ConfigError(
                f"{self.path}: its trials are not commands", fix="see its configs without --command"
            )
        from muster.tune.commands.command import CHECKPOINTS, CONFIG_FILE

        folder = self.trial_path(trial)
        places = {"trial_dir": folder, "experiment": self.name, "trial_id": trial.trial_id}
        places |= {"trial_name": trial.trial_name, "checkpoint": f"{folder}/{CHECKPOINTS}"}
        for end in ("", ".yaml", ".wandb"):
            places[f"config{end}"] = f"{folder}/{CONFIG_FILE}{end or '.json'}"
        return command_line(self.command, trial.config, places)

    def record(self, trial: TrialSummary) -> TrialRecord:
        """Return a trial with its files, as the library sees it."""
        from muster.tune.analysis.trial_record import as_record

        return as_record(trial, self.path, self.filesystem)


def command_line(command: Command, config: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """Return a command with its variables, for a shell; what is only known in a trial stays a placeholder."""
    from muster.tune.commands.template import PLACES

    known = {**{name: f"{{{name}}}" for name in PLACES}, "resume": "", **places}
    variables_named = [part.name[7:] for part in command.placeholders if part.name.startswith("envvar:")]
    known |= {f"env:{name}": os.environ.get(name, f"${name}") for name in variables_named}
    words = command.words(config, known)
    variables = [f"{name}={quote(value)}" for name, value in command.variables(config, known).items()]
    line = words[-1] if command.shell else join(words)
    place = command.cwd or command.home
    move = [] if place in ("", os.getcwd()) else [f"cd {quote(place)} &&"]
    return " ".join([*move, *variables, line])


def read_experiment(path: str) -> ExperimentView:
    """Read the experiment in a directory. Raises MusterError with a hint when there is none."""
    from muster.tune.analysis.result_files import opened_place
    from muster.tune.analysis.trial_record import experiment_directory

    asked = experiment_directory(os.path.expanduser(path))
    place, filesystem = opened_place(asked, None)
    if filesystem is not None:
        with open_trials(place, root=asked, filesystem=filesystem) as reader:
            return replace(_read(reader, place, filesystem), url=asked)
    if not is_experiment(place):
        raise not_an_experiment(place)
    with open_trials(place) as reader:
        return _read(reader, os.path.abspath(place))


def note_file(path: str, name: str) -> Path:
    """Return the path of a note about an experiment."""
    if os.path.basename(name) != name:
        raise StoreError(f"--filename {name}: must be a name, the file goes into the experiment's directory")
    experiment = read_experiment(path)
    if experiment.filesystem is not None:
        raise StoreError(f"{experiment.address}: notes are only for experiments on this machine")
    return Path(experiment.path, name)


def not_an_experiment(place: str) -> StoreError:
    """Return the error for a place without an experiment, with the nearest one that is there."""
    if not os.path.exists(place):
        return StoreError(f"{place}: there is no such file or directory")
    if is_experiment(os.path.dirname(os.path.abspath(place))):
        above = os.path.dirname(place.rstrip("/")) or "."
        return StoreError(f"{place} is the directory of a trial: give that of its experiment, {above}")
    inside = experiments_below(place)
    files = os.listdir(place) if os.path.isdir(place) else ()
    hint = rays_hint(files, place) or "Give the directory that fit() wrote: <storage_path>/<name>"
    if inside:
        names = ", ".join(os.path.basename(each) for each in inside[:3])
        hint = f"There are experiments below it ({names}): give one of them"
    return StoreError(f"{place} is not an experiment directory ({STORE_NAME} not found). {hint}")


def _read(reader: TrialReader, root: str, filesystem: object = None) -> ExperimentView:
    pid = reader.writer()
    writer = None if pid is None else Writer(pid, _lock_time(root))
    trials = reader.trials()
    if writer is None and filesystem is None:
        trials = tuple(
            msgspec.structs.replace(trial, status=INTERRUPTED) if trial.status == "RUNNING" else trial
            for trial in trials
        )
    return ExperimentView(
        path=root,
        trials=trials,
        settings=reader.settings(),
        writer=writer,
        # Irrelevant while the experiment runs, so it is not read then.
        is_exhausted=writer is not None or reader.is_exhausted(),
        filesystem=filesystem,
    )


def _lock_time(place: str) -> float:
    """The writer writes its process id into the lock's file when it takes the lock, and never again."""
    try:
        return os.stat(os.path.join(place, f"{STORE_NAME}.lock")).st_mtime
    except OSError:
        return 0.0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
