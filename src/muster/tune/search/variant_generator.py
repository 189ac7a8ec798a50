"""Ray's import path for turning a specification into variants; used by people, not by the generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from muster.tune.search.paths import Path, flat_name
from muster.tune.search.random_stream import RandomStream
from muster.tune.search.sample_functions import RecursiveDependencyError
from muster.tune.search.space import grid_search
from muster.tune.search.trial_names import format_vars
from muster.tune.search.unresolved import has_unresolved_values
from muster.tune.search.variant_cursor import VariantCursor

if TYPE_CHECKING:
    from muster.tune.search.sample import RandomState

__all__ = [
    "RecursiveDependencyError",
    "flatten_resolved_vars",
    "format_vars",
    "generate_variants",
    "grid_search",
    "has_unresolved_values",
]


def generate_variants(
    unresolved_spec: Any,  # noqa: ANN401
    constant_grid_search: bool = False,
    random_state: RandomState = None,
) -> Iterator[tuple[dict[Path, Any], Any]]:
    """(resolved variables by path, resolved specification) of each variant, grids lazily.

    Functions are given the whole specification, and may read each other's values in any order; only a circle
    is an error. (Ray gives up after 20 passes.)
    """
    yield from VariantCursor(unresolved_spec, RandomStream(random_state), is_constant=constant_grid_search)


def flatten_resolved_vars(resolved_vars: Mapping[Path, Any]) -> dict[str, Any]:
    """Paths as `a/b`, without a leading `config`."""
    return {
        flat_name(path[1:] if path and path[0] == "config" else path): value
        for path, value in resolved_vars.items()
    }
