"""points_to_evaluate: values that users fix before anything is drawn. Pure but for its warnings."""

from __future__ import annotations

import logging
from typing import Any

from muster.tune.search.domains import Domain
from muster.tune.search.paths import Path, children, flat_name, is_container, rebuilt
from muster.tune.search.placeholders import is_sole_key

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
