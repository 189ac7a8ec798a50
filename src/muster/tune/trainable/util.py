"""Adds parameters and resources to a trainable: with_parameters and with_resources."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import mmap
import os
import pickle
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from muster.base.foreign import error_text, rays_own
from muster.errors import TuneError, public
from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles
from muster.tune.trainable.function_trainable import is_trainable_class, trainable_name
from muster.tune.trainable.packing import keep_owners_of_refs

SMALL = 16 * 1024  # bytes that may as well travel with the code
_ALIGN = 64  # what numpy likes its data to begin at
_NAME = "muster-parameters"
_opened: dict[str, Any] = {}
_opening = threading.Lock()
_own: list[str] = []  # the directory of this process, once it has one
_count: list[int] = [0]


class StoredObject:
    """A StoredObject is pickled as the name of a file with its value, or as the value when that is small."""

    __slots__ = ("_content", "_path")

    def __init__(self, value: object, name: str) -> None:
        """Stores a value; ValueError when it cannot be pickled, TuneError when it cannot be written."""
        parts = _pickled(value, name)
        self._content: bytes | None = None
        self._path = ""
        if sum(map(len, parts)) <= SMALL:
            self._content = pickle.dumps([bytes(part) for part in parts])
        else:
            self._path = _written(parts, name)

    def load(self) -> Any:  # noqa: ANN401 - the user's value
        """Returns the value, which is read once per process."""
        if self._content is not None:
            head, *buffers = pickle.loads(self._content)
            return pickle.loads(head, buffers=[bytearray(buffer) for buffer in buffers])
        with _opening:
            if self._path not in _opened:
                _opened[self._path] = _mapped(self._path)
            return _opened[self._path]


def _pickled(value: object, name: str) -> list[Any]:
    """Returns the pickle, and the buffers that stay out of it."""
    import cloudpickle  # type: ignore[import-untyped]  # it has no types

    keep_owners_of_refs()
    buffers: list[Any] = []

    def keep_out(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True  # not in one piece: goes into the pickle
        return False

    try:
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=keep_out)
    except Exception as error:
        raise ValueError(
            f"with_parameters: {name}, a {type(value).__name__}, cannot be pickled "
            f"({error_text(error)}); make it inside of the trainable instead"
        ) from error
    return [head, *buffers]


def _written(parts: list[Any], name: str) -> str:
    """Writes a file: the lengths of all parts, then each of them at an aligned place."""
    folder = _scratch()
    _count[0] += 1
    path = os.path.join(folder, f"{_count[0]}")
    lengths = pickle.dumps([len(part) for part in parts])
    try:
        with open(path, "wb") as stream:
            stream.write(len(lengths).to_bytes(8, "little") + lengths)
            for part in parts:
                stream.write(bytes(-stream.tell() % _ALIGN))
                stream.write(part)
    except OSError as error:
        size = sum(map(len, parts)) / 1e6
        raise TuneError(
            f"with_parameters: {name} ({size:.0f} MB) cannot be written to {folder} ({error}); "
            "free some space there, or set TMPDIR to a directory with more"
        ) from error
    return path


def _mapped(path: str) -> Any:  # noqa: ANN401
    try:
        with open(path, "rb") as stream:
            # Private pages: writing to an array changes neither the file nor what other trials see.
            view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise TuneError(
            f"with_parameters: {path} cannot be read here ({error}); it exists only on the machine that "
            "started the experiment, and while that process is alive"
        ) from error
    size = int.from_bytes(view[:8], "little")
    place = 8 + size
    parts: list[memoryview] = []
    for length in pickle.loads(view[8:place]):
        place += -place % _ALIGN
        parts.append(view[place : place + length])
        place += length
    return pickle.loads(parts[0], buffers=parts[1:])


def _scratch() -> str:
    """Returns the directory of this process; those of processes that were killed are removed on the way."""
    if _own and _own[0].endswith(f"-{os.getpid()}") and os.path.isdir(_own[0]):
        return _own[0]
    user = os.getuid() if hasattr(os, "getuid") else "user"
    home = os.path.join(tempfile.gettempdir(), f"{_NAME}-{user}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(home, mode=0o700)
    if not _is_private(home):
        raise TuneError(
            f"with_parameters: {home} is no directory that only you can write to; another user may "
            "have put it there: remove it, or set TMPDIR to a directory of yours"
        )
    _remove_orphans(home)
    folder = tempfile.mkdtemp(prefix="", suffix=f"-{os.getpid()}", dir=home)
    _own[:] = [folder]
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def _is_private(path: str) -> bool:
    """Returns whether this is a true directory, no link to one, that belongs to this user alone."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return False
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a fork must not take its parent's files along
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(home: str) -> None:
    for name in os.listdir(home):
        pid = name.rpartition("-")[2]
        folder = os.path.join(home, name)
        if pid.isdigit() and _is_private(folder) and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # there, signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's, or a platform without pids
    return True


_KEPT = ("_resources", "__mixins__", "__doc__")


def wrapped_function(inner: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `inner` under the original's name, with its resources.

    `functools.wraps` would copy the signature, but `inner` takes the config alone.
    """
    inner.__name__ = trainable_name(original)
    for name in _KEPT:
        if hasattr(original, name):
            setattr(inner, name, getattr(original, name))
    inner._muster_original = original  # type: ignore[attr-defined]
    return inner


def innermost(trainable: Any) -> Any:  # noqa: ANN401
    """Returns the trainable that was wrapped."""
    while (original := getattr(trainable, "_muster_original", None)) is not None:
        trainable = original
    return trainable


Chooser = Callable[[Mapping[str, Any]], PlacementGroupFactory]
Resources = PlacementGroupFactory | Chooser


def as_resources(given: Any) -> Resources:  # noqa: ANN401 - checked here
    """Returns a dict, a PlacementGroupFactory or a function of the config; ValueError for anything else."""
    if isinstance(given, PlacementGroupFactory):
        return given
    if isinstance(given, Mapping):
        return resource_dict_to_bundles(given)
    if theirs := rays_own(given):
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
    """Returns a trainable each of whose trials needs `resources`.

    `resources` is a dict, a PlacementGroupFactory, or a function of the config that returns one. The given
    trainable stays as it is.

    Example:
        >>> def train(config): ...
        >>> with_resources(train, {"cpu": 2})._resources
        PlacementGroupFactory([{'CPU': 2.0}], strategy='PACK')
    """
    is_class = _is_class(trainable, "with_resources")
    with_needed = _class_with_resources if is_class else _function_with_resources
    return with_needed(trainable, as_resources(resources))


def _is_class(trainable: object, caller: str) -> bool:
    """Returns whether a trainable is a class, not a function; ValueError when it is no trainable."""
    is_class = inspect.isclass(trainable)
    if not callable(trainable) or (is_class and not is_trainable_class(trainable)):
        given = "None; did you call it? Pass the function itself" if trainable is None else repr(trainable)
        raise ValueError(f"{caller}: needs a function or a subclass of tune.Trainable, not {given}")
    return is_class


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
    """Returns resources for a config, from a user's function if it is one; it may return a dict, too."""
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
    """Returns what each trial needs: what the trainable says, else the experiment, else 1 CPU.

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
    elif theirs := rays_own(own):
        raise TuneError(f"{trainable_name(trainable)} and its resources: {theirs}")
    if own is not None and fallback is not None:
        raise TuneError(
            f"{trainable_name(trainable)} defines its own resources, and so does resources_per_trial: "
            "leave one of them out"
        )
    given = own if own is not None else fallback
    return PlacementGroupFactory([{"CPU": 1}]) if given is None else given


def thread_limit(resources: Any, environment: Mapping[str, str]) -> dict[str, str]:  # noqa: ANN401
    """Returns OMP_NUM_THREADS for trials: as many threads as the trial has CPUs, unless the user has set it.

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


class Parameters:
    """A Parameters holds keyword arguments that are fetched where they are used."""

    __slots__ = ("_spooled",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._spooled = {name: StoredObject(value, name) for name, value in values.items()}

    def load(self) -> dict[str, Any]:
        return {name: spooled.load() for name, spooled in self._spooled.items()}


@public
def with_parameters(trainable: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - function or class, as given
    """Returns a trainable that is given `kwargs` in every trial, however large they are.

    A function gets them as keyword arguments, a class in `setup(config, **kwargs)`. They are written once, to
    a file that all trials on this machine share; the given trainable stays as it is.

    Example:
        >>> def train(config, data):
        ...     return {"total": config["scale"] * sum(data)}
        >>> with_parameters(train, data=[1, 2, 3])({"scale": 2})
        {'total': 12}
    """
    is_class = _is_class(trainable, "with_parameters")
    _check_names(trainable, kwargs)
    with_given = _class_with_parameters if is_class else _function_with_parameters
    return with_given(trainable, Parameters(kwargs))


def _function_with_parameters(function: Callable[..., Any], parameters: Parameters) -> Callable[..., Any]:
    def inner(config: Any, **more: Any) -> Any:  # noqa: ANN401
        return function(config, **parameters.load(), **more)

    return wrapped_function(inner, function)


def _class_with_parameters(kind: Any, parameters: Parameters) -> type:  # noqa: ANN401
    class Inner(kind):  # type: ignore[misc]  # a base that is known only now
        def setup(self, config: dict[str, Any], **more: Any) -> None:  # noqa: ANN401
            super().setup(config, **parameters.load(), **more)

    return _named_like(kind, Inner)


def _check_names(trainable: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Raises a ValueError now, instead of a TypeError in every trial."""
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
