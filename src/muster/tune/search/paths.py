"""Walks over nested configurations: paths, copies, merges and flat forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]


def is_tuple(node: Any) -> bool:  # noqa: ANN401
    """Returns whether this is a plain tuple; a named one is a value and is left alone."""
    return isinstance(node, tuple) and not hasattr(node, "_fields")


def is_container(node: Any) -> bool:  # noqa: ANN401
    return isinstance(node, (dict, list)) or is_tuple(node)


def children(node: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """Returns (key or index, child) of a container, in its own order."""
    return iter(node.items()) if isinstance(node, dict) else enumerate(node)


def rebuilt(node: Any, items: dict[Any, Any]) -> Any:  # noqa: ANN401
    """Returns a container like `node` with other children, given in order."""
    if isinstance(node, dict):
        return items
    return list(items.values()) if isinstance(node, list) else tuple(items.values())


def filled(node: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:  # noqa: ANN401
    """Returns a copy of the containers of `node`, with the given paths replaced; leaves are shared."""
    if path in values:
        return copied(values[path])
    if not is_container(node):
        return node
    return rebuilt(node, {key: filled(child, values, (*path, key)) for key, child in children(node)})


def copied(node: Any) -> Any:  # noqa: ANN401
    """Returns a copy of the containers; leaves are shared."""
    if not is_container(node):
        return node
    return rebuilt(node, {key: copied(child) for key, child in children(node)})


def at(node: Any, path: Path) -> Any:  # noqa: ANN401
    for key in path:
        node = node[key]
    return node


def is_equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - arrays do not compare to a truth value
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - whatever a user's object raises
        return False


def sort_key(path: Path) -> tuple[tuple[int, Any], ...]:
    """Sorts numbers by value, everything else by text; Ray cannot sort paths that mix both."""
    return tuple((0, part) if isinstance(part, (int, float)) else (1, str(part)) for part in path)


def flat_name(path: Path) -> str:
    return "/".join(str(part) for part in path)


def flattened(config: Mapping[Any, Any]) -> dict[Path, Any]:
    """Returns leaves by path; only dicts are split, and an empty one is a leaf."""
    flat: dict[Path, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update({(key, *inner): leaf for inner, leaf in flattened(value).items()})
        else:
            flat[(key,)] = value
    return flat


def unflattened(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `{"a/b": 1}` as `{"a": {"b": 1}}`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        node = nested
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return nested
