"""Define the scheduling strategy that AutoGluon's bagging passes; it has no effect: there is one machine."""

from __future__ import annotations

from typing import Any


class PlacementGroupSchedulingStrategy:
    """Names the placement group of a task."""

    def __init__(
        self,
        placement_group: Any,  # noqa: ANN401 - a PlacementGroup
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks
