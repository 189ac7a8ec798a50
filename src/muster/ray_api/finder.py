"""Find the modules below `ray`: muster's own module objects, and a sentence for what muster does not have.

`find_spec` of a missing module returns None, as libraries that probe for parts of Ray expect.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import ClassVar

from muster.tune.older_modules import AliasLoader

logger = logging.getLogger(__name__)

_OURS = ("tune", "air", "train")  # the parts of Ray that muster has at the same paths
_ADDED = ("actor", "air", "exceptions", "internal", "remote_function", "runtime_env", "train", "util")
_PARTS = {
    "data": "Ray Data",
    "rllib": "RLlib",
    "serve": "Ray Serve",
    "train": "Ray Train",
    "tune": "Ray Tune's internals",
    "workflow": "Ray Workflows",
}
_warned: set[str] = set()
CORE = {  # the names of `ray` itself, by the module that defines them
    "muster.ray_api.core": (
        *("RayContext", "available_resources", "cancel", "cluster_resources", "get_actor", "get_gpu_ids"),
        *("get_runtime_context", "init", "is_initialized", "kill", "nodes", "shutdown", "state"),
    ),
    "muster.ray_api.objects": ("BaseID", "ObjectID", "ObjectRef", "get", "put", "wait"),
    "muster.ray_api.remote_function": ("remote",),
}
_CONSTANTS = ("LOCAL_MODE", "SCRIPT_MODE", "WORKER_MODE", "__commit__", "__version__")


def home_of(name: str) -> str:
    """Return the module that answers for a name below `ray`; "" when muster has none.

    Example:
        >>> home_of("ray.tune.search.sample"), home_of("ray.data")
        ('muster.tune.search.sample', '')
    """
    root, _, rest = name.removeprefix("ray.").partition(".")
    if root == "cloudpickle":
        return f"cloudpickle.{rest}" if rest else root
    homes = [f"muster.ray_api.{name.removeprefix('ray.')}"] if root in _ADDED else []
    if root in _OURS:
        homes.append(f"muster.{name.removeprefix('ray.')}")
    return next((home for home in homes if _exists(home)), "")


def _exists(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ImportError:  # a package above it is missing, or is a module
        return False


class RayFinder:
    """Finder of `ray.*`; it comes first, because the packages that it aliases have their own files."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        if not name.startswith("ray."):
            return None
        home = home_of(name)
        if home:
            return ModuleSpec(name, AliasLoader(home))  # type: ignore[arg-type]
        if _is_import(sys._getframe(2)):
            if _is_probed():
                return ModuleSpec(name, _Probed(), is_package=True)  # type: ignore[arg-type]
            raise missing(name)
        _Probed.forget()
        return None


class _Probed:
    """Loader of an empty package: `find_spec("ray.data.x")` imports `ray.data` before it looks for x."""

    _names: ClassVar[list[str]] = []

    def create_module(self, spec: ModuleSpec) -> None:
        self._names.append(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""

    @classmethod
    def forget(cls) -> None:
        for name in cls._names:
            sys.modules.pop(name, None)
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(child, None)
        cls._names.clear()


def _is_probed() -> bool:
    """Return whether the import under way comes from `importlib.util.find_spec`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    return frame is not None and frame.f_code is importlib.util.find_spec.__code__


class _AbsentFinder:
    """Finder that only logs: `from ray.tune import x` looks for `muster.tune.x`. It comes last."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name.startswith("muster.tune.") and _is_import(sys._getframe(2)) and not _is_probed():
            missing("ray." + name.removeprefix("muster."))


def _is_import(caller: FrameType) -> bool:
    """Return whether a finder is asked by an import, and not by `importlib.util.find_spec`."""
    return caller.f_code.co_name == "_find_and_load_unlocked"


def install() -> None:
    if RayFinder not in sys.meta_path:
        sys.meta_path.insert(0, RayFinder)
        sys.meta_path.append(_AbsentFinder)


def missing(name: str) -> ModuleNotFoundError:
    """Return the error for a name that muster lacks; log it once, because libraries often swallow it."""
    root = name.removeprefix("ray.").partition(".")[0]
    text = (
        f"{name} is not available: it belongs to {_PARTS.get(root, 'Ray Core')}, and muster takes the place "
        "of Ray in this program; install Ray and run without muster.as_ray (MUSTER_AS_RAY) to use it"
    )
    if name not in _warned:
        _warned.add(name)
        frame = _importer()
        where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        if frame is None or not str(frame.f_globals.get("__name__")).startswith("muster."):
            logger.warning("%s%s", where, text)
    return ModuleNotFoundError(text, name=name)


def _importer() -> FrameType | None:
    """Return the frame that imports: the first outside of muster.ray_api and Python's import system."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", "muster.ray_api")) and name != "ray":
            return frame
        frame = frame.f_back
    return None


def refuse(package: str, name: str) -> Exception:
    """Return what `__getattr__` of a package raises: an ImportError for `from package import name`.

    Python itself would hide the sentence there; everywhere else `hasattr` must be able to answer False.
    """
    caller = sys._getframe(2)
    if caller.f_code.co_name == "_handle_fromlist" and not name.startswith("__"):
        return missing(f"{package}.{name}")
    return AttributeError(
        f"module {package!r} has no attribute {name!r} (muster takes the place of Ray here)"
    )


def overlay(
    package: str, below: str, added: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package of Ray.

    Args:
        package: Ray's name of it.
        below: The module of muster whose names it has as well; "": none.
        added: Modules, and the names of each that are added.
    """
    homes = {name: module for module, names in added.items() for name in names}

    def load(name: str) -> object:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        if below and not name.startswith("__"):
            try:
                return getattr(importlib.import_module(below), name)
            except (AttributeError, ImportError):  # muster.train explains what stays Ray's
                pass
        child = f"{package}.{name}"
        if name.startswith("__") or not home_of(child):
            raise refuse(package, name)
        importlib.import_module(child)
        return sys.modules[child]

    def names() -> list[str]:
        return sorted({*homes, *(dir(importlib.import_module(below)) if below else ())})

    return load, names


def has_name(dotted: str) -> bool:
    """Return whether muster answers for a name of Ray, also where it is not switched on.

    Example:
        >>> has_name("ray.tune.Tuner"), has_name("ray.init"), has_name("ray.data.Dataset")
        (True, True, False)
    """
    parts = dotted.split(".")
    if len(parts) == 1 or parts[1] in {*_CONSTANTS, *(name for names in CORE.values() for name in names)}:
        return True
    module = next((n for n in range(len(parts), 1, -1) if home_of(".".join(parts[:n]))), 0)
    if module == len(parts) or not module:
        return bool(module)
    try:
        return hasattr(importlib.import_module(home_of(".".join(parts[:module]))), parts[module])
    except ImportError:  # it needs a library that is not installed here
        return True
