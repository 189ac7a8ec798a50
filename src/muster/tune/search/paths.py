"""Walk over nested configurations: paths, copies, merges and flat forms, and names made of their values.

A trial's values are in its experiment tag and in the name of its directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from muster.base.text import encodable
from muster.trials.template import LONGEST_DIRNAME

if TYPE_CHECKING:
    from muster.trials.model import Trial

Path = tuple[Any, ...]
GROUP = "if "  # begins the key of a choice of parts, see `conditions`
_OUTSIDE_TAG = re.compile(r"[^A-Za-z0-9_-]+")
_OUTSIDE_DIRNAME = re.compile(r'[/()<>:"\\|?*\x00-\x1f\x7f]')


def is_tuple(node: Any) -> bool:  # noqa: ANN401
    """Return whether this is a plain tuple; a named one is a value and is left alone."""
    return isinstance(node, tuple) and not hasattr(node, "_fields")


def is_container(node: Any) -> bool:  # noqa: ANN401
    return isinstance(node, (dict, list)) or is_tuple(node)


def children(node: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """Return (key or index, child) of a container, in its own order."""
    return iter(node.items()) if isinstance(node, dict) else enumerate(node)


def rebuilt(node: Any, items: dict[Any, Any]) -> Any:  # noqa: ANN401
    """Return a container like `node` with other children, given in order."""
    if isinstance(node, dict):
        return items
    return list(items.values()) if isinstance(node, list) else tuple(items.values())


def filled(node: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:  # noqa: ANN401
    """Return a copy of the containers of `node`, with the given paths replaced; leaves are shared."""
    if path in values:
        return copied(values[path])
    if not is_container(node):
        return node
    return rebuilt(node, {key: filled(child, values, (*path, key)) for key, child in children(node)})


def copied(node: Any) -> Any:  # noqa: ANN401
    """Return a copy of the containers; leaves are shared."""
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
    """Sort numbers by value, everything else by text; Ray cannot sort paths that mix both."""
    return tuple((0, part) if isinstance(part, (int, float)) else (1, str(part)) for part in path)


def flat_name(path: Path) -> str:
    return "/".join(str(part) for part in path)


def flattened(config: Mapping[Any, Any]) -> dict[Path, Any]:
    """Return leaves by path; only dicts are split, and an empty one is a leaf."""
    flat: dict[Path, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update({(key, *inner): leaf for inner, leaf in flattened(value).items()})
        else:
            flat[(key,)] = value
    return flat


def unflattened(flat: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Return `{"a/b": 1}` as `{"a": {"b": 1}}`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(delimiter)
        node = nested
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return nested


def is_group(key: object) -> bool:
    return isinstance(key, str) and key.startswith(GROUP)


def joined(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the parts of its groups merged into it.

    Example:
        >>> joined({"lr": 0.1, "if optimizer": {"optimizer": "sgd", "momentum": 0.9}})
        {'lr': 0.1, 'optimizer': 'sgd', 'momentum': 0.9}
    """
    if not any(map(is_group, config)):
        return config
    merged: dict[str, Any] = {}
    for key, value in config.items():
        _merge(merged, joined(value) if is_group(key) else {key: value})
    return merged


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def joined_variables(variables: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return values by path with the parts of groups in their place."""
    found: dict[Path, Any] = {}
    for path, value in variables.items():
        if path and is_group(path[-1]):
            found.update(flattened(joined(value)))
        else:
            found[tuple(name for name in path if not is_group(name))] = value
    return found


def clean_value(value: Any) -> str:  # noqa: ANN401 - anything a configuration holds
    if isinstance(value, float):
        return f"{value:.4f}"
    return _OUTSIDE_TAG.sub("_", str(value)).strip("_")


def format_vars(resolved_vars: Mapping[Path, Any]) -> str:
    """Return `k=v` pairs sorted by path; only the last part of a path is shown.

    Example:
        >>> format_vars({("a c?x",): " <;%$ok ", ("opt", "lr"): 0.5})
        'a_c_x=ok,lr=0.5000'
    """
    paths = sorted(resolved_vars, key=sort_key)  # that of a grid of whole configs is empty
    named = ((path[-1] if path else "config", resolved_vars[path]) for path in paths)
    return ",".join(f"{clean_value(name)}={clean_value(value)}" for name, value in named)


def trial_dirname(trial: Trial, date: str, max_len: int = 130) -> str:
    """Return the name of a trial's directory; `date` is `%Y-%m-%d_%H-%M-%S`."""
    if trial.custom_dirname:
        name = trial.custom_dirname
    else:
        name = encodable(f"{trial!s}_{trial.experiment_tag}"[:max_len])
        name = f"{name.encode()[: LONGEST_DIRNAME - len(date) - 1].decode(errors='ignore')}_{date}"
    name = _OUTSIDE_DIRNAME.sub("_", encodable(name))
    return name if name.strip(".") else name.replace(".", "_")  # `..` would be the directory above


def unique_dirname(name: str, is_taken: Callable[[str], bool], four_hex_digits: Callable[[], str]) -> str:
    """Return `name`, with `_` and four digits added when there is such a directory already."""
    while is_taken(name):
        name = f"{name}_{four_hex_digits()}"
    return name
