"""A separate layer: find modules at the paths that older versions of Ray had; `older` loads them.

Every `import muster.tune` loads this file: few imports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.errors import public

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OLDER_MODULES = {  # older paths, without `muster.` or `ray.`, and where their content is now
    "air.checkpoint": "session.checkpoint",
    "tune.durable_trainable": "tune.older",
    "tune.integration.comet": "air.integrations.comet",
    "tune.integration.mlflow": "air.integrations.mlflow",
    "tune.integration.wandb": "air.integrations.wandb",
    "tune.resources": "tune.older",
    "tune.sample": "tune.search.sample",
    "tune.session": "tune.older",
    "tune.suggest": "tune.search",
    "tune.suggest.search": "tune.search.search_algorithm",
    "tune.suggest.suggestion": "tune.search",
    "tune.track": "tune.older",
    "tune.trial": "tune.experiment.trial",
    "tune.utils.placement_groups": "tune.execution.placement_groups",
}
_OLD = tuple([f"muster.{old}" for old in OLDER_MODULES])


class AliasLoader:
    """Put a module at another name, unchanged."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has replaced it


class OlderModules:
    """Finder of the older paths; it comes first, because their packages have other files."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        if not name.startswith(_OLD):
            return None
        spec: ModuleSpec | None = importlib.import_module("muster.tune.older").spec_of(name)
        return spec


if OlderModules not in sys.meta_path:
    sys.meta_path.insert(0, OlderModules)


def with_older_names(load: Callable[[str], object], prefix: str = "") -> Callable[[str], object]:
    """Return `__getattr__` of a package that also answers for names of older versions."""

    @public
    def find(name: str) -> object:
        try:
            return load(name)
        except AttributeError:
            older = importlib.import_module("muster.tune.older")
            if prefix + name not in older.NAMES or not older.is_on():
                raise
        return older.named(prefix + name)

    return find
