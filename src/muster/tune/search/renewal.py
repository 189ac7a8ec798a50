"""Configs of an earlier run with the objects of the space that a restore was given. Used by `launch`.

Which option a trial had is known from `evaluated_params`, where objects stand as placeholders; numbers and
texts stay as they were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from muster.tune.search.domains import Domain, Function
from muster.tune.search.paths import Path, children, copied, filled, flat_name, is_container
from muster.tune.search.placeholders import FUNCTION, SetAside, inject_placeholders, is_placeholder
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
        if is_placeholder(node) and node[0] == FUNCTION:
            functions[path] = aside.object_of(node)
        else:
            found = node if is_placeholder(node) else params.get(flat_name(path))
            if _holds_placeholder(found):
                if isinstance(node, dict):
                    any(option == found for option in node["grid_search"])  # a grid sets aside what is read
                objects[path] = aside.resolve({"": found})[""]
    renewed: dict[str, Any] = filled(config, objects)
    again = {path: each for path, each in functions.items() if not _is_plain(renewed, path)}
    return dict(resolve_functions(renewed, again)) if again else copied(renewed)


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


def _is_plain(config: Any, path: Path) -> bool:  # noqa: ANN401
    """A value that nothing has to be made anew for; so is one that is not there."""
    for key in path:
        try:
            config = config[key]
        except (KeyError, IndexError, TypeError):
            return True
    return isinstance(config, _PLAIN)
