"""Define placement groups, which are accepted and have no effect: all tasks run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.ray_api.objects import BaseID, ObjectRef, put

VALID_PLACEMENT_GROUP_STRATEGIES = {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}


class PlacementGroup:
    """The bundles that a library wanted to reserve."""

    def __init__(self, bundle_specs: Sequence[dict[str, float]] = (), name: str = "") -> None:
        self.id, self.name, self.bundle_specs = BaseID(), name, list(bundle_specs)

    def ready(self) -> ObjectRef[Any]:
        return put(True)

    def wait(self, timeout_seconds: float = 30) -> bool:
        del timeout_seconds
        return True


def placement_group(
    bundles: list[dict[str, float]], strategy: str = "PACK", name: str = "", *_: object, **__: object
) -> PlacementGroup:
    """Return a group that is ready and reserves nothing."""
    if strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        raise ValueError(f"placement_group(strategy={strategy!r}): is not a strategy of Ray")
    return PlacementGroup(bundles, name)


def remove_placement_group(placement_group: PlacementGroup) -> None:
    placement_group.bundle_specs = []


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    return {} if placement_group is None else {"state": "CREATED", "name": placement_group.name}


def get_current_placement_group() -> PlacementGroup | None:
    return None
