"""Add parameters and resources to a trainable: with_parameters and with_resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import ray_object_hint
from muster.errors import TuneError, public
from muster.host.machine import environment
from muster.trials.model import CheckpointPolicy
from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles
from muster.tune.config import CheckpointConfig
from muster.tune.trainable.function_trainable import is_function_trainable, is_trainable_class, trainable_name

if TYPE_CHECKING:
    from muster.tune.trainable.stored_object import StoredObject

_KEPT = ("_resources", "__mixins__", "__doc__")


def wrapped_function(inner: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `inner` under the original's name, with its resources.

    `functools.wraps` would copy the signature, but `inner` takes the config alone.
    """
    inner.__name__ = trainable_name(original)
    for name in _KEPT:
        if hasattr(original, name):
            setattr(inner, name, getattr(original, name))
    inner._muster_original = original  # type: ignore[attr-defined]
    return inner


def innermost(trainable: Any) -> Any:  # noqa: ANN401
    """Return the trainable that was wrapped."""
    while (original := getattr(trainable, "_muster_original", None)) is not None:
        trainable = original
    return trainable


Chooser = Callable[[Mapping[str, Any]], PlacementGroupFactory]
Resources = PlacementGroupFactory | Chooser


def as_resources(given: Any) -> Resources:  # noqa: ANN401 - checked here
    """Return a dict, a PlacementGroupFactory or a function of the config; ValueError for anything else."""
    if isinstance(given, PlacementGroupFactory):
        return given
    if isinstance(given, Mapping):
        return resource_dict_to_bundles(given)
    if theirs := ray_object_hint(given):
        raise ValueError(f"resources: {theirs}")
    if callable(given) and not inspect.isclass(given):
        chooser: Chooser = given
        return chooser
    raise ValueError(
        f"resources {given!r}: must be a dict such as {{'cpu': 2}}, a PlacementGroupFactory, or a function "
        "config -> PlacementGroupFactory"
    )


@public
def with_resources(trainable: Any, resources: Any) -> Any:  # noqa: ANN401 - function or class, as given
    """Return a trainable each of whose trials needs `resources`.

    `resources` is a dict, a PlacementGroupFactory, or a function of the config that returns one. The given
    trainable stays as it is.

    Example:
        >>> def train(config): ...
        >>> with_resources(train, {"cpu": 2})._resources
        PlacementGroupFactory([{'CPU': 2.0}], strategy='PACK')
    """
    with_needed = _class_with_resources if is_class(trainable, "with_resources") else _function_with_resources
    return with_needed(trainable, as_resources(resources))


def is_class(trainable: object, caller: str) -> bool:
    """Return whether a trainable is a class, not a function; ValueError when it is not a trainable."""
    is_any_class = inspect.isclass(trainable)
    if not callable(trainable) or (is_any_class and not is_trainable_class(trainable)):
        given = "None; did you call it? Pass the function itself" if trainable is None else repr(trainable)
        raise ValueError(f"{caller}: needs a function or a subclass of tune.Trainable, not {given}")
    return is_any_class


def _function_with_resources(function: Callable[..., Any], needed: Resources) -> Callable[..., Any]:
    def inner(config: Any, **more: Any) -> Any:  # noqa: ANN401
        return function(config, **more)

    wrapped_function(inner, function)._resources = needed  # type: ignore[attr-defined]
    return inner


def _class_with_resources(kind: Any, needed: Resources) -> type:  # noqa: ANN401
    class Inner(kind):  # type: ignore[misc]  # a base that is known only now
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return chosen(needed, config)

    return _named_like(kind, Inner)


def _named_like(kind: type, inner: type) -> type:
    inner.__name__, inner.__doc__ = trainable_name(kind), kind.__doc__
    return inner


