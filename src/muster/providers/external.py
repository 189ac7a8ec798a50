"""`provider: {type: external, module: pkg.mod.MyProvider}`: somebody's own v1 class, found and made."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from muster.errors import ConfigError
from muster.providers.v1.failures import BROKEN

NEEDED = (
    "create_node",
    "external_ip",
    "internal_ip",
    "is_running",
    "node_tags",
    "non_terminated_nodes",
    "terminate_node",
)
_KEY = "provider.module"


def make_external(provider_config: Mapping[str, Any], cluster_name: str) -> Any:  # noqa: ANN401 - duck typed
    """The provider object; ConfigError says which key is wrong and how to put it right."""
    found = external_class(provider_config.get("module"))
    missing = [name for name in NEEDED if not callable(getattr(found, name, None))]
    if missing:
        raise ConfigError(
            f"{found.__name__} lacks {', '.join(missing)}; derive it from muster.autoscaler.NodeProvider"
            " and define them (docs/providers.md)",
            path=_KEY,
        )
    try:
        return found(dict(provider_config), cluster_name)
    except ConfigError:
        raise
    except BROKEN as error:
        raise ConfigError(
            f"{found.__name__}(provider_config, cluster_name) failed: {type(error).__name__}: {error}",
            path="provider",
        ) from error


def external_class(module: object) -> type[Any]:
    """The class that a dotted path names."""
    if not isinstance(module, str) or not module:
        raise ConfigError(
            "is missing; name your class, for example my_package.my_module.MyProvider", path=_KEY
        )
    home, dot, name = module.rpartition(".")
    if not dot or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"{module!r} must be a dotted path to a class, like my_package.my_module.MyProvider", path=_KEY
        )
    loaded = _load(home, module)
    found = getattr(loaded, name, None)
    if not isinstance(found, type):
        raise ConfigError(_no_class(loaded, home, name), path=_KEY)
    return found


def _load(home: str, module: str) -> Any:  # noqa: ANN401 - a module of somebody
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is not None and (home == error.name or home.startswith(f"{error.name}.")):
            message = (
                f"{module!r}: there is no module {error.name!r}; install it, or put the directory it lies in"
                " on PYTHONPATH where the monitor runs"
            )
        else:
            message = f"{module!r}: {home} needs {error.name!r}, which is not installed here"
        raise ConfigError(message, path=_KEY) from error
    except BROKEN as error:
        raise ConfigError(
            f"{module!r}: importing {home} failed: {type(error).__name__}: {error}", path=_KEY
        ) from error


def _no_class(loaded: object, home: str, name: str) -> str:
    classes = [key for key, value in vars(loaded).items() if isinstance(value, type)]
    close = difflib.get_close_matches(name, classes, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it defines {', '.join(sorted(classes)) or 'none'}"
    return f"module {home} has no class {name!r}; {hint}"
