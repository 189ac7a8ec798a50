"""Fill the placeholders of a command with the values of a trial. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from muster.errors import CommandError

PLACES = (
    "checkpoint",
    "config",
    "config.wandb",
    "config.yaml",
    "cpus",
    "experiment",
    "gpus",
    "ngpus",
    "port",
    "resume",
    "trial_dir",
    "trial_id",
    "trial_name",
)
ARGS_STYLES = ("equals", "space", "hydra", "hydra+", "hydra++", "json", "flags")
_SPECS = ("json", "csv", "words", "01")
_BRACES = re.compile(r"\$\{([^{}]*)\}|\{([A-Za-z_][\w.\-/+]*)(?::([^{}]*))?\}|\{\{|\{|\}\}?")
_ENVVAR = "envvar:"
_MISSING = object()


class Placeholder(NamedTuple):
    """One placeholder: `{lr}`, `{lr:.4g}` or W&B's `${args}`."""

    name: str  # keys below another are joined by dots
    spec: str = ""
    is_macro: bool = False

    def __str__(self) -> str:
        spec = f":{self.spec}" if self.spec else ""
        return f"{'$' if self.is_macro else ''}{{{self.name}{spec}}}"

    @property
    def is_flag(self) -> bool:
        return self.spec.startswith("-")

    @property
    def fills_words(self) -> bool:
        """Return whether it becomes any number of words, and so must stand alone."""
        is_list = self.name == "args" or self.spec == "words" or self.is_flag
        return is_list or (self.is_macro and not self.name.startswith(_ENVVAR))


Parts = tuple["str | Placeholder", ...]


def parse(text: str, *, in_shell: bool = False) -> Parts:
    """Split a text at its placeholders.

    Example:
        >>> parse("--lr={lr}"), parse('{"a": {"b": 1}}'), parse("{{x}}")
        (('--lr=', Placeholder(name='lr', spec='', is_macro=False)), ('{"a": {"b": 1}}',), ('{x}',))
    """
    parts: list[str | Placeholder] = [""]
    doubled: list[bool] = []  # of the braces that are open: whether it was written twice
    end = 0
    while (found := _BRACES.search(text, end)) is not None:
        parts[-1] += text[end : found.start()]  # type: ignore[operator]  # the last part is always a text
        end = found.end()
        macro, name, spec = found.groups()
        if name is not None:
            parts += [Placeholder(name.replace("/", "."), spec or ""), ""]
        elif macro is not None and (not in_shell or macro in MACROS or macro.startswith(_ENVVAR)):
            parts += [Placeholder(macro, is_macro=True), ""]
        else:
            brace, end = _plain_brace(found[0], doubled, end)
            parts[-1] += brace  # type: ignore[operator]
    parts[-1] += text[end:]  # type: ignore[operator]
    return tuple(part for part in parts if part != "") or ("",)


def _plain_brace(brace: str, doubled: list[bool], end: int) -> tuple[str, int]:
    """Return one brace for two, except for two that close the objects of some JSON."""
    if brace.startswith(("{", "$")):
        doubled.extend([brace == "{{"] if brace in ("{", "{{") else [])
        return ("{" if brace == "{{" else brace), end
    is_doubled = doubled.pop() if doubled else True
    if brace == "}}" and not is_doubled:
        return "}", end - 1
    return "}", end


def placeholders(texts: Collection[str], *, in_shell: bool = False) -> list[Placeholder]:
    """Return every placeholder of some texts, in order."""
    parts = (part for text in texts for part in parse(text, in_shell=in_shell))
    return [part for part in parts if isinstance(part, Placeholder)]


