"""Define `ray.remote`: remote functions, and the sentence for actors, which muster does not run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from muster.base import by_value
from muster.errors import TuneError
from muster.ray_api.objects import ObjectRef
from muster.ray_api.tasks import RemoteTask, pool
from muster.trials.placement_group import PlacementGroupFactory

_RETRIES = 3  # Ray's default
_ACTORS = "run it with the real Ray, or use functions: muster.as_ray runs tasks, not actors"


class RemoteFunction:
    """Function whose `.remote(...)` runs as a task."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._code = b""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401 - the user's
        raise TypeError(f"{self.__name__} is a remote function: call {self.__name__}.remote()")

    __name__: str

    def options(self, **options: Any) -> RemoteFunction:  # noqa: ANN401 - Ray's
        """Return the same function with other options, as `ray.remote(**options)` takes them."""
        made = RemoteFunction(self._function, {**self._options, **options})
        made._code = self._code
        return made

    def remote(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - one ref or several
        """Start a task; return its ref, or a list of refs where `num_returns` is not 1."""
        given, count = self._options, self._options.get("num_returns", 1) or 0
        if not isinstance(count, int):
            raise TuneError(
                f"{self.__name__}.remote(): num_returns={count!r} is not available in muster.as_ray",
                fix="return a list, and pass its length as num_returns",
            )
        self._code = self._code or by_value.dumps(self._function)
        variables = (given.get("runtime_env") or {}).get("env_vars") or {}
        retries = given.get("max_retries", _RETRIES)
        task = RemoteTask(
            name=self.__name__,
            function=self._code,
            args=args,
            kwargs=kwargs,
            needs=_needs(given),
            num_returns=count,
            retries=1 << 30 if retries == -1 else retries,
            env=dict(variables),
            max_calls=given.get("max_calls") or 0,
        )
        refs: list[ObjectRef[Any]] = [ObjectRef(task=task, index=index) for index in range(count)]
        pool().submit(task)
        return refs[0] if count == 1 else refs or None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFunction, (self._function, self._options)


def _needs(options: dict[str, Any]) -> PlacementGroupFactory | None:
    """Return the resources of a task; labels, placement groups and strategies have no effect here."""
    cpus = options.get("num_cpus")
    bundle = {"CPU": 1.0 if cpus is None else cpus, "GPU": options.get("num_gpus") or 0}
    bundle |= {name: amount for name, amount in (options.get("resources") or {}).items() if name != "node"}
    return PlacementGroupFactory([bundle]) if any(bundle.values()) else None


class ActorClass:
    """Class under `ray.remote`: it can be defined and imported, not started."""

    def __init__(self, kind: type) -> None:
        functools.update_wrapper(self, kind, updated=())
        self.__ray_actor_class__ = kind

    def options(self, **_: Any) -> ActorClass:  # noqa: ANN401 - Ray's
        return self

    def remote(self, *_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - the user's
        name = self.__ray_actor_class__.__name__
        raise TuneError(f"{name}.remote(): actors are not available in muster.as_ray", fix=_ACTORS)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - the user's
        name = self.__ray_actor_class__.__name__
        raise TypeError(f"{name} is an actor class: call {name}.remote()")


def remote(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - Ray's signature: decorator, or its options
    """Make a function a task: `@ray.remote`, `ray.remote(function)` or `@ray.remote(num_cpus=2)`."""
    if len(args) == 1 and not options:
        return ActorClass(args[0]) if isinstance(args[0], type) else RemoteFunction(args[0], {})
    if args:
        raise TypeError("ray.remote: pass one function, or options by name: @ray.remote(num_cpus=2)")
    return lambda thing: ActorClass(thing) if isinstance(thing, type) else RemoteFunction(thing, options)


def no_actors(name: str) -> NoReturn:
    raise TuneError(f"ray.{name}(): actors are not available in muster.as_ray", fix=_ACTORS)
