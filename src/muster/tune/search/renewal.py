"""Configs of an earlier run with the objects of the space that a restore was given. Used by `launch`.

Which option a trial had is known from `evaluated_params`, where objects stand as placeholders; numbers and
texts stay as they were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from muster.tune.search.domains import Domain, Function
from muster.tune.search.paths import Path, at, children, filled, flat_name, flattened, is_container
from muster.tune.search.placeholders import SetAside, inject_placeholders, is_placeholder
from muster.tune.search.sample_functions import resolve_functions

T = TypeVar("T")
_Make = Callable[[str, dict[str, Any], Mapping[str, Any], str], T]
_PLAIN = (int, float, str, bool, type(None))


def renewing(make: _Make[T], space: Mapping[str, Any]) -> _Make[T]:
    """`make`, given configs that hold the objects of `space` instead of their old copies."""
    aside = SetAside()
    spec = inject_placeholders(dict(space), aside)

    def make_renewed(trial_id: str, config: dict[str, Any], params: Mapping[str, Any], tag: str) -> T:
        return make(trial_id, _renewed(config, params, spec, aside), params, tag)

    return make_renewed


def _renewed(
    config: dict[str, Any], params: Mapping[str, Any], spec: Mapping[str, Any], aside: SetAside
) -> dict[str, Any]:
    objects: dict[Path, Any] = {}
    functions: dict[Path, Function] = {}
    for path, node in _open_places(spec, ()):
        if not _has(config, path):
            continue  # a searcher of the user's own left it out
        drawn = {path: node} if is_placeholder(node) else _drawn(config, params, path)
        if drawn and isinstance(node, dict):
            list(node["grid_search"])  # a grid sets aside what is read
        for place, value in drawn.items():
            found = aside.put_back(value, place, functions)
            if not _holds_placeholder(found):  # else the space has something else there now
                objects[place] = found
    kept = {path: at(config, path) for path in functions if _is_plain(config, path)}
    renewed: dict[str, Any] = filled(filled(config, objects), kept)
    again = {path: each for path, each in functions.items() if path not in kept}
    return dict(resolve_functions(renewed, again)) if again else renewed


def _drawn(config: Any, params: Mapping[str, Any], path: Path) -> dict[Path, Any]:  # noqa: ANN401
    """What was drawn at `path`, as placeholders; some searchers tell the parts of a dict one by one."""
    own = params.get(flat_name(path))
    if own is not None:
        return {path: own} if _holds_placeholder(own) else {}
    inside = at(config, path)
    below = [(*path, *rest) for rest in flattened(inside)] if isinstance(inside, dict) else []
    parts = {place: params.get(flat_name(place)) for place in below}
    return {place: value for place, value in parts.items() if _holds_placeholder(value)}


def _open_places(node: Any, path: Path) -> list[tuple[Path, Any]]:  # noqa: ANN401
    """Where the space holds a placeholder, a domain or a grid."""
    is_grid = isinstance(node, dict) and len(node) == 1 and "grid_search" in node
    if is_placeholder(node) or is_grid or isinstance(node, Domain):
        return [(path, node)]
    if not is_container(node):
        return []
    return [place for key, child in children(node) for place in _open_places(child, (*path, key))]


def _holds_placeholder(node: Any) -> bool:  # noqa: ANN401
    if is_placeholder(node):
        return True
    return is_container(node) and any(_holds_placeholder(child) for _, child in children(node))


def _has(config: Any, path: Path) -> bool:  # noqa: ANN401
    try:
        at(config, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _is_plain(config: Any, path: Path) -> bool:  # noqa: ANN401
    """A value that need not be made anew."""
    return isinstance(at(config, path), _PLAIN)
