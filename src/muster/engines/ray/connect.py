"""Open a RayEngine: connects to Ray unless that is done, and reads the cluster once.

`tune.launch` calls it; importing this module does not import Ray.
"""

from __future__ import annotations

import copyreg
import pickle
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock, SystemClock, ahead_s
from muster.base.untrusted import real_ray
from muster.errors import EngineMissing, EngineUnreachable
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.kv_board import ForecastWriter
from muster.runtimes.ray.native import (
    INSTALL,
    NEWEST,
    check_auth,
    check_ray,
    minor_of,
    raylet_module,
    reread_token,
)

if TYPE_CHECKING:
    from muster.engines.ray.cluster_watcher import ClusterView
    from muster.engines.ray.engine import RayEngine, RayOptions


_REACH_S = 5.0


def keep_owners_of_refs() -> None:
    """Make every pickler of this process keep who owns an ObjectRef; does nothing where Ray is not in use.

    Plain pickles of a ref hold its id alone, and `ray.get` waits forever for an object without an owner.
    """
    ray = real_ray()
    if ray is not None and hasattr(ray, "ObjectRef"):
        copyreg.pickle(ray.ObjectRef, _with_owner)


def _with_owner(ref: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an ObjectRef
    import ray

    return pickle.loads, (ray.cloudpickle.dumps(ref),)


def open_ray_engine(
    *,
    trainables: Mapping[str, bytes] | None = None,
    address: str | None = None,
    capacity: Mapping[str, float] | None = None,
    options: RayOptions | None = None,
    clock: Clock | None = None,
) -> RayEngine:
    """Return an engine on the initialised Ray, otherwise on the one at `address` (default: RAY_ADDRESS).

    `capacity` overrides what the cluster reports. EngineError names what is in the way.
    """
    ray = import_ray()
    keep_owners_of_refs()
    connects = not ray.is_initialized()
    if connects:
        connect(ray, address)
    from muster.engines.ray.actor import TrialActor
    from muster.engines.ray.engine import Connection, RayEngine, RayOptions

    clock = clock or SystemClock()
    is_client = ray.util.client.ray.is_connected()
    client = None if is_client else GcsClient(ray.get_runtime_context().gcs_address)
    read = _cluster_reader(ray, clock, client)
    connection = Connection(
        ray=ray,
        host=None if is_client else ray.util.get_node_ip_address(),
        actor_class=ray.remote(max_restarts=0, max_task_retries=0)(TrialActor),
        read_cluster=read,
        on_close=ray.shutdown if connects else None,
        forecasts=None if client is None else ForecastWriter(client),
        driver=str(ray.get_runtime_context().get_job_id()),
    )
    return RayEngine(
        clock=clock,
        connection=connection,
        view=read(),
        capacity=capacity,
        trainables=trainables,
        options=options or RayOptions(),
    )


def _cluster_reader(ray: Any, clock: Clock, client: GcsClient | None) -> Callable[[], ClusterView]:  # noqa: ANN401 - a module
    """Return a function that reads the cluster from here; without a client, from a task on the head."""
    from muster.engines.ray.cluster_watcher import ClusterProbe, read_cluster

    if client is None:
        probe = ClusterProbe(ray)
        return lambda: probe.read(clock.now() - ahead_s(clock))
    return lambda: read_cluster(ray, client, clock.now() - ahead_s(clock))


def import_ray() -> Any:  # noqa: ANN401 - a module
    """Return Ray; raise EngineMissing when it is not installed, or of another minor version.

    Trials need more of Ray than the autoscaler does, and are tried with its newest line alone.
    """
    version = check_ray()
    if minor_of(version) != NEWEST:
        line = ".".join(map(str, NEWEST))
        raise EngineMissing(f"Ray {version} is installed, trials on Ray need {line}.*: {INSTALL}")
    import ray

    return ray


def connect(ray: Any, address: str | None = None) -> None:  # noqa: ANN401 - a module
    """Join the cluster as a driver."""
    from muster.host.machine import environment

    check_auth(environment())
    # Makes Ray's native code, which reads RAY AUTH * when it is imported, read them again.
    from muster.host.machine import environment

    raylet = raylet_module()
    raylet.Config.initialize("{}")
    reread_token(raylet, environment())
    where = address or environment().get("RAY_ADDRESS") or "auto"
    _check_reachable(where)
    try:
        ray.init(address=where, logging_level="warning")
    except Exception as error:
        if "Version mismatch" in str(error):
            raise EngineMissing(
                f"the Ray cluster at {where} runs other versions: install its Ray and Python here "
                f"({' '.join(str(error).split())})"
            ) from error
        if where != "auto" and not where.startswith("ray://"):
            GcsClient(where).connect()  # its error is clearer: no answer, or a wrong token
        # The first line, with the last one where the first only announces a traceback.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        summary = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
        raise EngineUnreachable(f"{_unreachable(where)}: {summary}") from error


def _check_reachable(where: str) -> None:
    """Connect once: Ray itself would try for a minute before it reports that nothing answers."""
    host, _, port = where.removeprefix("ray://").partition("/")[0].rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_REACH_S).close()
        except OSError as error:
            raise EngineUnreachable(f"{_unreachable(where)}: {error.strerror or error}") from None


def _unreachable(where: str) -> str:
    found = "this machine has no running Ray" if where == "auto" else f"no Ray cluster answers at {where}"
    return f"{found}; start one (ray start --head), set RAY_ADDRESS, or use engine='local'"
