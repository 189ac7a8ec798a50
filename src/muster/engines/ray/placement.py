"""Places: asks Ray for placement groups and actors, and gives them back. Nothing here waits for either."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from muster.engines.ray.actor_handle import Place
from muster.engines.worker.handle import Run
from muster.trials.placement_group import PlacementGroupFactory

Told = Callable[[Place, int, "BaseException | None"], None]


class Places:
    """One per engine; `told` hears, in any thread, how the call that lasts as long as an actor ended."""

    def __init__(self, actor_class: Any, told: Told) -> None:  # noqa: ANN401 - Ray's types are not typed
        self.actor_class = actor_class
        self.constructor: tuple[Any, ...] = ()  # what the class is given
        self.runtime_env: dict[str, Any] = {}
        self._told = told
        self._numbers = itertools.count(1)

    def reserve(self, resources: PlacementGroupFactory) -> Place:
        """A new placement group: the cluster sees it as pending at once."""
        from ray.util.placement_group import placement_group

        args, options = resources.options
        group = placement_group(resources.bundles, resources.strategy, *args, **selecting(resources, options))
        return Place(0, resources, group)

    def staff(self, place: Place, run: Run, arguments: Callable[[int], tuple[Any, ...]]) -> None:
        """A new actor for that trial, in this placement group; Ray starts it when the group is placed."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place.number = number = next(self._numbers)
        place.run, place.desk, place.control = run, None, None
        place.outcome, place.is_over = None, False
        place.kill_at = place.ask_at = place.hang_up_at = None
        options: dict[str, Any] = {"runtime_env": self.runtime_env} if self.runtime_env else {}
        strategy = PlacementGroupSchedulingStrategy(
            place.group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        place.actor = self.actor_class.options(
            **_actor_resources(place.resources), scheduling_strategy=strategy, **options
        ).remote(*self.constructor)
        self._follow(place, place.actor.serve.remote(*arguments(number)))

    def ask(self, place: Place) -> None:
        """Whether it lives, when Ray was not sure."""
        self._follow(place, place.actor.ping.remote())

    def _follow(self, place: Place, ref: Any) -> None:  # noqa: ANN401
        number = place.number
        ref.future().add_done_callback(lambda done: self._told(place, number, done.exception()))

    def end(self, place: Place) -> None:
        """End the actor by force."""
        import ray

        if place.actor is not None:
            ray.kill(place.actor, no_restart=True)
            place.kill_at = None

    def give_back(self, place: Place) -> None:
        """The placement group goes, and with it whatever still runs in it."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(place.group)


def selecting(resources: PlacementGroupFactory, options: Mapping[str, Any]) -> dict[str, Any]:
    """An empty first bundle is none to Ray: its label selector goes with it."""
    selectors, bundles = options.get("bundle_label_selector"), len(resources.bundles)
    if resources.head_bundle_is_empty and selectors and len(selectors) == bundles + 1:
        return {**options, "bundle_label_selector": list(selectors[1:])}
    return dict(options)


def _actor_resources(resources: PlacementGroupFactory) -> dict[str, Any]:
    """What the actor takes of the first bundle; nothing of it when that was for nobody."""
    head: Mapping[str, float] = {} if resources.head_bundle_is_empty else resources.bundles[0]
    custom = {name: amount for name, amount in head.items() if name not in ("CPU", "GPU", "memory")}
    options: dict[str, Any] = {"num_cpus": head.get("CPU", 0), "num_gpus": head.get("GPU", 0)}
    if head.get("memory"):
        options["memory"] = head["memory"]
    return {**options, "resources": custom} if custom else options
