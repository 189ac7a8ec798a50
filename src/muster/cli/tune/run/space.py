"""Parse the search spaces of `muster tune run`: `--space KEY=SPEC` and `--space-file FILE`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from muster.base.text import did_you_mean
from muster.errors import ConfigError
from muster.tune.search import space as domains
from muster.tune.search.check_space import check_space
from muster.tune.search.conditions import KeyCondition, KeyPath, SpaceEntry, dotted

_Kind = TypeVar("_Kind", dict[str, Any], list[Any])
# The parameters of each domain, in the order of the function of the same name, and their letters in a spec.
BOUNDS, NORMAL = {"lower": "A", "upper": "B"}, {"mean": "M", "sd": "SD"}
PARAMETERS = {
    **dict.fromkeys(("uniform", "loguniform", "randint", "lograndint"), BOUNDS),
    **{name: {**BOUNDS, "q": "Q"} for name in ("quniform", "qloguniform", "qrandint", "qlograndint")},
    "randn": NORMAL,
    "qrandn": {**NORMAL, "q": "Q"},
}
LISTS = {"choice": "choice", "grid": "grid_search"}
NAMES = (*PARAMETERS, *LISTS)
FILE_KEYS = ("domain", "lower", "upper", "q", "mean", "sd", *LISTS, "if")

NAMELESS = "['']: "  # begins the messages of check_space
_CONDITION = re.compile(
    r"(?P<spec>.*?)\s+if\s+(?P<key>[^\s=!]+)\s*(?P<op>==|!=|\sin\s)\s*(?P<value>.+)", re.DOTALL
)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_LIKE_A_DOMAIN = re.compile(rf"(\w+)((:{_NUMBER.pattern}){{2,}})")


def parse_options(options: Iterable[str]) -> list[SpaceEntry]:
    """Return the entries of `--space KEY=SPEC` options."""
    found = []
    for text in options:
        where = f"--space {text}"
        key, equals, spec = text.partition("=")
        if not key.strip() or not equals or not spec.strip():
            raise ConfigError(f"{where}: must be KEY=SPEC", fix="for example lr=loguniform:1e-5:1e-1")
        found.append(parse_spec(key_path(key.strip(), where), spec.strip(), where))
    return found


def parse_spec(key: KeyPath, spec: str, where: str) -> SpaceEntry:
    """Return the entry of one SPEC, with or without a condition."""
    condition = None
    if match := _CONDITION.fullmatch(spec):
        spec, is_list = match["spec"].strip(), match["op"].strip() == "in"
        value = parse_yaml(match["value"], where)
        if is_list and not isinstance(value, list):
            raise ConfigError(f"{where}: `in` needs a list", fix=f"write in [{match['value']}]")
        values = value if is_list else [value]
        condition = KeyCondition(key_path(match["key"], where), values, match["op"] == "!=")
    return SpaceEntry(key, _parse_domain(spec, where), condition, where)


def _parse_domain(spec: str, where: str) -> Any:  # noqa: ANN401 - a domain, a grid or a constant
    name, colon, rest = spec.partition(":")
    if colon and name in LISTS:
        return made_domain(LISTS[name], [_options(rest, where)], where)
    if colon and name in PARAMETERS:
        given, letters = rest.split(":"), PARAMETERS[name].values()
        if len(given) != len(letters):
            fix = f"write {name}:{':'.join(letters)}"
            raise ConfigError(f"{where}: {name} takes {len(letters)} numbers, not {len(given)}", fix=fix)
        return made_domain(name, [number(text, where) for text in given], where)
    near = "did you mean 'randn'?" if name == "normal" else did_you_mean(name, NAMES) if colon else ""
    if near or _LIKE_A_DOMAIN.fullmatch(spec):
        raise ConfigError(f"{where}: {name} is not a domain", fix=near or f"use one of {', '.join(NAMES)}")
    return parse_yaml(spec, where)


def made_domain(name: str, values: Sequence[Any], where: str) -> Any:  # noqa: ANN401
    """Return the domain `name` with these parameters; ConfigError when it has no value."""
    try:
        domain = getattr(domains, name)(*values)
        check_space({"": domain}, "")
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"{where}: {str(error).removeprefix(NAMELESS)}") from error
    return domain


def _options(text: str, where: str) -> list[Any]:
    """Return YAML scalars that commas separate, or the values of one YAML list."""
    for whole in (text, f"[{text}]") if text.lstrip().startswith("[") else ():
        with suppress(ConfigError):  # several lists: [1, 2],[3, 4]
            return list(parse_yaml(whole, where))
    return list(parse_yaml(f"[{text}]", where))


def number(given: Any, where: str) -> float:  # noqa: ANN401 - a text, or a number of YAML
    """Return a number; a text that has no fraction becomes a whole one."""
    if isinstance(given, str) and _NUMBER.fullmatch(given.strip()):
        return int(float(given)) if float(given).is_integer() else float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ConfigError(f"{where}: {given!r} is not a number")
    return given


def parse_yaml(text: str, where: str) -> Any:  # noqa: ANN401
    """Return a value of YAML; 1e-3 is a number, as everywhere but in YAML 1.1."""
    try:
        return numeric(yaml.safe_load(text))
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ConfigError(f"{where}: is not valid YAML ({problem})", fix="quote the text") from error


def numeric(value: Any) -> Any:  # noqa: ANN401
    """Return a value with texts such as 1e-3 as numbers, also inside of lists and dicts."""
    if isinstance(value, str) and "e" in value.lower() and _NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, list):
        return [numeric(each) for each in value]
    return {key: numeric(each) for key, each in value.items()} if isinstance(value, dict) else value


def key_path(text: str, where: str) -> KeyPath:
    r"""Return the parts of a dotted key; `\.` is a dot."""
    parts = tuple(part.replace("\0", ".") for part in text.replace(r"\.", "\0").split("."))
    if not all(parts) or any("/" in part or "=" in part for part in parts):
        raise ConfigError(f"{where}: {text!r} is not a key", fix=r"dots nest, as in model.width; \. is a dot")
    return parts


def read_yaml(file: Path, option: str, kind: type[_Kind]) -> _Kind:
    """Return the mapping or list in a YAML file. Raises ConfigError where there is none."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        reason = getattr(error, "strerror", None) or getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{option} {file}{line}: cannot be read ({reason})") from error
    if not isinstance(content, kind) or not content:
        raise ConfigError(f"{option} {file}: must be a {'mapping of keys' if kind is dict else 'list'}")
    return content


