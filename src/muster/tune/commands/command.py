"""Command is a trainable that runs a program once per trial; `tune.command` makes it."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from muster.errors import CommandError, public
from muster.tune.commands.output import Way, parse_way
from muster.tune.commands.template import (
    ARGS_STYLES,
    Placeholder,
    Values,
    as_argument,
    fill_shell,
    fill_word,
    leaves,
    placeholders,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]?)i?B?", re.IGNORECASE)
_SCRIPT = re.compile(r"\.(py|sh|bash|R|jl|pl|rb|js|lua|exe)$")
LOG_LIMIT = 65_000_000
CONFIG_FILE = "command_config"  # in the directory of the trial: .json, .yaml
CHECKPOINTS = "command_checkpoints"


@dataclass(frozen=True)
class Command:
    """A program with placeholders for the values of a trial, and how it reports, saves and stops.

    A trainable: pass it to `Tuner`, `with_resources` or `tune.run`. `tune.command` checks the arguments.
    """

    template: tuple[str, ...]  # words; with `shell`, one line
    report: tuple[Way, ...]
    args: str = "equals"
    env: tuple[tuple[str, str], ...] = ()
    env_args: str | None = None
    cwd: str | None = None
    shell: bool = False
    also: tuple[str, ...] = ()
    checkpoint: str | None = None
    grace_s: float = 10.0
    stop_signal: str = "SIGTERM"
    stop_command: tuple[str, ...] = ()
    ok_exit_codes: tuple[int, ...] = (0,)
    log_limit: int = LOG_LIMIT
    name: str = ""
    home: str = ""  # where the experiment was started

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, config: dict[str, Any]) -> None:
        """Run the command in the process of a trial."""
        from muster.engines.worker.session import TrialSession
        from muster.session.session import current
        from muster.tune.commands.runner import CommandRun

        session = current()
        if not isinstance(session, TrialSession):
            raise CommandError(f"{self.name} is a command", fix="run it with tune.Tuner or tune.run")
        CommandRun(self, config, session).run()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        from muster.tune.commands.runner import reopen

        return reopen, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Every placeholder of the command, its variables, its directory and its files."""
        paths = [way.argument for way in self.report if way.is_file]
        more = [value for _, value in self.env] + paths + [self.cwd or "", self.checkpoint or ""]
        line = placeholders(self.template, in_shell=self.shell)
        return (*line, *placeholders([*more, *self.stop_command]))

    @cached_property
    def named(self) -> frozenset[str]:
        """Names of the values that the command names itself, which `{args}` leaves out."""
        return frozenset(part.name for part in self.placeholders if not part.is_macro)

    def uses(self, name: str) -> bool:
        """Return whether a placeholder of this name, or W&B's macro, is used."""
        return any(part.name == name for part in self.placeholders)

    def words(self, config: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
        """Return the program and its arguments for one trial.

        Args:
            config: The values of the trial.
            places: What the other placeholders become: trial_id, trial_dir, resume, ... (`template.PLACES`),
                and `env:NAME` for each variable that `${envvar:NAME}` reads.

        Raises:
            CommandError: A placeholder has no value, or a value cannot be passed to a command.
        """
        values = self.values(config, places)
        if self.shell:
            return ["/bin/sh", "-c", fill_shell(self.template[0], values)]
        return [word for text in self.template for word in fill_word(text, values)]

    def values(self, config: Mapping[str, Any], places: Mapping[str, str]) -> Values:
        return Values(config, places, self.args, self.named)

    def variables(self, config: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that `env` and `env_args` add."""
        values = self.values(config, places)
        given = {name: "".join(fill_word(text, values)) for name, text in self.env}
        if self.env_args is None:
            return given
        names = {name: re.sub(r"\W", "_", f"{self.env_args}{name}") for name in leaves(config)}
        return {names[name]: as_argument(value, name) for name, value in leaves(config).items()} | given


@public
def command(  # noqa: PLR0913 - keywords, each one setting of a command
    command: str | Sequence[str],
    *,
    report: str | Sequence[str] = "auto",
    args: str = "equals",
    env: Mapping[str, str] | None = None,
    env_args: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    shell: bool = False,
    also: Sequence[str] = (),
    checkpoint: str | None = None,
    grace_s: float = 10.0,
    stop_signal: str = "SIGTERM",
    stop_command: str | Sequence[str] | None = None,
    ok_exit_codes: Collection[int] = (0,),
    log_limit: int | str = LOG_LIMIT,
    name: str | None = None,
) -> Command:
    """Return a trainable that runs a command in every trial.

    Args:
        command: A list of words, or a line that muster splits as a shell does. `{lr}` becomes the value of
            the key `lr`; `{args}` every key that the command does not name.
        report: Where results come from: "auto", "text", "regex:PATTERN", "jsonl:PATH", "csv:PATH",
            "tensorboard:DIR", "json:PATH", or several of them.
        args: The style of `{args}`: equals, space, hydra, hydra+, hydra++, json or flags.
        env: Environment variables; their values may have placeholders.
        env_args: Pass every key in an environment variable, with this prefix.
        cwd: Where the command runs. Default: where the experiment was started.
        shell: Run the line by /bin/sh. muster quotes the values.
        also: Names of further values that `report="text"` reads.
        checkpoint: A pattern of the files or directories that are checkpoints. Default: whatever appears in
            the directory `{checkpoint}`.
        grace_s: The time between the stop signal and SIGKILL.
        stop_signal: The signal that stops the command.
        stop_command: A command to run after a stop, e.g. `docker kill {trial_id}`.
        ok_exit_codes: Exit codes of a command that did not fail.
        log_limit: The size of the output file, e.g. "65MB": its first MB and its end are kept.
        name: The name of the trainable, and of its trials.

    Returns:
        A trainable for `Tuner`, `with_resources` or `tune.run`.

    Raises:
        CommandError: An argument cannot be used.

    Example:
        >>> train = command("python train.py --lr {lr} {nesterov:--nesterov}")
        >>> train.words({"lr": 0.1, "nesterov": True}, {})
        ['python', 'train.py', '--lr', '0.1', '--nesterov']
    """
    template = _template(command, shell)
    return Command(
        template,
        tuple(parse_way(text) for text in ([report] if isinstance(report, str) else report)),
        _one_of("args", args, ARGS_STYLES),
        tuple((str(key), str(value)) for key, value in (env or {}).items()),
        env_args,
        None if cwd is None else os.fspath(cwd),
        shell,
        (also,) if isinstance(also, str) else tuple(also),
        checkpoint,
        _grace(grace_s),
        _one_of(
            "stop_signal",
            stop_signal,
            [each.name for each in signal.valid_signals() if isinstance(each, signal.Signals)],
        ),
        () if stop_command is None else _template(stop_command, False),
        tuple(ok_exit_codes),
        _bytes(log_limit),
        name or _name_of(template, shell),
        os.getcwd(),
    )


def _template(given: str | Sequence[str], shell: bool) -> tuple[str, ...]:
    if shell and not isinstance(given, str):
        raise CommandError("tune.command(shell=True): needs one line of text", fix="pass a string")
    try:
        words = ([given] if shell else shlex.split(given)) if isinstance(given, str) else list(given)
    except ValueError as error:
        raise CommandError(f"{given!r}: {error}", fix="close the quotes, or pass a list of words") from None
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise CommandError(
            f"tune.command({given!r}): needs a program", fix='write "python train.py --lr {lr}"'
        )
    if any("\0" in word for word in words):
        raise CommandError(f"tune.command({given!r}): a word has a NUL byte", fix="remove it")
    return tuple(words)


def _one_of(name: str, given: str, known: Sequence[str]) -> str:
    if given not in known:
        from muster.base.text import did_you_mean

        fix = did_you_mean(str(given), known) or f"use one of {', '.join(known)}"
        raise CommandError(f"tune.command({name}={given!r}) is unknown", fix=fix)
    return given


def _grace(seconds: float) -> float:
    if not seconds >= 0:
        raise CommandError(f"tune.command(grace_s={seconds!r}) must not be negative", fix="use 10")
    return float(seconds)


def _bytes(size: int | str) -> int:
    if isinstance(size, int):
        return size
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise CommandError(f"tune.command(log_limit={size!r}) is not a size", fix='write "65MB"')
    return int(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2].lower()])


def _name_of(template: Sequence[str], shell: bool) -> str:
    """Return the name of the script, else of the program.

    Example:
        >>> _name_of(["python", "src/train.py", "--lr"], False)
        'train'
    """
    words = template[0].split() if shell else template
    script = next((word for word in words if _SCRIPT.search(word)), words[0])
    return re.sub(r"\W+", "_", _SCRIPT.sub("", os.path.basename(script))).strip("_") or "command"
