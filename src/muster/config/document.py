"""Read a YAML or JSON file as plain data, and finds the line of each key.

Called by the loaders of this package. Does not know what the keys mean. Any text gives data or a ConfigError
within seconds: size, depth and number of values are limited, and all of them before a value is built.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from muster.errors import ConfigError

Path_ = tuple[str | int, ...]  # where a value stands: ("available_node_types", "gpu", "labels")

MAX_BYTES = 8 * 2**20
MAX_VALUES = 200_000  # aliases written out: a small text can stand for an endless one
MAX_DEPTH = 100
MAX_SHOWN = 80  # characters of a key in an error
MAX_SCALAR = 100  # characters of a number or a date: the time to read one grows with their square
MAX_OTHER_KEYS = 1_000  # that are not text: numbers can be chosen so that a dict of them takes minutes

_YAML = "tag:yaml.org,2002:"
_KINDS = ("null", "bool", "int", "float", "binary", "timestamp")
_PLAIN_TAGS = (None, "!", f"{_YAML}map", f"{_YAML}seq")
_TOO_MANY = f"has more than {MAX_VALUES:,} values, aliases written out; split the file or remove aliases"
_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep; write it flatter"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one when the wheel has it


def dotted(path: Path_) -> str:
    """Return `("demands", 0, "count")` as `demands[0].count`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{printable(step)}" if text else printable(step)
    return text


def printable(name: str) -> str:
    """Return a name as it is, short and in quotes where it would break the line: an error is one line."""
    name = name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 3]}..."
    return name if name and name.isprintable() else repr(name)


def kubernetes_kind(data: object) -> str:
    """Return the kind of a Kubernetes object, such as RayCluster; "" for anything else."""
    if isinstance(data, dict) and "apiVersion" in data and isinstance(data.get("kind"), str):
        return printable(data["kind"])
    return ""


def not_kubernetes(kind: str) -> str:
    """Return what to tell about a Kubernetes object that is given as a cluster file."""
    what = f"is a Kubernetes object of kind {kind}, not a cluster file"
    if kind in ("RayJob", "RayService"):
        return f"{what}: apply it with kubectl; muster scales the RayCluster that KubeRay makes of it"
    if kind != "RayCluster":
        return f"{what}: apply it with kubectl"
    return (
        f"{what}; up, status, why and down take one:"
        " to plan for one, describe its groups as available_node_types, under provider kuberay"
    )


class Document:
    """One file: `data` as plain dicts, lists and scalars, and `error()` for one place in it."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._text = text
        self.data: Any = self._json() if file.endswith(".json") else self._parsed.data

    @classmethod
    def load(cls, path: Path) -> Document:
        """Read and parse a file; ConfigError when it cannot be read or is not YAML."""
        return cls(cls.text_of(path), str(path))

    @staticmethod
    def text_of(path: Path) -> str:
        """Return the file's text; ConfigError when there is none, or far too much of it."""
        try:
            with path.open("rb") as opened:  # a device may never end
                content = opened.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ConfigError(f"is larger than {MAX_BYTES >> 20} MiB", file=str(path), fix="split it")
            return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ConfigError(
                f"cannot be read: {reason}", file=str(path), fix="check the path and its permissions"
            ) from None
        except UnicodeDecodeError as problem:
            raise ConfigError(
                f"is not UTF-8 text: {problem.reason}", file=str(path), fix="save it as UTF-8"
            ) from None

    def changed(self, data: Any) -> Document:  # noqa: ANN401 - plain data
        """Return the document with other data; errors still cite the lines of the text."""
        other = copy.copy(self)
        other.data = data
        return other

    def line(self, path: Path_) -> int | None:
        """Return the line of the key, or of the nearest enclosing key that has one."""
        try:
            return self._parsed.line(path)
        except ConfigError:  # JSON that YAML cannot read
            return None

    def error(self, path: Path_, message: str) -> ConfigError:
        """Return an error about one place; the caller raises it."""
        return ConfigError(message, path=dotted(path), file=self.file, line=self.line(path))

    @cached_property
    def _parsed(self) -> _Parser:
        # JSON may be indented with tabs, which YAML refuses; inside JSON strings tabs are escaped anyway.
        text = self._text.replace("\t", " ") if self.file.endswith(".json") else self._text
        try:
            return _Parser(text, self.file)
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            what, line = f"{problem.context or ''} {problem.problem or ''}", mark.line + 1 if mark else None
        except (yaml.YAMLError, ValueError) as problem:
            position = getattr(problem, "position", None)
            what, line = str(problem), None if position is None else text.count("\n", 0, position) + 1
        raise ConfigError(f"is not valid YAML: {' '.join(what.split())}", file=self.file, line=line)

    def _json(self) -> Any:  # noqa: ANN401 - plain data
        """YAML reads some JSON numbers (1e5) as text, so JSON data comes from the JSON parser."""
        try:
            data = json.loads(self._text, object_pairs_hook=_without_duplicates)
            _check_limits(data)
        except (KeyError, RecursionError):
            raise self._found_by_yaml() from None
        except ValueError as problem:
            line = getattr(problem, "lineno", None)
            raise ConfigError(f"is not valid JSON: {problem}", file=self.file, line=line) from None
        return data

    def _found_by_yaml(self) -> ConfigError:
        """Return the same mistake with its line, unless YAML does not read the file in the same way."""
        try:
            _ = self._parsed
        except ConfigError as located:
            return located
        return ConfigError("has a key twice, or is too large or too deep", file=self.file, fix="correct it")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