def dotted(config: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Return the values of a config by their dotted names, with those of the dicts above them.

    Example:
        >>> dotted({"opt": {"lr": 0.1}})
        {'opt': {'lr': 0.1}, 'opt.lr': 0.1}
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        name = above + str(key).replace("/", ".")
        values[name] = value
        if isinstance(value, dict):
            values.update(dotted(value, f"{name}."))
    return values


def leaves(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a config by their dotted names, without the dicts above them."""
    return {name: value for name, value in dotted(config).items() if not (isinstance(value, dict) and value)}


def as_json(value: object, name: str) -> str:
    """Return a value as JSON; CommandError for an object that is none."""
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise CommandError(
            f"{{{name}}}: a value of type {kind} cannot be passed to a command ({error})",
            fix="use numbers, text, lists and dicts in the search space",
        ) from None


def _plain(value: Any) -> object:  # noqa: ANN401 - numbers and arrays of any library
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise TypeError(f"{type(value).__name__} is not JSON")


def as_argument(value: object, name: str) -> str:
    """Return a value as one word: floats by their shortest form, lists and dicts as JSON."""
    value = getattr(value, "tolist", lambda: value)()  # of numpy
    if isinstance(value, str):
        return value
    return str(value) if value is None or isinstance(value, int | float) else as_json(value, name)


class Values:
    """The values of one trial by name, and where its files are; fills placeholders with them."""

    def __init__(
        self, config: Mapping[str, Any], places: Mapping[str, str], args: str, named: Collection[str]
    ) -> None:
        self._config, self._places, self._args = config, places, args
        self._dotted, self._leaves = dotted(config), leaves(config)
        self._rest = [name for name in self._leaves if not is_named(name, named)]

    def fill(self, part: Placeholder) -> list[str]:
        """Return the words that a placeholder becomes."""
        if part.is_macro:
            return self._macro(part)
        if part.name == "args" and "args" not in self._dotted:
            return list(self._arguments())
        value = self._value(part)
        if part.is_flag:
            return _flag(part.spec, value, part.name)
        if value is _MISSING:
            raise CommandError(
                f"{part}: this trial has no value for it", fix=f"write {{{part.name}:--flag}} or {{args}}"
            )
        if part.spec == "words":
            return [as_argument(item, part.name) for item in _items(value)]
        return [_formatted(value, part)]

    def _value(self, part: Placeholder) -> object:
        if part.name in self._dotted:
            return self._dotted[part.name]
        value = self._places.get(part.name, _MISSING)
        return None if part.is_flag and part.name == "resume" and not value else value

    def _arguments(self) -> Iterator[str]:
        if self._args == "json":
            from muster.tune.search.paths import unflattened

            yield as_json(unflattened({name: self._leaves[name] for name in self._rest}, "."), "args")
            return
        for name in self._rest:
            value = self._leaves[name]
            if self._args == "flags":
                yield from _flag(f"--{name}", value, name)
            elif self._args == "space":
                yield from (f"--{name}", as_argument(value, name))
            else:
                before = "--" if self._args == "equals" else self._args.removeprefix("hydra")
                yield f"{before}{name}={as_argument(value, name)}"

    def _macro(self, part: Placeholder) -> list[str]:
        if part.name.startswith(_ENVVAR):
            name = part.name.removeprefix(_ENVVAR)
            if f"env:{name}" not in self._places:
                raise CommandError(
                    f"{part}: the environment variable {name} is not set", fix=f"export {name}"
                )
            return [self._places[f"env:{name}"]]
        if part.name == "args_json_file":
            return [self._places["config"]]
        return MACROS[part.name](self._config)


def is_named(name: str, named: Collection[str]) -> bool:
    """Return whether a key, or a dict above it, is among these names."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in named for count in range(1, len(parts) + 1))


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _flag(spec: str, value: object, name: str) -> list[str]:
    if "[no-]" in spec:
        if value is None or value is _MISSING:
            return []
        return [spec.replace("[no-]", "" if value else "no-")]
    if value is None or value is _MISSING or value is False:
        return []
    return [spec] if value is True else [spec, as_argument(value, name)]


def _formatted(value: object, part: Placeholder) -> str:
    if not part.spec:
        return as_argument(value, part.name)
    if part.spec == "json":
        return as_json(value, part.name)
    if part.spec == "csv":
        return ",".join(as_argument(item, part.name) for item in _items(value))
    if part.spec == "01":
        return str(int(bool(value)))
    return as_number(value, part)


def as_number(value: Any, part: Placeholder) -> str:  # noqa: ANN401
    """Return a number in the format of its placeholder."""
    try:
        return format(value, part.spec)
    except (TypeError, ValueError):
        fix = f"use one of {', '.join(_SPECS)}, --flag or a number format such as .4g"
        raise CommandError(f"{part}: {value!r} does not have the format {part.spec!r}", fix=fix) from None


def _hydra(before: str) -> Callable[[Mapping[str, Any]], list[str]]:
    return lambda config: [f"{before}{key}={value}" for key, value in config.items()]


def _booleans_as_flags(config: Mapping[str, Any]) -> list[str]:
    given = {key: value for key, value in config.items() if value is not False}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in given.items()]


# What W&B's agent makes of a sweep's parameters: only the keys at the top, values as Python prints them.
MACROS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "args": _hydra("--"),
    "args_no_hyphens": _hydra(""),
    "args_no_equals": lambda config: [
        text for key, value in config.items() for text in (f"--{key}", str(value))
    ],
    "args_no_boolean_flags": _booleans_as_flags,
    "args_json": lambda config: [as_json(dict(config), "args_json")],
    "args_json_file": lambda config: [],
    "args_append_hydra": _hydra("+"),
    "args_override_hydra": _hydra("++"),
    "interpreter": lambda config: ["python"],
    "env": lambda config: ["/usr/bin/env"],
}


def fill_word(word: str, values: Values) -> list[str]:
    """Return the words that one word of the template becomes: a value never makes a second one."""
    parts = parse(word)
    if len(parts) == 1 and isinstance(parts[0], Placeholder):
        return values.fill(parts[0])
    return ["".join(part if isinstance(part, str) else values.fill(part)[0] for part in parts)]


def fill_shell(line: str, values: Values) -> str:
    """Return a line for the shell, with every value quoted."""
    parts = parse(line, in_shell=True)
    return "".join(part if isinstance(part, str) else shlex.join(values.fill(part)) for part in parts)