def chosen(needed: Resources, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """Return resources for a config, from a user's function if it is one; it may return a dict, too."""
    answer: Any = needed if isinstance(needed, PlacementGroupFactory) else needed(config)
    if isinstance(answer, PlacementGroupFactory):
        return answer
    if isinstance(answer, Mapping):
        return resource_dict_to_bundles(answer)
    name = getattr(needed, "__name__", repr(needed))
    raise TuneError(
        f"the resource function {name} returned {answer!r}: it must return a PlacementGroupFactory"
    )


def trial_resources(trainable: Any, resources_per_trial: Any = None) -> Resources:  # noqa: ANN401
    """Return what each trial needs: what the trainable says, else the experiment, else 1 CPU.

    TuneError when both are given: at once for a function, per config for a class.
    """
    fallback = None if resources_per_trial is None else as_resources(resources_per_trial)
    if is_trainable_class(trainable):
        return lambda config: chosen(
            _needed(trainable, trainable.default_resource_request(dict(config)), fallback), config
        )
    needed = _needed(trainable, getattr(trainable, "_resources", None), fallback)
    return needed if isinstance(needed, PlacementGroupFactory) else partial(chosen, needed)


def _needed(
    trainable: object, own: Resources | Mapping[str, Any] | None, fallback: Resources | None
) -> Resources:
    if isinstance(own, Mapping):  # what a user's default_resource_request may return
        own = resource_dict_to_bundles(own)
    elif theirs := ray_object_hint(own):
        raise TuneError(f"{trainable_name(trainable)} and its resources: {theirs}")
    if own is not None and fallback is not None:
        raise TuneError(
            f"{trainable_name(trainable)} defines its own resources, and so does resources_per_trial: "
            "leave one of them out"
        )
    given = own if own is not None else fallback
    return PlacementGroupFactory([{"CPU": 1}]) if given is None else given


def thread_limit(resources: Any, environment: Mapping[str, str]) -> dict[str, str]:  # noqa: ANN401
    """Return OMP_NUM_THREADS for trials: as many threads as the trial has CPUs, unless the user has set it.

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


@public
def with_parameters(trainable: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - function or class, as given
    """Return a trainable that is given `kwargs` in every trial, however large they are.

    A function gets them as keyword arguments, a class in `setup(config, **kwargs)`. muster
    stores them once, with the experiment, and all trials map that file. The given trainable does not change.

    Example:
        >>> def train(config, data):
        ...     return {"total": config["scale"] * sum(data)}
        >>> with_parameters(train, data=[1, 2, 3])({"scale": 2})
        {'total': 12}
    """
    takes_setup = is_class(trainable, "with_parameters")
    _check_names(trainable, kwargs)
    with_given = _class_with_parameters if takes_setup else _function_with_parameters
    from muster.tune.trainable.stored_object import StoredObject  # few trainables have parameters

    return with_given(trainable, [StoredObject(value, name) for name, value in kwargs.items()])


def _loaded(given: list[StoredObject]) -> dict[str, Any]:
    return {each.name: each.load() for each in given}


def _function_with_parameters(function: Callable[..., Any], given: list[StoredObject]) -> Callable[..., Any]:
    def inner(config: Any, **more: Any) -> Any:  # noqa: ANN401
        return function(config, **_loaded(given), **more)

    return wrapped_function(inner, function)


def _class_with_parameters(kind: Any, given: list[StoredObject]) -> type:  # noqa: ANN401
    class Inner(kind):  # type: ignore[misc]  # a base that is known only now
        def setup(self, config: dict[str, Any], **more: Any) -> None:  # noqa: ANN401
            super().setup(config, **_loaded(given), **more)

    return _named_like(kind, Inner)


def _check_names(trainable: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Raise a ValueError now, instead of a TypeError in every trial."""
    target: Any = innermost(trainable)
    is_class = inspect.isclass(target)
    try:
        accepted = inspect.signature(target.setup if is_class else target)
        accepted.bind_partial(*(None,) * (1 + is_class), **kwargs)
    except TypeError as error:
        what = "setup" if is_class else trainable_name(target)
        raise ValueError(
            f"with_parameters: {error}; {what}{accepted} must have a parameter for each of "
            f"{', '.join(kwargs)}"
        ) from None
    except ValueError:
        return  # a builtin without a signature


__all__ = ["with_parameters", "with_resources"]


def checkpoint_policy(trainable: Any, config: CheckpointConfig | None = None) -> CheckpointPolicy:  # noqa: ANN401
    """Return what the controller is to do; ValueError for what this trainable does not support.

    Example:
        >>> checkpoint_policy(lambda config: None).at_end
        False
    """
    asked = config or CheckpointConfig()
    frequency, at_end = asked.checkpoint_frequency or 0, asked.checkpoint_at_end
    if is_function_trainable(trainable):
        _refuse_for_functions(trainable, frequency, at_end)
        at_end = False
    else:
        frequency = _own_handling(trainable, "_handles_checkpoint_freq", "checkpoint_frequency", frequency, 0)
        at_end = _own_handling(trainable, "_handles_checkpoint_at_end", "checkpoint_at_end", at_end, False)
        if at_end is None:  # the base class has a `save_checkpoint` that only raises
            save = getattr(trainable, "save_checkpoint", None)
            at_end = save is not None and not str(save.__module__).startswith("muster.tune.trainable.")
    return CheckpointPolicy(
        num_to_keep=asked.num_to_keep,
        score_attribute=asked.checkpoint_score_attribute,
        score_order=asked.checkpoint_score_order or "max",
        frequency=frequency,
        at_end=at_end,
        only_score=environment().get("TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE", "0") == "1",
    )


def _refuse_for_functions(function: object, frequency: int, at_end: bool | None) -> None:
    if not frequency and not at_end:
        return
    option = f"checkpoint_frequency={frequency}" if frequency else "checkpoint_at_end=True"
    raise ValueError(
        f"CheckpointConfig({option}) is for class trainables; {trainable_name(function)} is a function and "
        "makes its checkpoints itself: tune.report(metrics, checkpoint=...)"
    )


def _own_handling(kind: object, attribute: str, option: str, value: Any, off: Any) -> Any:  # noqa: ANN401
    """Return `value`, or `off` for a class that handles the option itself; ValueError if it cannot."""
    handles = getattr(kind, attribute, None)
    if handles is None:
        return value
    if not handles and value:
        raise ValueError(
            f"CheckpointConfig({option}={value!r}): {trainable_name(kind)} does not support it; leave it out"
        )
    return off


def with_export(trainable: Any, formats: Sequence[str]) -> Any:  # noqa: ANN401 - function or class
    """Return a class of the same name that calls `export_model`, into the trial's directory, before cleanup.

    A function stays as it is: it has no model to ask for.
    """
    if not is_trainable_class(trainable):
        return trainable

    class Exporting(trainable):  # type: ignore[misc]  # a base that is known only now
        def setup(self, config: dict[str, Any]) -> None:
            self._export_dir = self.logdir  # at the end, the trial is over and has no directory any more
            self._is_sound = False
            super().setup(config)

        def step(self) -> dict[str, Any]:
            self._is_sound = False
            result: dict[str, Any] = super().step()
            self._is_sound = True
            return result

        def cleanup(self) -> None:
            try:
                if self._is_sound:
                    self.export_model(list(formats), self._export_dir)
            finally:
                super().cleanup()

    Exporting.__name__ = trainable_name(trainable)
    Exporting.__qualname__ = trainable.__qualname__
    Exporting.__doc__ = trainable.__doc__
    return Exporting
