"""Load Ray's native client module, check its version, and set it up for a long-lived process.

Ray older than the oldest tried version is refused. Versions between the tried ones, and newer ones, are used
with a warning: a user's image decides which Ray runs, and a cluster that nobody scales is worse than one that
is scaled by an untried pair.

Ray's native code reads RAY_AUTH_* and its settings once and keeps them. `set_up` makes it read them again, so
it need not be called before Ray is imported; but one process has one token: it cannot talk to two clusters
that have different ones. Called by GcsClient.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from muster.base.untrusted import is_standin, real_ray
from muster.errors import EngineDenied, EngineMissing, EngineUnreachable
from muster.host.machine import environment

logger = logging.getLogger(__name__)
_warned: set[str] = set()

_AUTH_NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

# Without the first, Ray's native client ends the whole process when the GCS is away for a minute during a
# call. Set here and not in the environment: raylets that inherit it from this process would outlive
# their cluster. Every call of GcsClient has its own timeout.
_SETTINGS = {
    "gcs_rpc_server_reconnect_timeout_s": 1_000_000_000,
    "gcs_rpc_server_connect_timeout_s": 2,
    "py_gcs_connect_timeout_s": 3,
}

OLDEST, NEWEST = (2, 48), (2, 60)  # both run in tests/runtimes/ray/versions
RANGE = "2.48 to 2.60"
INSTALL = "install it with: pip install 'muster-ml[ray]'"


def minor_of(version: str) -> tuple[int, int] | None:
    """Return the first two numbers; None for what is not a version."""
    found = re.match(r"(\d+)\.(\d+)\.", version)
    return (int(found[1]), int(found[2])) if found else None


def is_usable(version: str) -> bool:
    """Return whether muster talks to this Ray at all."""
    minor = minor_of(version)
    return minor is not None and minor >= OLDEST and minor[0] == NEWEST[0]


def is_tried(version: str) -> bool:
    """Return whether the tests run with this minor version."""
    return minor_of(version) in (OLDEST, NEWEST)


def is_same_line(one: str, other: str) -> bool:
    """Return whether two versions have the same messages between nodes."""
    return minor_of(one) == minor_of(other)


def refusal(version: str) -> str:
    """Return why an installed Ray cannot be used."""
    return f"Ray {version} is installed, this works with {RANGE}: {INSTALL}"


def warning(version: str) -> str:
    """Return what to expect of an installed Ray that was never tried."""
    tried = " and ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    return f"Ray {version} is installed; muster was tried with {tried}: look at `muster status` more often"


def check_ray() -> str:
    """Return the version of the installed Ray; raise EngineMissing when it cannot be used.

    One that was never tried is reported once.
    """
    try:
        import ray
    except ImportError as error:
        raise EngineMissing(f"Ray is not installed ({error}): {INSTALL}") from None
    if is_standin(ray):
        raise EngineMissing(
            "muster takes the place of Ray here: run without muster.as_ray to use a Ray cluster"
        )
    version = str(getattr(ray, "__version__", "unknown"))
    if not is_usable(version):
        raise EngineMissing(refusal(version))
    if not is_tried(version):
        _warn_once(warning(version))
    return version


def _warn_once(line: str) -> None:
    if line not in _warned:
        _warned.add(line)
        logger.warning("%s", line)


def raylet_module() -> Any:  # noqa: ANN401 - a compiled module without types
    """Return `ray._raylet`."""
    check_ray()
    try:
        import ray._raylet as raylet
    except ImportError as error:
        raise EngineMissing(f"Ray's native part cannot be loaded ({error}): {INSTALL}") from None
    return raylet


def parameters_of(method: str) -> frozenset[str]:
    """Return the parameters of a call of the native client; empty where this Ray has no such call."""
    raylet = raylet_module()
    call = getattr(getattr(raylet, "InnerGcsClient", raylet.GcsClient), method, None)
    return frozenset() if call is None else frozenset(inspect.signature(call).parameters)


def is_driver() -> bool:
    """Return whether this process is connected to Ray: then its settings must not be changed."""
    ray: ModuleType | None = real_ray()
    return bool(ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized())


def set_up(auth: Mapping[str, str]) -> Any:  # noqa: ANN401 - a compiled module without types
    """Return the module after it took this token, and settings that survive a GCS which is away.

    When `auth` is empty, the environment decides. In a process that is connected as a driver nothing is
    changed.
    """
    check_auth(auth)
    if is_driver():
        return raylet_module()
    variables = environment()
    if auth:
        for name in _AUTH_NAMES:
            variables.pop(name, None)
        variables.update({name: auth[name] for name in _AUTH_NAMES if name in auth})
    raylet = raylet_module()
    raylet.Config.initialize(json.dumps(_SETTINGS))
    reread_token(raylet, variables)
    return raylet


def reread_token(raylet: Any, variables: Mapping[str, str]) -> None:  # noqa: ANN401 - as above
    """Make Ray read RAY_AUTH_* again; a Ray without tokens is reported once where one is wanted."""
    loader = getattr(raylet, "AuthenticationTokenLoader", None)
    if loader is not None:
        loader.instance().reset_cache()
    elif variables.get("RAY_AUTH_MODE", "").lower() == "token":
        _warn_once(
            f"Ray {check_ray()} knows no tokens: whoever reaches the ports of this cluster controls it; "
            "keep them behind a firewall, or use a newer Ray"
        )


def check_auth(auth: Mapping[str, str]) -> None:
    """Raise EngineDenied for a token that cannot work, with a clearer message than the cluster's."""
    if auth.get("RAY_AUTH_MODE", "").lower() != "token":
        return
    path = auth.get("RAY_AUTH_TOKEN_PATH")
    if auth.get("RAY_AUTH_TOKEN") or (path is None and (Path.home() / ".ray" / "auth_token").is_file()):
        return
    if path is None:
        raise EngineDenied(
            "RAY_AUTH_MODE is token but no token is given: set RAY_AUTH_TOKEN_PATH to its file"
        )
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        why = error.strerror or str(error)
        raise EngineDenied(f"{path}: the token cannot be read ({why}): see RAY_AUTH_TOKEN_PATH") from None
    if not token:
        raise EngineDenied(f"{path}: the token file is empty: copy the token of the head into it")


_FIX = "call ray.init(), or set RAY_ADDRESS to host:port of the Ray head"


def find_address(given: str | None = None) -> str:
    """Return host:port of the GCS; raise EngineUnreachable when nothing names it."""
    address = given
    if not address and is_driver():
        address = str(real_ray().get_runtime_context().gcs_address)
    address = address or environment().get("RAY_ADDRESS", "")
    if not address:
        raise EngineUnreachable(f"no Ray cluster is named: {_FIX}")
    if address == "auto":
        # The address in the file that `ray start --head` leaves.
        file = Path(environment().get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        try:
            return file.read_text(encoding="utf-8").strip()
        except OSError:
            raise EngineUnreachable(
                f"RAY_ADDRESS is auto, but no head runs on this machine: {_FIX}"
            ) from None
    if "://" in address:
        raise EngineUnreachable(f"{address} is Ray Client, which does not lead to the GCS: {_FIX}")
    return address
