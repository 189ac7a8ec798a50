"""with_resources, and what a trial needs: resource dicts become a PlacementGroupFactory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from muster.errors import TuneError
from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles
from muster.tune.trainable.function_trainable import is_trainable_class
from muster.tune.trainable.registry import trainable_name
from muster.tune.trainable.wrapping import wrapped_function

Chooser = Callable[[Mapping[str, Any]], PlacementGroupFactory]
Resources = PlacementGroupFactory | Chooser


def as_resources(given: Any) -> Resources:  # noqa: ANN401 - checked here
    """A dict, a PlacementGroupFactory or a function of the config; ValueError for anything else."""
    if isinstance(given, PlacementGroupFactory):
        return given
    if isinstance(given, Mapping):
        return resource_dict_to_bundles(given)
    if callable(given) and not inspect.isclass(given):
        chooser: Chooser = given
        return chooser
    raise ValueError(
        f"resources {given!r}: must be a dict such as {{'cpu': 2}}, a PlacementGroupFactory, or a function "
        "config -> PlacementGroupFactory"
    )


def with_resources(trainable: Any, resources: Any) -> Any:  # noqa: ANN401 - function or class, as given
    """A trainable each of whose trials needs `resources`: a dict, a PlacementGroupFactory, or a function of
    the config that returns one. The given trainable stays as it is.

    Example:
        >>> def train(config): ...
        >>> with_resources(train, {"cpu": 2})._resources
        PlacementGroupFactory([{'CPU': 2.0}], strategy='PACK')
    """
    is_class = inspect.isclass(trainable)
    if not callable(trainable) or (is_class and not is_trainable_class(trainable)):
        raise ValueError(
            f"with_resources: needs a function or a subclass of tune.Trainable, not {trainable!r}"
        )
    needed = as_resources(resources)
    return (
        _class_with_resources(trainable, needed) if is_class else _function_with_resources(trainable, needed)
    )


def _function_with_resources(function: Callable[..., Any], needed: Resources) -> Callable[..., Any]:
    def inner(config: Any, **more: Any) -> Any:  # noqa: ANN401
        return function(config, **more)

    wrapped_function(inner, function)._resources = needed  # type: ignore[attr-defined]
    return inner


def _class_with_resources(kind: Any, needed: Resources) -> type:  # noqa: ANN401
    class Inner(kind):  # type: ignore[misc]  # a base that is known only now
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return needed if isinstance(needed, PlacementGroupFactory) else chosen(needed, config)

    Inner.__name__ = trainable_name(kind)
    Inner.__doc__ = kind.__doc__
    return Inner


def chosen(chooser: Chooser, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """What a user's function answers for a config; a dict will do, too."""
    answer: Any = chooser(config)
    if isinstance(answer, PlacementGroupFactory):
        return answer
    if isinstance(answer, Mapping):
        return resource_dict_to_bundles(answer)
    name = getattr(chooser, "__name__", repr(chooser))
    raise TuneError(
        f"the resource function {name} returned {answer!r}: it must return a PlacementGroupFactory"
    )


def trial_resources(trainable: Any, resources_per_trial: Any = None) -> Resources:  # noqa: ANN401
    """What each trial needs: what the trainable says, else the experiment, else 1 CPU.

    TuneError when both say something: at once for a function, per config for a class.
    """
    fallback = None if resources_per_trial is None else as_resources(resources_per_trial)
    if is_trainable_class(trainable):
        return lambda config: _class_request(trainable, config, fallback)
    own: Resources | None = getattr(trainable, "_resources", None)
    if own is not None and fallback is not None:
        raise _both(trainable)
    needed = own if own is not None else fallback
    if needed is None:
        return PlacementGroupFactory([{"CPU": 1}])
    if isinstance(needed, PlacementGroupFactory):
        return needed
    chooser = needed
    return lambda config: chosen(chooser, config)


def _class_request(kind: Any, config: Mapping[str, Any], fallback: Resources | None) -> PlacementGroupFactory:  # noqa: ANN401
    own: PlacementGroupFactory | None = kind.default_resource_request(dict(config))
    if own is not None and fallback is not None:
        raise _both(kind)
    needed = own if own is not None else fallback
    if needed is None:
        return PlacementGroupFactory([{"CPU": 1}])
    return needed if isinstance(needed, PlacementGroupFactory) else chosen(needed, config)


def _both(trainable: object) -> TuneError:
    return TuneError(
        f"{trainable_name(trainable)} says itself what resources it needs, and so does resources_per_trial: "
        "leave one of them out"
    )


def thread_limit(resources: Any, environment: Mapping[str, str]) -> dict[str, str]:  # noqa: ANN401
    """OMP_NUM_THREADS for trials: as many threads as the trial has CPUs, unless the user has set it.

    Numerical libraries start a thread per core of the machine: two trials on two cores would have four. This
    one is for processes before they know their trial; the engine then sets what the trial itself has.
    """
    if "OMP_NUM_THREADS" in environment:
        return {}
    if callable(resources):
        try:
            resources = resources({})
        except Exception:  # noqa: BLE001 - a user's function that needs its config
            resources = None
    cpus = getattr(resources, "head_cpus", 1.0)
    return {"OMP_NUM_THREADS": str(max(1, int(cpus)))}
