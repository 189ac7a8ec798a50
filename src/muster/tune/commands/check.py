"""Check a command against a search space before the first trial. Reads PATH; starts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.base.text import did_you_mean
from muster.errors import CommandError
from muster.tune.commands.command import Command
from muster.tune.commands.output import METRICS
from muster.tune.commands.template import MACROS, PLACES, Placeholder, as_number, is_named, parse
from muster.tune.search.conditions import key_paths
from muster.tune.search.paths import is_group
from muster.tune.search.sample import Categorical, Domain

if TYPE_CHECKING:
    from muster.tune.tune_config import TuneConfig

FindProgram = Callable[[str], str | None]
_PLAIN_SPECS = ("", "json", "csv", "words", "01")
_WHOLE = ("args", "config", "config.yaml", "config.wandb")  # placeholders that hand over every key


class SpaceKeys(NamedTuple):
    """The dotted names of a search space: all, those that a trial may lack, and those that vary."""

    names: tuple[str, ...]
    conditional: frozenset[str] = frozenset()
    varied: tuple[str, ...] = ()


def space_keys(space: Mapping[Any, Any]) -> SpaceKeys:
    """Return the keys of a space; those inside an option of a choice belong to some trials only.

    Example:
        >>> from muster import tune
        >>> space_keys({"opt": tune.choice([{"name": "sgd", "momentum": 0.9}, {"name": "adam"}])}).conditional
        frozenset({'opt.momentum'})
    """
    found: dict[str, tuple[bool, bool]] = {}
    for name, is_conditional, is_varied in _walk(space, "", False, False):
        was_conditional, was_varied = found.get(name, (True, False))
        found[name] = (was_conditional and is_conditional, was_varied or is_varied)
    conditional = frozenset(name for name, (is_conditional, _) in found.items() if is_conditional)
    conditional |= {".".join(path) for path, always in key_paths(space).items() if not always}
    return SpaceKeys(tuple(found), conditional, tuple(name for name in found if found[name][1]))


def _walk(
    space: Mapping[Any, Any], above: str, is_conditional: bool, is_varied: bool
) -> Iterator[tuple[str, bool, bool]]:
    for key, value in space.items():
        name = above + str(key).replace("/", ".")
        options = _options(value)
        varies = is_varied or isinstance(value, Domain) or len(options) > 1 or _is_grid(value)
        below = above if is_group(key) else f"{name}."  # the keys of a part are keys of the config
        if not is_group(key):
            yield name, is_conditional, varies
        shared = set.intersection(*map(set, options)) if options else set()
        for option in options:
            for inner, deeper, differs in _walk(option, below, is_conditional, varies):
                is_shared = inner.removeprefix(below).partition(".")[0] in shared
                yield inner, deeper or not is_shared, differs


def _is_grid(value: object) -> bool:
    return isinstance(value, dict) and len(value) == 1 and "grid_search" in value


def _options(value: object) -> list[Mapping[Any, Any]]:
    """Return the dicts that a key may have as its value; {} for an option that is none."""
    found: list[Any]
    if isinstance(value, Categorical):
        found = list(value.categories)
    elif isinstance(value, dict):
        found = list(value["grid_search"]) if _is_grid(value) else [value]
    else:
        return []
    dicts = [each for each in found if isinstance(each, dict)]
    return [each if isinstance(each, dict) else {} for each in found] if dicts else []


def check_command(command: Command, keys: SpaceKeys, find_program: FindProgram | None = shutil.which) -> None:
    """Raise CommandError for what would fail in every trial.

    Args:
        command: The command.
        keys: The keys of the search space; no names: they are unknown, and are not checked.
        find_program: Returns the path of a program, None when there is none; `str` where other nodes may
            have it. None: files are elsewhere, too.
    """
    for part in command.placeholders:
        _check_placeholder(command, part, keys)
    _check_words(command)
    _check_handed_over(command, keys.varied)
    if find_program is not None:
        _check_program(command, find_program)


def _check_placeholder(command: Command, part: Placeholder, keys: SpaceKeys) -> None:
    if part.is_macro:
        _check_macro(part)
        return
    is_place = part.name in PLACES or part.name == "args"
    if is_place and part.name in keys.names:
        raise CommandError(
            f"{part}: the space has the key {part.name!r}, and muster has a placeholder of this name",
            fix="rename the key, or leave it to {args}",
        )
    if not is_place and keys.names and part.name not in keys.names:
        near = did_you_mean(part.name, (*keys.names, *PLACES))
        fix = near or f"the space has {', '.join(keys.names)}; write {{{{ for a brace"
        raise CommandError(f"{part} is not a key of the search space", fix=fix)
    if part.name in keys.conditional and not part.is_flag:
        fix = f"write {{{part.name}:--{part.name}}} or {{args}}"
        raise CommandError(f"{part}: some trials have no {part.name}", fix=fix)
    if part.spec not in _PLAIN_SPECS and not part.is_flag:
        as_number(1 if part.spec[-1:] in "bcdoxXn" else 1.0, part)


def _check_macro(part: Placeholder) -> None:
    if part.name == "program":
        raise CommandError(f"{part} is defined in a sweep file only", fix="write the program itself")
    if part.name not in MACROS and not part.name.startswith("envvar:"):
        near = did_you_mean(part.name, MACROS)
        fix = near or f"write ${{envvar:{part.name}}} for an environment variable, or pass shell=True"
        raise CommandError(f"{part} is not a macro", fix=fix)


def _check_words(command: Command) -> None:
    """Refuse lists inside of a word, and quotes around a value that muster quotes."""
    if command.shell:
        quote = ""
        for part in parse(command.template[0], in_shell=True):
            if isinstance(part, str):
                for letter in part:
                    quote = {"": letter if letter in "'\"" else "", letter: ""}.get(quote, quote)
            elif quote:
                raise CommandError(f"{part} is inside of quotes", fix="remove them: muster quotes the values")
        return
    for word in (*command.template, *command.stop_command):
        parts = parse(word)
        for part in parts if len(parts) > 1 else ():
            if isinstance(part, Placeholder) and part.fills_words:
                raise CommandError(f"{part} in {word!r} must stand alone", fix="put spaces around it")


def _check_handed_over(command: Command, names: Collection[str]) -> None:
    parts = command.placeholders
    takes_all = any(part.is_macro and part.name.startswith("args") for part in parts)
    if takes_all or command.env_args is not None or not command.named.isdisjoint(_WHOLE):
        return
    for name in names:
        is_above = any(other.startswith(f"{name}.") for other in names)
        if not is_above and not is_named(name, command.named):
            raise CommandError(
                f"the space varies {name}, and the command does not get it", fix=f"use {{{name}}} or {{args}}"
            )


def _script(command: Command) -> str:
    """Return the script after an interpreter, `train.py` in `python train.py`; "" when there is none."""
    words = command.template
    is_plain = not command.shell and command.cwd is None and len(words) > 1 and "{" not in words[1]
    is_run = is_plain and re.fullmatch(
        r"(python|bash|sh|Rscript|julia|perl|ruby|node)[\d.]*", os.path.basename(words[0])
    )
    return words[1] if is_run and re.search(r"\.\w+$", words[1]) and not words[1].startswith("-") else ""


def _check_program(command: Command, find_program: FindProgram) -> None:
    program, cwd = command.template[0], command.cwd or ""
    if "{" not in cwd and not os.path.isdir(os.path.join(command.home, cwd)):
        raise CommandError(f"cwd={cwd!r}: there is no such directory", fix="create it, or correct the name")
    script = _script(command)
    if script and not os.path.exists(os.path.join(command.home, script)):
        fix = "correct the name, or choose another directory with cwd="
        raise CommandError(f"{script}: not found in {command.home}, where the command runs", fix=fix)
    if command.shell or "{" in program or command.cwd is not None:
        return
    path = find_program(os.path.join(command.home, program) if "/" in program else program)
    if path is None:
        where = f"in {command.home}" if "/" in program else "on PATH"
        if not os.path.isfile(os.path.join(command.home, program)):
            raise CommandError(f"{program}: not found {where}", fix="correct the name, or use cwd=")
        if "/" not in program:
            raise CommandError(f"{program}: not found {where}", fix=f"write ./{program}")
        fix = f"run `chmod +x {program}`, or name its interpreter"
        raise CommandError(f"{program}: not executable {where}", fix=fix)
    problem = _first_line_problem(path)
    if problem:
        raise CommandError(f"{program}: {problem}", fix="correct its first line, or name its interpreter")


def _first_line_problem(path: str) -> str:
    """Return why the kernel cannot start a script, although a shell may; "" for one that it can."""
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError:
        return ""
    if head[:2] != b"#!":
        return "" if b"\0" in head else "a text file that does not begin with #!"
    interpreter = os.fsdecode(re.split(rb"[ \t\n]", head[2:].lstrip(b" \t"))[0])
    return "" if os.path.exists(interpreter) else f"its interpreter {interpreter!r} does not exist"


def before_run(
    command: Command, space: Mapping[Any, Any], tune: TuneConfig, find_program: FindProgram | None
) -> dict[str, str]:
    """Check a command before its first trial; return the variables by which trials know the metric."""
    keys = space_keys(space)
    if tune.search_alg is not None and not isinstance(tune.search_alg, str):
        keys = keys._replace(names=())  # a searcher may bring its own space
    metrics = [tune.metric] if isinstance(tune.metric, str) else list(tune.metric or ())
    if any(way.kind == "text" for way in command.report) and not (metrics or command.also):
        fix = "set TuneConfig(metric=...), or name values with also="
        raise CommandError("tune.command(report='text'): no value is named", fix=fix)
    check_command(command, keys, find_program)
    return {METRICS: json.dumps(metrics)}
