"""Read what a command prints: the ways to report, the results in its lines, and the log that is kept.

Nothing here grows with the output: a command may write gigabytes, or one line without end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from muster.base.text import did_you_mean
from muster.errors import CommandError

METRICS = "MUSTER_METRICS"  # for the processes of trials: the metrics of the experiment, as a JSON list
_FILES = ("jsonl", "csv", "tensorboard", "json")
_KINDS = ("auto", "text", "regex", *_FILES)


class Way(NamedTuple):
    """One way by which results come, besides the report socket."""

    kind: str
    argument: str = ""  # a pattern, or a path with placeholders

    @property
    def is_file(self) -> bool:
        return self.kind in _FILES

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind


def parse_way(text: str) -> Way:
    """Return the way that a text such as `jsonl:metrics.jsonl` describes; CommandError if it is none."""
    kind, _, argument = str(text).partition(":")
    if kind not in _KINDS:
        fix = did_you_mean(kind, _KINDS) or f"use one of {', '.join(_KINDS)}"
        raise CommandError(f"report={text!r}: {kind!r} is not a way to report", fix=fix)
    if bool(argument) == (kind in ("auto", "text")):
        fix = f"write {kind!r}" if argument else f"write '{kind}:{'PATTERN' if kind == 'regex' else 'PATH'}'"
        raise CommandError(f"report={text!r} cannot be used", fix=fix)
    if kind == "regex":
        example = r"write 'regex:loss (?P<loss>\S+)'"
        try:
            names = re.compile(argument).groupindex
        except re.error as error:
            raise CommandError(f"report='{text}': {error}", fix=example) from None
        if not names:
            raise CommandError(f"report='{text}' has no named group", fix=example)
    return Way(kind, argument)


_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"


def as_value(text: str) -> object:
    """Return a number where a text is one.

    Example:
        >>> as_value("3"), as_value("1e-3"), as_value("nan"), as_value("sgd")
        (3, 0.001, nan, 'sgd')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def has_number(values: Mapping[str, Any]) -> bool:
    return any(isinstance(value, int | float) for value in values.values())


class LineReader:
    """Returns the values that a line of output has."""

    def __init__(self, ways: Sequence[Way], names: Sequence[str]) -> None:
        self._reads_json = any(way.kind == "auto" for way in ways)
        self._patterns = [re.compile(way.argument) for way in ways if way.kind == "regex"]
        self._named: re.Pattern[str] | None = None
        if names and any(way.kind == "text" for way in ways):
            listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
            self._named = re.compile(rf"(?<![\w./-])({listed})\s*[=:]\s*({_NUMBER})(?![\w.])", re.IGNORECASE)
        self._names = {name.lower(): name for name in names}
        self.is_idle = not (self._reads_json or self._patterns or self._named)

    def read(self, line: bytes) -> Iterator[dict[str, Any]]:
        if self._reads_json and line.lstrip()[:1] == b"{":
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                yield found
                return
        if self._patterns or self._named:
            text = line.decode("utf-8", "replace")
            for pattern in self._patterns:
                for match in pattern.finditer(text):
                    groups = match.groupdict()
                    yield {name: as_value(part.strip()) for name, part in groups.items() if part is not None}
            named = [] if self._named is None else self._named.findall(text)
            if named:
                yield {self._names.get(name.lower(), name): as_value(part) for name, part in named}


class Carry:
    """Makes a result whenever a metric is seen; other values are those of the last line that had them."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = tuple(metrics)
        self._values: dict[str, Any] = {}
        self.seen: dict[str, None] = {}  # the names, in order

    def add(self, found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the results that these values make."""
        for values in found:
            self._values.update(values)
            self.seen.update(dict.fromkeys(values))
            if not self._metrics:
                is_result = has_number(values)
            else:
                is_result = any(_has(values, metric) for metric in self._metrics)
                is_result = is_result and all(_has(self._values, metric) for metric in self._metrics)
            if is_result:
                yield dict(self._values)


def _has(values: Mapping[str, Any], metric: str) -> bool:
    """Return whether a result has a metric, which `val/loss` names inside of a dict too."""
    if metric in values:
        return values[metric] is not None
    head, _, rest = metric.partition("/")
    inner = values.get(head)
    return bool(rest) and isinstance(inner, dict) and _has(inner, rest)


HEAD_BYTES = 1_000_000
MAX_LINE = 1_000_000
LAST_LINES = 20
_TAIL_BYTES = 1 << 16
_PARTS = 4  # the end is written to so many files; the oldest goes when a new one begins
_COLORS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Lines:
    """Splits a stream into lines: at `\\n`, and at `\\r`, with which progress bars begin again."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False  # the line is too long: the rest of it is passed over

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without colors."""
        if self._is_cut:
            end = min((at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0), default=-1)
            if end < 0:
                return []
            self._is_cut, data = False, data[end + 1 :]
        lines = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest[:MAX_LINE])
            self._rest, self._is_cut = b"", True
        return [_COLORS.sub(b"", line) if b"\x1b" in line else line for line in lines if line]

    def end(self) -> list[bytes]:
        """Return the last line, which has no end."""
        last, self._rest = self._rest, b""
        return [last] if last else []


class CappedLog:
    """A file with the beginning and the end of what was written, at most `limit` bytes."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self._part_bytes = max(limit - HEAD_BYTES, 0) // _PARTS
        self._head_left = min(limit, HEAD_BYTES)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._head_left -= min(os.fstat(self._fd).st_size, self._head_left)  # of an earlier attempt
        self._parts: list[str] = []
        self._left = 0  # room in the newest part
        self._dropped = 0
        self.tail = b""

    def write(self, data: bytes) -> None:
        self.tail = (self.tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        with contextlib.suppress(OSError):  # a full disk must not stop the command
            if self._head_left > 0:
                head, data = data[: self._head_left], data[self._head_left :]
                os.write(self._fd, head)
                self._head_left -= len(head)
            while data and self._part_bytes:
                if self._left <= 0:
                    self._begin_part()
                os.write(self._fd, data[: self._left])
                data, self._left = data[self._left :], self._left - len(data[: self._left])

    def _begin_part(self) -> None:
        """Continue in another file; the oldest one goes."""
        number = self._dropped + len(self._parts)
        if len(self._parts) == _PARTS:
            os.unlink(self._parts.pop(0))
            self._dropped += 1
        self._parts.append(f"{self.path}.{number}")
        os.close(self._fd)
        self._fd = os.open(self._parts[-1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._left = self._part_bytes

    def close(self) -> None:
        """Put the parts behind the beginning."""
        os.close(self._fd)
        with contextlib.suppress(OSError), open(self.path, "ab") as whole:
            if self._dropped:
                left_out = self._dropped * self._part_bytes
                whole.write(f"\n[muster left out {left_out} bytes here; log_limit keeps more]\n".encode())
            for part in self._parts:
                with open(part, "rb") as stream:
                    shutil.copyfileobj(stream, whole, 1 << 20)
                os.unlink(part)

    def last_lines(self) -> str:
        text = _COLORS.sub(b"", self.tail).decode("utf-8", "replace").replace("\r", "\n")
        lines = [line[:500] for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-LAST_LINES:])