def _check_limits(data: object) -> None:
    """Raise RecursionError beyond the limits, and ValueError for text that cannot be written again."""
    level, count = [data], 0
    for _ in range(MAX_DEPTH + 1):
        count += len(level)
        if count > MAX_VALUES:
            raise RecursionError
        for value in level:
            if isinstance(value, str) and not value.isascii():
                value.encode("utf-8")  # it may have half of a character that takes two escapes
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise RecursionError


class _Parser:
    """Builds the data of one YAML document from the events of the C parser, within the limits.

    Yaml's own composer is not used: it builds the whole tree first, by recursion in C without a limit.
    """

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._count = 0  # values so far, aliases written out
        self._other_keys = 0
        self._first_line: int | None = None
        self._path: list[str | int] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._plain: dict[str, Any] = {}  # what a text without quotes stands for: most are repeated
        self._lines: dict[int, tuple[Any, dict[str | int, int]]] = {}  # of the keys, by id of their mapping
        self._loader = _Loader(text)
        try:
            self.data = self._document()
        finally:
            self._loader.dispose()

    def line(self, path: Path_) -> int | None:
        """Return the line of the key, or of the nearest enclosing key that has one."""
        found, data = self._first_line, self.data
        for step in path:
            _, lines = self._lines.get(id(data), (None, {}))
            if step not in lines:
                break
            found, data = lines[step], data.get(step) if isinstance(data, dict) else data[step]
        return found

    def _document(self) -> Any:  # noqa: ANN401 - plain data
        self._loader.get_event()  # the stream begins
        if isinstance(self._loader.get_event(), yaml.StreamEndEvent):
            return None
        first = self._loader.get_event()
        self._first_line = first.start_mark.line + 1
        data = self._value(first)
        self._loader.get_event()  # the document ends
        after = self._loader.get_event()
        if not isinstance(after, yaml.StreamEndEvent):
            kind, several = kubernetes_kind(data), "is not valid YAML: expected a single document; keep one"
            raise self._error(after, not_kubernetes(kind) if kind else several)
        return data

    def _value(self, event: Any) -> Any:  # noqa: ANN401 - yaml is untyped here
        before = self._count
        self._count += 1
        if isinstance(event, yaml.AliasEvent):
            data = self._alias(event)
        elif isinstance(event, yaml.ScalarEvent):
            data = self._scalar(event)
        else:
            data = self._collection(event)
        if self._count > MAX_VALUES:
            raise self._error(event, _TOO_MANY)
        if event.anchor and not isinstance(event, yaml.AliasEvent):
            self._anchors[event.anchor] = data, self._count - before
        return data

    def _alias(self, event: Any) -> Any:  # noqa: ANN401
        if event.anchor not in self._anchors:
            name = printable(event.anchor)
            raise self._error(event, f"*{name} has no complete &{name} above it; define it first")
        data, size = self._anchors[event.anchor]
        self._count += size
        return data

    def _collection(self, event: Any) -> Any:  # noqa: ANN401
        if event.tag not in _PLAIN_TAGS:
            what = printable(event.tag)
            raise self._error(event, f"has the tag {what}; only plain mappings and lists can be read")
        if len(self._path) > MAX_DEPTH:
            del self._path[3:]
            raise self._error(event, _TOO_DEEP)
        is_list = isinstance(event, yaml.SequenceStartEvent)
        data, lines = self._list() if is_list else self._mapping()
        self._lines[id(data)] = data, lines
        return data

    def _list(self) -> tuple[list[Any], dict[str | int, int]]:
        values: list[Any] = []
        lines: dict[str | int, int] = {}
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            self._path.append(len(values))
            lines[len(values)] = event.start_mark.line + 1
            values.append(self._value(event))
            self._path.pop()
        return values, lines

    def _mapping(self) -> tuple[dict[Any, Any], dict[str | int, int]]:
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        lines: dict[str | int, int] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key, line = "<<" if is_merge else self._key(event), event.start_mark.line + 1
            self._path.append(str(key))
            if key in own and not is_merge:
                first = lines[str(key)]
                raise self._error(
                    event, f"is on line {first} already; Ray takes the last, line {line}: keep one"
                )
            value = self._value(self._loader.get_event())
            if is_merge:  # `<<: *defaults`; the mapping's own keys win, wherever they stand
                merged.update(self._merged(event, value, lines))
            else:
                own[key], lines[str(key)] = value, line
            self._path.pop()
        return ({**merged, **own} if merged else own), lines

    def _key(self, event: Any) -> Any:  # noqa: ANN401
        if isinstance(event, yaml.CollectionStartEvent):
            raise self._error(event, "has a key that is a list or a mapping; a key must be text")
        if isinstance(event, yaml.AliasEvent):
            key = self._alias(event)
        else:
            key = self._scalar(event)
            if event.anchor:
                self._anchors[event.anchor] = key, 1
        self._other_keys += not isinstance(key, str)
        if not isinstance(key, Hashable) or self._other_keys > MAX_OTHER_KEYS:
            raise self._error(event, "has a key that is not text; put it in quotes")
        return key

    def _merged(self, event: Any, value: Any, lines: dict[str | int, int]) -> dict[Any, Any]:  # noqa: ANN401
        """Return the keys of a mapping, or of a list of them, whose first one wins."""
        found: dict[Any, Any] = {}
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise self._error(event, "must stand for a mapping or a list of mappings, such as *defaults")
            for key, inner in part.items():
                found.setdefault(key, inner)
            for step, line in self._lines[id(part)][1].items():
                lines.setdefault(step, line)
        return found

    def _scalar(self, event: Any) -> Any:  # noqa: ANN401
        text, tag = event.value, event.tag
        if tag in (None, "!"):
            if not event.implicit[0] or len(text) > MAX_SCALAR:
                return text
            if text in self._plain:
                return self._plain[text]
            tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit)
        value = text if tag == f"{_YAML}str" else self._special(event, tag)
        if event.tag is None:
            self._plain[text] = value
        return value

    def _special(self, event: Any, tag: str) -> Any:  # noqa: ANN401
        """Return what is not text: a number, a date, true, nothing, bytes."""
        kind = printable(tag).removeprefix(_YAML)
        if kind not in _KINDS:
            raise self._error(event, f"has the tag {kind}; remove it, and put text in quotes")
        if len(event.value) > MAX_SCALAR and kind != "binary":
            raise self._error(event, f"is too long for a value of type {kind}; shorten it or remove the tag")
        try:
            return self._loader.construct_object(
                yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
            )
        except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            message = f"{printable(event.value)} is not of type {kind}; correct it or put it in quotes"
            raise self._error(event, message) from None

    def _error(self, event: Any, message: str) -> ConfigError:  # noqa: ANN401
        line = event.start_mark.line + 1
        return ConfigError(message, path=dotted(tuple(self._path)), file=self._file, line=line)
