"""Replace objects and functions of a search space by placeholders while variants are made, and back.

Why: tags and evaluated_params must stay short, equal between runs and free of addresses, and a function
(`sample_from`) must see the whole configuration. Called by the search algorithms.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from muster.tune.search.paths import Path, at, children, filled, flat_name, flattened, is_container, rebuilt
from muster.tune.search.sample import Categorical, Domain, Function
from muster.tune.search.sample_functions import resolve_functions

REFERENCE, FUNCTION = "__ref_ph", "__fn_ph"
Placeholder = tuple[str, str]
_PRIMITIVES = (int, float, str, bool, type(None))


class Placeholders:
    """Holds what the placeholders of one search space stand for."""

    def __init__(self) -> None:
        self._objects: dict[Placeholder, Any] = {}
        self._paths: dict[Placeholder, Path] = {}

    def put(self, kind: str, path: Path, value: Any) -> Placeholder:  # noqa: ANN401
        digest = hashlib.sha256(str(path).encode()).hexdigest()
        length = 8
        while self._paths.setdefault((kind, digest[:length]), path) != path:
            length += 4  # two paths with one hash: Ray would mix up their objects
        self._objects[(kind, digest[:length])] = value
        return (kind, digest[:length])

    def resolve(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a config with objects in place; then functions, which see each other's values."""
        if not self._objects:
            return config
        functions: dict[Path, Function] = {}
        with_objects = self.put_back(config, (), functions)
        resolved = resolve_functions(with_objects, functions) if functions else with_objects
        return dict(resolved)

    def put_back(self, node: Any, path: Path, functions: dict[Path, Function]) -> Any:  # noqa: ANN401
        """Return `node`, found at `path`, with its objects; its functions are added to `functions`."""
        if is_placeholder(node):
            if node not in self._objects:
                return node  # a user's own tuple that looks like one
            if node[0] == FUNCTION:
                functions[path] = self._objects[node]
                return None
            return self._objects[node]
        if not is_container(node):
            return node
        return rebuilt(node, {k: self.put_back(v, (*path, k), functions) for k, v in children(node)})


def is_placeholder(node: Any) -> bool:  # noqa: ANN401
    return type(node) is tuple and len(node) == 2 and (node[0] == REFERENCE or node[0] == FUNCTION)


def inject_placeholders(space: Any, placeholders: Placeholders, path: Path = ()) -> Any:  # noqa: ANN401
    """Return `space` without objects and functions, which go to `placeholders`. Domains of numbers stay."""
    if isinstance(space, _PRIMITIVES):
        return space
    if isinstance(space, dict) and is_sole_key(space, "grid_search"):
        return {"grid_search": _Options(space["grid_search"], placeholders, path)}
    if is_container(space):
        return rebuilt(
            space, {k: inject_placeholders(v, placeholders, (*path, k)) for k, v in children(space)}
        )
    if isinstance(space, Function):
        return placeholders.put(FUNCTION, path, space)
    if isinstance(space, Categorical):
        new = copy.copy(space)
        new.categories = [
            inject_placeholders(v, placeholders, (*path, i)) for i, v in enumerate(space.categories)
        ]
        return new
    return space if isinstance(space, Domain) else placeholders.put(REFERENCE, path, space)


def is_sole_key(node: dict[Any, Any], key: str) -> bool:
    return len(node) == 1 and key in node


class _Options(Sequence[Any]):
    """Replaces the options of a grid one by one when they are read: a grid may be huge."""

    def __init__(self, options: Sequence[Any], placeholders: Placeholders, path: Path) -> None:
        is_sequence = hasattr(options, "__len__") and hasattr(options, "__getitem__")
        self._options = options if is_sequence else list(options)
        self._placeholders, self._path = placeholders, path

    def __len__(self) -> int:
        return len(self._options)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
        return inject_placeholders(self._options[index], self._placeholders, (*self._path, index))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


T = TypeVar("T")
_Make = Callable[[str, dict[str, Any], Mapping[str, Any], str], T]


def renewing(make: _Make[T], space: Mapping[str, Any]) -> _Make[T]:
    """Return `make`, given configs that hold the objects of `space` instead of their old copies."""
    placeholders = Placeholders()
    spec = inject_placeholders(dict(space), placeholders)

    def make_renewed(trial_id: str, config: dict[str, Any], params: Mapping[str, Any], tag: str) -> T:
        return make(trial_id, _renewed(config, params, spec, placeholders), params, tag)

    return make_renewed


def _renewed(
    config: dict[str, Any], params: Mapping[str, Any], spec: Mapping[str, Any], placeholders: Placeholders
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
            found = placeholders.put_back(value, place, functions)
            if not _holds_placeholder(found):  # else the space has something else there now
                objects[place] = found
    kept = {path: at(config, path) for path in functions if isinstance(at(config, path), _PRIMITIVES)}
    renewed: dict[str, Any] = filled(filled(config, objects), kept)
    again = {path: each for path, each in functions.items() if path not in kept}
    return dict(resolve_functions(renewed, again)) if again else renewed


def _drawn(config: Any, params: Mapping[str, Any], path: Path) -> dict[Path, Any]:  # noqa: ANN401
    """Return what was drawn at `path` as placeholders; some searchers report the parts of a dict singly."""
    own = params.get(flat_name(path))
    if own is not None:
        return {path: own} if _holds_placeholder(own) else {}
    inside = at(config, path)
    below = [(*path, *rest) for rest in flattened(inside)] if isinstance(inside, dict) else []
    parts = {place: params.get(flat_name(place)) for place in below}
    return {place: value for place, value in parts.items() if _holds_placeholder(value)}


def _open_places(node: Any, path: Path) -> list[tuple[Path, Any]]:  # noqa: ANN401
    """Return where the space holds a placeholder, a domain or a grid."""
    is_grid = isinstance(node, dict) and is_sole_key(node, "grid_search")
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
