"""VariantCursor: the variants of one specification, one at a time, resumable at any of them.

A variant is found by index: per nesting level the index of the grid point and the place of the random stream
before it was drawn. Nothing is listed, so a grid may have any size, and saving costs the depth of nesting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from muster.tune.search.paths import Path, at, children, filled, flat_name, is_container, rebuilt
from muster.tune.search.placeholders import is_sole_key
from muster.tune.search.random_stream import RandomStream, State, as_plain
from muster.tune.search.sample import Domain, Function
from muster.tune.search.sample_functions import RecursiveDependencyError, resolve_functions
from muster.tune.search.unresolved import Unresolved, find_unresolved

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
    """Iterates over the variants of `spec`; `is_constant` shares random values between grid points."""

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
                return self._resolved_vars(spec), spec
            self._levels.append(_Level(spec, deeper))
        raise StopIteration

    def frames(self) -> list[Frame]:
        """Where it stands: one frame per level; every one but the last is inside a point it has taken."""
        if not self._levels:
            return []
        *taken, last = self._levels
        before = as_plain(last.before) if self._is_constant else None  # else the next point is drawn anew
        return [*([level.index - 1, as_plain(level.before)] for level in taken), [last.index, before]]

    def restore(self, frames: list[Frame], now: State) -> None:
        """Go to saved frames and to the place where the random stream stood then."""
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
        if self._is_constant or not level.open.is_final:  # else nobody draws these values again
            level.before = self._stream.state()
        rng = self._stream.rng
        drawn = {path: domain.sample(random_state=rng) for path, domain in domains.items()}
        if self._is_constant:
            level.constants = drawn
        return drawn

    def _resolved_vars(self, spec: Any) -> dict[Path, Any]:  # noqa: ANN401
        # Always the final value. Ray shows a choice's container before its inner values are drawn, so that
        # tags held addresses of objects, and compares values that can disagree; looked up, they cannot.
        paths = dict.fromkeys(path for level in self._levels for path in level.open.paths)
        return {path: at(spec, path) for path in paths}


def _call_with_spec(path: Path, function: Function, spec: Any) -> Any:  # noqa: ANN401
    try:
        return function.call(spec)
    except RecursiveDependencyError:
        raise
    except Exception as error:
        raise ValueError(
            f"Failed to evaluate expression: {function!r} at {flat_name(path)}: {error}"
        ) from error


logger = logging.getLogger(__name__)


def preset(space: Any, point: Any, path: Path = ()) -> Any:  # noqa: ANN401
    """`space` with the values of `point` in it. A domain or grid inside a point changes nothing.

    Raises KeyError for a key, or a list index, that the space does not have. (Ray raises TypeError for the
    index, and for a value inside a list that is out of range; here that is the same warning as elsewhere.)
    """
    if _is_open(point):
        return space
    if _is_open(space):
        _check_domain(space, point, path)
        return point
    if isinstance(space, dict) and isinstance(point, dict):
        return _preset_children(space, dict(point), path)
    if isinstance(space, (list, tuple)) and isinstance(point, (list, tuple)) and is_container(space):
        return _preset_children(space, dict(enumerate(point)), path)
    if not _is_equal(space, point):
        logger.warning(
            "points_to_evaluate: the preset value %r of parameter '%s' is not its constant %r; "
            "the preset value is used",
            point,
            flat_name(path),
            space,
        )
    return point


def _preset_children(space: Any, point: dict[Any, Any], path: Path) -> Any:  # noqa: ANN401
    items = dict(children(space))
    for key in point:
        if key not in items:
            raise KeyError(
                f"points_to_evaluate: '{flat_name((*path, key))}' is not in the search space; "
                f"known here: {', '.join(str(known) for known in items) or 'nothing'}"
            )
    changed = {k: preset(v, point[k], (*path, k)) if k in point else v for k, v in items.items()}
    return rebuilt(space, changed)


def _is_open(node: Any) -> bool:  # noqa: ANN401
    if isinstance(node, dict):
        return is_sole_key(node, "grid_search") or is_sole_key(node, "eval")
    return isinstance(node, Domain)


def _check_domain(space: Any, value: Any, path: Path) -> None:  # noqa: ANN401
    if isinstance(space, Domain):
        is_valid, domain = space.is_valid(value), space.domain_str
    elif "grid_search" in space:
        is_valid, domain = _is_among(value, space["grid_search"]), "the grid"
    else:
        return
    if not is_valid:
        logger.warning(
            "points_to_evaluate: the preset value %r of parameter '%s' is outside of %s; it is used anyway",
            value,
            flat_name(path),
            domain,
        )


def _is_among(value: Any, options: Any) -> bool:  # noqa: ANN401
    try:
        return bool(value in options)
    except (TypeError, ValueError):
        return any(value is option for option in options)


def _is_equal(one: Any, other: Any) -> bool:  # noqa: ANN401
    if one is other:
        return True
    try:
        return bool(one == other)
    except (TypeError, ValueError):  # arrays
        return False