def parse_file(file: Path) -> list[SpaceEntry]:
    """Return the entries of a space file."""
    return list(_file_entries(read_yaml(file, "--space-file", dict), (), f"--space-file {file}"))


def _file_entries(node: Mapping[Any, Any], parents: KeyPath, file: str) -> Iterator[SpaceEntry]:
    for name, value in node.items():
        if not isinstance(name, str):
            raise ConfigError(f"{file}: has the non-string key {name!r}", fix="quote it")
        key = (*parents, *key_path(name, file))
        where = f"{file}: {dotted(key)}"
        if isinstance(value, str):
            yield _from_text(key, value, where)
        elif not isinstance(value, dict) or not value:
            yield SpaceEntry(key, numeric(value), None, where)
        elif any(each in value for each in ("domain", "if", *LISTS)):
            yield _from_mapping(key, value, where)
        else:
            yield from _file_entries(value, key, file)


def _from_text(key: KeyPath, text: str, where: str) -> SpaceEntry:
    """Texts of a file that are neither a domain nor conditional stay what YAML made of them."""
    name, colon, _ = text.partition(":")
    if (colon and (name in NAMES or _LIKE_A_DOMAIN.fullmatch(text))) or _CONDITION.fullmatch(text):
        return parse_spec(key, text, where)
    return SpaceEntry(key, numeric(text), None, where)


def _from_mapping(key: KeyPath, node: Mapping[str, Any], where: str) -> SpaceEntry:
    condition = _file_condition(node["if"], where) if "if" in node else None
    for unknown in [each for each in node if each not in FILE_KEYS]:
        near = did_you_mean(str(unknown), FILE_KEYS)
        raise ConfigError(f"{where}: has the unknown key {unknown!r}", fix=near)
    for name in [name for name in LISTS if name in node]:
        if not isinstance(node[name], list):
            raise ConfigError(f"{where}: {name} needs a list of values")
        return SpaceEntry(key, made_domain(LISTS[name], [numeric(node[name])], where), condition, where)
    name = str(node.get("domain"))
    if name not in PARAMETERS:
        near = did_you_mean(name, PARAMETERS) or f"use one of {', '.join(PARAMETERS)}"
        raise ConfigError(f"{where}: {name!r} is not a domain", fix=near)
    missing = [each for each in PARAMETERS[name] if each not in node]
    if missing:
        raise ConfigError(f"{where}: {name} lacks {', '.join(missing)}")
    values = [number(node[each], where) for each in PARAMETERS[name]]
    return SpaceEntry(key, made_domain(name, values, where), condition, where)


def _file_condition(given: Any, where: str) -> KeyCondition:  # noqa: ANN401
    if not isinstance(given, dict) or len(given) != 1:
        fix = "for example if: {optimizer: sgd}"
        raise ConfigError(f"{where}: `if` must name one key and its value", fix=fix)
    ((name, value),) = given.items()
    values = numeric(value if isinstance(value, list) else [value])
    return KeyCondition(key_path(str(name), where), values)
