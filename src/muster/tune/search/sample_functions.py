"""Evaluate `sample_from` functions by dependency: whatever one reads of another is computed first.

Ray runs them once, in the order of the config, and a function that reads a later one sees a placeholder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsIndex

from muster.errors import TuneError
from muster.tune.search.paths import Path, children, flat_name, is_container, rebuilt
from muster.tune.search.sample import Domain, Function

logger = logging.getLogger(__name__)


class RecursiveDependencyError(TuneError):
    """A value of the search space needs itself to be computed."""

    def __init__(self, chain: list[Path]) -> None:
        self.chain = [flat_name(path) for path in chain]
        super().__init__(
            f"`{self.chain[0]}` recursively depends on itself: {' -> '.join(self.chain)}. "
            "Break the circle: make one of these a plain value or a domain."
        )


Caller = Callable[[Path, Function, Any], Any]


def resolve_functions(config: Any, functions: Mapping[Path, Function], call: Caller | None = None) -> Any:  # noqa: ANN401
    """Return the config with every function replaced by its value; they run in order, or when read."""
    run = _Run(call or call_with_config)
    pending = {path: _Pending(path, function, run) for path, function in functions.items()}
    run.config = _lazy(config, (), pending)
    for one in pending.values():
        one.value()
    return _plain(run.config)


class _Run:
    """One evaluation of all functions of one config."""

    def __init__(self, call: Caller) -> None:
        self.call = call
        self.config: Any = None
        self.in_progress: list[Path] = []


class _Pending:
    """A function and, once computed, its value."""

    __slots__ = ("_function", "_is_known", "_path", "_run", "_value")

    def __init__(self, path: Path, function: Function, run: _Run) -> None:
        self._path, self._function, self._run = path, function, run
        self._is_known = False
        self._value: Any = None

    def value(self) -> Any:  # noqa: ANN401
        if not self._is_known:
            self._value = self._computed()
            self._is_known = True
        return self._value

    def _computed(self) -> Any:  # noqa: ANN401
        stack = self._run.in_progress
        if self._path in stack:
            raise RecursiveDependencyError([*stack[stack.index(self._path) :], self._path])
        stack.append(self._path)
        try:
            return self._run.call(self._path, self._function, self._run.config)
        finally:
            stack.pop()


def call_with_config(path: Path, function: Function, config: Any) -> Any:  # noqa: ANN401
    """Return `fn(config)`; a function written for Ray's old `spec` object (`spec.config.x`) gets one."""
    try:
        value = function.call(config)
    except (AttributeError, KeyError) as error:
        if not function.pass_config:
            raise
        try:
            value = function.call(_LazyDict({"config": config}))
        except (AttributeError, KeyError) as second:  # the user's own error, unless it is about `spec.config`
            raise (second if "'config'" in str(error) else error) from None
        logger.warning(
            "sample_from at '%s' reads `spec.config.x`, which is deprecated: read `config['x']` instead",
            flat_name(path),
        )
    if isinstance(value, Domain):
        logger.warning(
            "sample_from at '%s' returned a search domain, which stays in the config as it is: "
            "return a value, e.g. by calling .sample() on it",
            flat_name(path),
        )
    return value


def _read(value: Any) -> Any:  # noqa: ANN401
    return value.value() if type(value) is _Pending else value


class _LazyDict(dict[Any, Any]):
    """Computes pending values when they are read, however they are read; also by attribute."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name in self:
            return self[name]
        raise AttributeError(f"the configuration has no '{name}': it has {', '.join(map(str, self))}")

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401
        return _read(super().__getitem__(key))

    def __missing__(self, key: Any) -> Any:  # noqa: ANN401
        raise KeyError(key)  # by us, so that users see their own line

    def get(self, key: Any, default: Any = None) -> Any:  # noqa: ANN401
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`

    def pop(self, key: Any, *default: Any) -> Any:  # noqa: ANN401
        return _read(super().pop(key, *default))

    def __iter__(self) -> Iterator[Any]:  # without it, dict(config) and **config would copy raw values
        return super().__iter__()

    def values(self) -> Any:  # noqa: ANN401
        return [self[key] for key in self]

    def items(self) -> Any:  # noqa: ANN401
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())


class _LazyList(list[Any]):
    def __getitem__(self, index: SupportsIndex | slice) -> Any:  # noqa: ANN401
        value = super().__getitem__(index)
        return [_read(v) for v in value] if isinstance(index, slice) else _read(value)

    def __iter__(self) -> Iterator[Any]:
        return (_read(value) for value in super().__iter__())


class _LazyTuple(tuple[Any, ...]):
    __slots__ = ()

    def __getitem__(self, index: SupportsIndex | slice) -> Any:  # noqa: ANN401
        value = super().__getitem__(index)
        return tuple(_read(v) for v in value) if isinstance(index, slice) else _read(value)

    def __iter__(self) -> Iterator[Any]:
        return (_read(value) for value in super().__iter__())


def _lazy(node: Any, path: Path, pending: Mapping[Path, _Pending]) -> Any:  # noqa: ANN401
    if path in pending:
        return pending[path]
    if not is_container(node):
        return node
    items = {key: _lazy(child, (*path, key), pending) for key, child in children(node)}
    if isinstance(node, dict):
        return _LazyDict(items)
    return _LazyList(items.values()) if isinstance(node, list) else _LazyTuple(items.values())


def _plain(node: Any) -> Any:  # noqa: ANN401
    """Return ordinary containers again; computes what was not read yet, in config order."""
    if isinstance(node, (_LazyDict, _LazyList, _LazyTuple)):
        return rebuilt(node, {key: _plain(child) for key, child in children(node)})
    return node
