"""Turn a specification with grids, domains and functions into variants, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import message_text
from muster.tune.search.paths import (
    Path,
    at,
    children,
    filled,
    flat_name,
    format_vars,
    is_container,
    is_group,
    sort_key,
)
from muster.tune.search.random_stream import RandomStream, State, as_plain
from muster.tune.search.sample import Categorical, Domain, Float, Function, Integer
from muster.tune.search.sample_functions import RecursiveDependencyError, resolve_functions
from muster.tune.search.space import grid_search

if TYPE_CHECKING:
    from muster.tune.search.sample import RandomState


_LEAVES = (int, float, str, bool, type(None))
Grids = list[tuple[Path, Sequence[Any]]]
Vars = list[tuple[Path, Any]]


class Expression(Function):
    """An Expression is `{"eval": "..."}`: Python over `spec`, and `np` and `random` if it names them."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda spec: spec)
        try:
            self._code = compile(text, "<eval>", "eval")
        except (SyntaxError, TypeError, ValueError) as error:
            raise ValueError(f"Failed to evaluate expression: {text!r}: {message_text(error)}") from error
        self.func: Callable[..., Any] = self._evaluate
        self.text = text

    def _evaluate(self, spec: Any) -> Any:  # noqa: ANN401
        return eval(self._code, {"spec": spec, **_modules(self._code)})

    @property
    def domain_str(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def _modules(code: CodeType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "np" in code.co_names:
        import numpy

        found["np"] = numpy
    if "random" in code.co_names:
        import random  # noqa: TID251 - the user's expression asks for it

        found["random"] = random
    return found


class Unresolved:
    """Holds the open places of one specification, in the order in which they are drawn."""

    __slots__ = ("_is_final", "domains", "functions", "grids", "paths")

    def __init__(self) -> None:
        self.grids: Grids = []  # sorted by path; the first varies fastest
        self.domains: dict[Path, Domain] = {}
        self.functions: dict[Path, Function] = {}
        self.paths: list[Path] = []  # random variables first, then grids
        self._is_final: bool | None = None

    def __bool__(self) -> bool:
        return bool(self.paths)

    @property
    def size(self) -> int:
        """Return how many points the grids have together."""
        return math.prod(len(options) for _, options in self.grids)

    @property
    def is_final(self) -> bool:
        """Return whether only numbers and plain options are to be drawn, after which nothing can be open."""
        if self._is_final is None:
            drawn = self.domains.values()
            self._is_final = not self.grids and not self.functions and all(map(_gives_leaves, drawn))
        return self._is_final

    def grid_point(self, index: int) -> dict[Path, Any]:
        """Return the grid values of one point, found by its index alone."""
        point = {}
        for path, options in self.grids:
            index, digit = divmod(index, len(options))
            point[path] = options[digit]
        return point


def find_unresolved(parts: Iterator[tuple[Path, Any]]) -> Unresolved:
    """Return the open places below the given (path, value) pairs."""
    found = Unresolved()
    for path, value in parts:
        _collect(value, path, found)
    found.grids.sort(key=lambda grid: sort_key(grid[0]))
    found.paths.extend(path for path, _ in found.grids)
    return found


def searched_keys(space: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the flat names of what is searched: domains, grids and expressions."""
    names: dict[str, None] = {}
    for path in find_unresolved(iter([((), dict(space))])).paths:
        inner: Iterable[Path] = (path,)
        if path and is_group(path[0]):
            from muster.tune.search.conditions import key_paths

            inner = key_paths({path[0]: space[path[0]]})
        names.update(dict.fromkeys(map(flat_name, inner)))
    return tuple(names)


def has_unresolved_values(config: Any) -> bool:  # noqa: ANN401
    """Return whether a domain, a grid or a function is anywhere in the configuration."""
    return bool(find_unresolved(iter([((), config)])))


def _gives_leaves(domain: Domain) -> bool:
    if type(domain) is Categorical:
        return all(isinstance(option, _LEAVES) for option in domain.categories)
    return type(domain) in (Float, Integer)


def _collect(node: Any, path: Path, found: Unresolved) -> None:  # noqa: ANN401
    if isinstance(node, Domain):
        _collect_domain(node, path, found)
    elif isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
        found.grids.append((path, _options(node["grid_search"], path)))
    elif isinstance(node, dict) and len(node) == 1 and "eval" in node:
        _collect_domain(Expression(node["eval"]), path, found)
    elif is_container(node):
        for key, child in children(node):
            _collect(child, (*path, key), found)


def _collect_domain(domain: Domain, path: Path, found: Unresolved) -> None:
    if isinstance(domain, Categorical) and domain.is_grid():
        found.grids.append((path, domain.categories))
        return
    found.paths.append(path)
    if isinstance(domain, Function):
        found.functions[path] = domain
    else:
        found.domains[path] = domain


def _options(values: Any, path: Path) -> Sequence[Any]:  # noqa: ANN401
    if not isinstance(values, str) and hasattr(values, "__len__") and hasattr(values, "__getitem__"):
        return values  # type: ignore[no-any-return]
    try:
        return list(values)
    except TypeError:
        raise ValueError(f"grid_search at {path} needs a list of values, not {values!r}") from None


Variant = tuple[dict[Path, Any], Any]  # resolved variables by path, and the specification without open places
Frame = list[Any]  # [index of a grid point, random state to draw it again]


_NOTHING = Unresolved()


class _Level:
    """One specification with open places, and the grid point to be taken next."""

    __slots__ = ("before", "constants", "index", "open", "size", "spec")

    def __init__(self, spec: Any, open_places: Unresolved) -> None:  # noqa: ANN401
        self.spec = spec
        self.open = open_places
        self.size = open_places.size
        self.index = 0
        self.before: State | None = None
        self.constants: dict[Path, Any] | None = None  # constant_grid_search: drawn once for the level


class VariantCursor(Iterator[Variant]):
    """Iterates over the variants of `spec`, and can be resumed at any of them."""

    def __init__(
        self,
        spec: Any,  # noqa: ANN401
        stream: RandomStream,
        *,
        is_constant: bool = False,
        open_places: Unresolved | None = None,  # of `spec`, when the caller has looked already
    ) -> None:
        self._stream, self._is_constant = stream, is_constant
        if open_places is None:
            open_places = find_unresolved(iter([((), spec)]))
        self._levels = [_Level(spec, open_places)]

    def __next__(self) -> Variant:
        while self._levels:
            level = self._levels[-1]
            if level.index >= level.size:
                self._levels.pop()
                continue
            spec, deeper = self._take(level)
            if not deeper:
                # Always the final value. Ray shows a choice's container before its inner values are drawn, so
                # that tags held addresses of objects, and compares values that can disagree.
                paths = dict.fromkeys(path for open_level in self._levels for path in open_level.open.paths)
                return {path: at(spec, path) for path in paths}, spec
            self._levels.append(_Level(spec, deeper))
        raise StopIteration

    def frames(self) -> list[Frame]:
        """Return the position: one frame per level; all but the last are inside a point already taken."""
        if not self._levels:
            return []
        *taken, last = self._levels
        before = as_plain(last.before) if self._is_constant else None  # else the next point is drawn again
        return [*([level.index - 1, as_plain(level.before)] for level in taken), [last.index, before]]

    def restore(self, frames: list[Frame], now: State) -> None:
        """Goes to saved frames, and to the position of the random stream at that time."""
        if not frames:
            self._levels = []
        for i, (index, before) in enumerate(frames):
            level = self._levels[-1]
            level.index = index
            if before is not None:
                self._stream.restore(before)
            if i < len(frames) - 1:
                spec, deeper = self._take(level)
                self._levels.append(_Level(spec, deeper))
            elif self._is_constant and before is not None:
                self._drawn(level)
        self._stream.restore(now)

    def _take(self, level: _Level) -> tuple[Any, Unresolved]:
        values = {**self._drawn(level), **level.open.grid_point(level.index)}
        level.index += 1
        spec = filled(level.spec, values)
        if level.open.is_final:
            return spec, _NOTHING
        functions = level.open.functions
        if functions:
            spec = resolve_functions(spec, functions, _call_with_spec)
        return spec, find_unresolved((path, at(spec, path)) for path in level.open.paths)

    def _drawn(self, level: _Level) -> dict[Path, Any]:
        if level.constants is not None:
            return level.constants
        domains = level.open.domains
        if not domains:
            return {}
        if self._is_constant or not level.open.is_final:  # else these values are not drawn again
            level.before = self._stream.state()
        rng = self._stream.rng
        drawn = {path: domain.sample(random_state=rng) for path, domain in domains.items()}
        if self._is_constant:
            level.constants = drawn
        return drawn


def _call_with_spec(path: Path, function: Function, spec: Any) -> Any:  # noqa: ANN401
    try:
        return function.call(spec)
    except RecursiveDependencyError:
        raise
    except Exception as error:
        raise ValueError(
            f"Failed to evaluate expression: {function!r} at {flat_name(path)}: {message_text(error)}"
        ) from error


__all__ = [
    "RecursiveDependencyError",
    "flatten_resolved_vars",
    "format_vars",
    "generate_variants",
    "grid_search",
    "has_unresolved_values",
    "parse_spec_vars",
]


def parse_spec_vars(spec: Any) -> tuple[Vars, Vars, Vars]:  # noqa: ANN401 - a search space
    """Return the constants, the domains and the grids of a space, each as (path, value) pairs.

    Example:
        >>> parse_spec_vars({"a": 1, "b": {"c": grid_search([1, 2])}})
        ([(('a',), 1)], [], [(('b', 'c'), [1, 2])])
    """
    found = find_unresolved(iter([((), spec)]))
    constants: Vars = []
    _collect_constants(spec, (), set(found.paths), constants)
    drawn = {**found.domains, **found.functions}
    domains = [(path, drawn[path]) for path in found.paths if path in drawn]
    return constants, domains, [(path, list(options)) for path, options in found.grids]


def _collect_constants(node: Any, path: Path, open_paths: set[Path], constants: Vars) -> None:  # noqa: ANN401
    if path in open_paths:
        return
    if not is_container(node):
        constants.append((path, node))
        return
    for key, child in children(node):
        _collect_constants(child, (*path, key), open_paths, constants)


def generate_variants(
    unresolved_spec: Any,  # noqa: ANN401
    constant_grid_search: bool = False,
    random_state: RandomState = None,
) -> Iterator[tuple[dict[Path, Any], Any]]:
    """Yield (resolved variables by path, resolved specification) of each variant, grids lazily.

    Functions are given the whole specification, and may read each other's values in any order; only a circle
    is an error. (Ray gives up after 20 passes.)
    """
    yield from VariantCursor(unresolved_spec, RandomStream(random_state), is_constant=constant_grid_search)


def flatten_resolved_vars(resolved_vars: Mapping[Path, Any]) -> dict[str, Any]:
    """Return paths as `a/b`, without a leading `config`."""
    return {
        flat_name(path[1:] if path and path[0] == "config" else path): value
        for path, value in resolved_vars.items()
    }
