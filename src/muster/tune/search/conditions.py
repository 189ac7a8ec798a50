"""Express keys that only exist for some values of another key.

A key `momentum` that exists if `optimizer` is "sgd" becomes a choice of parts of a config, whose key starts
with GROUP: `[{"optimizer": "sgd", "momentum": uniform}, {"optimizer": "adam"}]`. Searchers see a choice with
domains inside its options; `paths.joined` merges the chosen part into the config. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from muster.base.text import did_you_mean
from muster.errors import ConfigError
from muster.tune.search.paths import GROUP, copied, flattened, is_equal, is_group, joined
from muster.tune.search.sample import Categorical
from muster.tune.search.variant_generator import has_unresolved_values

KeyPath = tuple[str, ...]


class KeyCondition(NamedTuple):
    """The values of another key for which a key exists."""

    key: KeyPath
    values: Sequence[Any]
    is_negated: bool = False

    def holds(self, value: Any) -> bool:  # noqa: ANN401 - an option of a choice
        return any(same(value, each) for each in self.values) != self.is_negated


class SpaceEntry(NamedTuple):
    """One key of a space: a domain, a grid or a constant, and the condition under which it exists."""

    key: KeyPath
    domain: Any
    condition: KeyCondition | None = None
    where: str = ""  # begins error messages


def build_space(entries: Iterable[SpaceEntry]) -> dict[str, Any]:
    """Return the search space of the entries.

    Raises:
        ConfigError: A key is given twice, or a condition that cannot be searched.
    """
    ordered = list(entries)
    known = {entry.key: entry for entry in ordered}
    dependents: dict[KeyPath, list[SpaceEntry]] = {}
    for entry in ordered:
        if entry.condition is not None:
            _check_condition(entry, entry.condition, known)
            dependents.setdefault(entry.condition.key, []).append(entry)
    space: dict[str, Any] = {}
    _add(space, [entry for entry in ordered if entry.condition is None], dependents)
    return space


def _add(
    space: dict[str, Any], entries: Iterable[SpaceEntry], dependents: Mapping[KeyPath, list[SpaceEntry]]
) -> None:
    for entry in entries:
        inner = dependents.get(entry.key, [])
        options = options_of(entry.domain) if inner else None
        if options is None:
            _add_value(space, entry, entry.domain, dependents)
            continue
        parts: list[dict[str, Any]] = [{} for _ in options]
        for part, option in zip(parts, options, strict=True):
            _add_value(part, entry, option, dependents)
        key = GROUP + dotted(entry.key)
        _refuse_second(key in space, entry)
        space[key] = {"grid_search": parts} if isinstance(entry.domain, dict) else Categorical(parts)


def _add_value(
    space: dict[str, Any],
    entry: SpaceEntry,
    value: Any,  # noqa: ANN401 - an option, a constant or a domain
    dependents: Mapping[KeyPath, list[SpaceEntry]],
) -> None:
    """Insert a value, and the entries whose conditions it fulfils."""
    node, *parents, last = space, *entry.key
    for at, name in enumerate(parents, 1):
        node = node.setdefault(name, {})
        if not isinstance(node, dict) or options_of(node) is not None:
            above = dotted(entry.key[:at])
            raise ConfigError(
                f"{entry.where}: {above} has a value, so nothing can be below it", fix="rename one of the two"
            )
    _refuse_second(last in node, entry)
    node[last] = copied(value)
    fulfilled = [
        each for each in dependents.get(entry.key, []) if each.condition and each.condition.holds(value)
    ]
    _add(space, fulfilled, dependents)


def _refuse_second(is_there: bool, entry: SpaceEntry) -> None:
    if is_there:
        fix = "keep one, or make their conditions exclude each other"
        raise ConfigError(f"{entry.where}: {dotted(entry.key)} is given twice", fix=fix)


def _check_condition(entry: SpaceEntry, condition: KeyCondition, known: Mapping[KeyPath, SpaceEntry]) -> None:
    name, other, chain = dotted(condition.key), known.get(condition.key), [entry.key]
    if other is None:
        near = did_you_mean(name, [dotted(key) for key in known if key != entry.key])
        what = f"the condition names {name}, which is not a key of the space"
        raise ConfigError(f"{entry.where}: {what}", fix=near)
    options = options_of(other.domain)
    if options is None and has_unresolved_values(other.domain):
        what = f"the condition is about {name}, which is not a choice"
        raise ConfigError(f"{entry.where}: {what}", fix=f"give {name} as choice:... or grid:...")
    while other is not None and other.condition is not None:
        if other.key in chain:
            raise ConfigError(f"{entry.where}: the conditions form a circle", fix="remove one of them")
        chain.append(other.key)
        other = known.get(other.condition.key)
    for value in condition.values if options is not None else ():
        if not any(same(value, option) for option in options or ()):
            fix = f"its values are {', '.join(map(str, options or ()))}"
            raise ConfigError(f"{entry.where}: {name} is never {value}", fix=fix)


def options_of(domain: Any) -> Sequence[Any] | None:  # noqa: ANN401
    """Return the values of a choice or a grid; None for everything else."""
    if isinstance(domain, Categorical):
        return domain.categories
    if isinstance(domain, dict) and list(domain) == ["grid_search"]:
        return list(domain["grid_search"])
    return None


def same(one: Any, other: Any) -> bool:  # noqa: ANN401 - values of YAML
    """Return whether two values are equal; True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and is_equal(one, other)


def dotted(key: KeyPath) -> str:
    """Return a key as users write it."""
    return ".".join(part.replace(".", r"\.") for part in key)


def key_paths(space: Mapping[str, Any]) -> dict[KeyPath, bool]:
    """Return the keys of the configs that a space makes, and whether every config has them."""
    found: dict[KeyPath, bool] = {}
    for key, domain in space.items():
        if is_group(key):
            parts = [key_paths(part) for part in options_of(domain) or ()]
            for path in [path for part in parts for path in part]:
                found[path] = all(part.get(path) for part in parts)
        elif isinstance(domain, dict) and domain and options_of(domain) is None:
            found.update({(key, *path): always for path, always in key_paths(domain).items()})
        else:
            found[(key,)] = True
    return found


def grouped(space: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point, written as a config, in the shape of a space with groups.

    Raises:
        ConfigError: The point has a key that the space lacks.
    """
    shaped = _shaped(space, point)
    known = flattened(joined(shaped))
    for path in flattened(point):
        if path not in known:
            what = f"the point {dict(point)} has {dotted(path)}, which the space lacks with these values"
            raise ConfigError(what, fix="remove it")
    return shaped


def _shaped(space: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, domain in space.items():
        if is_group(key):
            parts = [part for part in options_of(domain) or () if _fits(part, point)]
            if parts:
                found[key] = _shaped(parts[0], point)
        elif key in point:
            value = point[key]
            is_inner = isinstance(value, dict) and isinstance(domain, dict) and options_of(domain) is None
            found[key] = _shaped(domain, value) if is_inner else value
    return found


def _fits(part: Mapping[str, Any], point: Any) -> bool:  # noqa: ANN401 - of a user's file
    """Return whether a point has all constants of a part."""
    if not isinstance(point, Mapping):
        return False
    for key, domain in part.items():
        if isinstance(domain, dict) and options_of(domain) is None:
            if not _fits(domain, point.get(key)):
                return False
        elif not has_unresolved_values(domain) and not same(domain, point.get(key)):
            return False
    return True
