"""Provide PlacementGroupFactory at Ray's import path, and make one from a dict of resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles

__all__ = ["PlacementGroupFactory", "resource_dict_to_pg_factory"]


def resource_dict_to_pg_factory(spec: Mapping[str, Any] | None = None) -> PlacementGroupFactory:
    """Return one bundle with these resources; `{}` and None mean 1 CPU."""
    return resource_dict_to_bundles(spec)
