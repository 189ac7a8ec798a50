"""Reads a YAML or JSON file as plain data, with the line of each key.

Called by the loaders of this package. Does not know what the keys mean.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from muster.errors import ConfigError

Path_ = tuple[str | int, ...]  # where a value stands: ("available_node_types", "gpu", "labels")

MAX_ALIASED = 100_000  # without aliases a text has no more values than characters; with them, no end
MAX_DEPTH = 100

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one when the wheel has it


def dotted(path: Path_) -> str:
    """Returns `("demands", 0, "count")` as `demands[0].count`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{printable(step)}" if text else printable(step)
    return text


def printable(name: str) -> str:
    """Returns a name as it is, in quotes where it would break the line: an error is always one line."""
    return name if name and name.isprintable() else repr(name)


class Document:
    """A Document is one file: `data` as plain dicts, lists and scalars, and `error()` for one place in it."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines: dict[Path_, int] = {}
        self._most_values = max(len(text), MAX_ALIASED)
        self.data: Any = self._read(text)

    @classmethod
    def load(cls, path: Path) -> Document:
        """Reads and parses a file; ConfigError when it cannot be read or is not YAML."""
        return cls(cls.text_of(path), str(path))

    @staticmethod
    def text_of(path: Path) -> str:
        """Returns the file's text; ConfigError when there is none."""
        try:
            return path.read_text(encoding="utf-8")
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ConfigError(
                f"cannot be read: {reason}; check the path and its permissions", file=str(path)
            ) from None
        except UnicodeDecodeError as problem:
            raise ConfigError(
                f"is not UTF-8 text: {problem.reason}; save it as UTF-8", file=str(path)
            ) from None

    def line(self, path: Path_) -> int | None:
        """Returns the line of the key, or of the nearest enclosing key that has one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self._lines:
                return self._lines[path[:end]]
        return None

    def error(self, path: Path_, message: str) -> ConfigError:
        """Returns an error about one place; the caller raises it."""
        return ConfigError(message, path=dotted(path), file=self.file, line=self.line(path))

    def _read(self, text: str) -> Any:  # noqa: ANN401 - plain data
        # JSON may be indented with tabs, which YAML refuses; inside JSON strings tabs are escaped anyway.
        is_json = self.file.endswith(".json")
        try:
            loader = _Loader(text.replace("\t", " ") if is_json else text)
            try:
                root = loader.get_single_node()
                data = None if root is None else self._walk(loader, root, ())
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as problem:
            raise self._syntax_error(problem) from None
        except (yaml.YAMLError, ValueError, RecursionError) as problem:
            raise ConfigError(f"is not valid YAML: {_one_line(str(problem))}", file=self.file) from None
        # YAML reads some JSON numbers (1e5) as text, so JSON data comes from the JSON parser.
        return self._json(text) if is_json else data

    def _json(self, text: str) -> Any:  # noqa: ANN401 - plain data
        try:
            return json.loads(text)
        except ValueError as problem:
            line = getattr(problem, "lineno", None)
            raise ConfigError(f"is not valid JSON: {problem}", file=self.file, line=line) from None

    def _syntax_error(self, problem: yaml.MarkedYAMLError) -> ConfigError:
        mark = problem.problem_mark or problem.context_mark
        what = _one_line(" ".join(part for part in (problem.context, problem.problem) if part))
        return ConfigError(f"is not valid YAML: {what}", file=self.file, line=mark.line + 1 if mark else None)

    def _walk(self, loader: Any, node: yaml.Node, path: Path_) -> Any:  # noqa: ANN401 - yaml is untyped here
        """Returns plain data of one node, and records the line of every key."""
        self._lines.setdefault(path, node.start_mark.line + 1)
        if len(self._lines) > self._most_values or len(path) > MAX_DEPTH:
            raise self.error(path, "has too many or too deeply nested values; write them out without aliases")
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN_TAGS:
            raise self.error(path, f"has the tag {node.tag}; only plain mappings and lists can be read")
        if isinstance(node, yaml.MappingNode):
            return self._walk_mapping(loader, node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._walk(loader, child, (*path, index)) for index, child in enumerate(node.value)]
        return loader.construct_object(node)

    def _walk_mapping(self, loader: Any, node: yaml.MappingNode, path: Path_) -> dict[Any, Any]:  # noqa: ANN401
        own = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        loader.flatten_mapping(node)  # `<<: *defaults`; the mapping's own keys come last and win
        values: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise ConfigError(
                    "a key must be text, not a list", path=dotted(path), file=self.file, line=line
                )
            step = (*path, str(key))
            if own.count(key_node.value) > 1:
                raise ConfigError("appears twice; keep one", path=dotted(step), file=self.file, line=line)
            self._lines[step] = line
            values[key] = self._walk(loader, value_node, step)
        return values


def _one_line(text: str) -> str:
    return " ".join(text.split())
