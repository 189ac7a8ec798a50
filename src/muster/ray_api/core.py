"""Define `ray.init` and what describes the "cluster": this machine, or what `ray.init` was given of it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, TypeVar

from muster.errors import public
from muster.host import machine
from muster.ray_api import tasks
from muster.ray_api.objects import BaseID, ObjectRef, free_all
from muster.ray_api.remote_function import no_actors
from muster.ray_api.runtime_env import RuntimeEnv
from muster.session.session import current

T = TypeVar("T")
_node_id, _job_id = BaseID().hex(), BaseID().hex()[:8]
_initialized = [False]


class RayContext(dict[str, Any]):
    """What `ray.init` returns: a context manager, and a dict with addresses."""

    dashboard_url = ""

    @property
    def address_info(self) -> dict[str, Any]:
        return dict(self)

    def disconnect(self) -> None:
        shutdown()

    def __enter__(self) -> RayContext:
        return self

    def __exit__(self, *_: object) -> None:
        shutdown()


@public
def init(  # noqa: PLR0913 - Ray's signature
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    labels: dict[str, str] | None = None,
    object_store_memory: int | None = None,
    local_mode: bool = False,
    ignore_reinit_error: bool = False,
    include_dashboard: bool | None = None,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int | None = None,
    job_config: Any = None,  # noqa: ANN401 - Ray's
    configure_logging: bool = True,
    logging_level: int | str = "info",
    logging_format: str | None = None,
    logging_config: Any = None,  # noqa: ANN401 - Ray's
    log_to_driver: bool | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | RuntimeEnv | None = None,
    enable_resource_isolation: bool = False,
    system_reserved_cpu: float | None = None,
    system_reserved_memory: int | None = None,
    **kwargs: Any,  # noqa: ANN401 - `_temp_dir` and other private ones
) -> RayContext:
    """Declare the resources of this machine that trials and tasks may use; nothing is started.

    Args:
        address: None, "local" or "auto"; muster connects to no cluster here.
        num_cpus: CPUs for trials and tasks together; default: all of this machine.
        num_gpus: GPUs for trials and tasks; default: all visible ones.
        resources: Custom resources and their amounts.
        ignore_reinit_error: Return instead of raising at a second call.
        runtime_env: Of it, `env_vars` become part of the environment of trials and tasks.

    The other arguments are accepted and have no effect.

    Raises:
        ConnectionError: `address` names a cluster.
        RuntimeError: It was called before, and `ignore_reinit_error` is False.
    """
    if address not in (None, "", "local", "auto"):
        raise ConnectionError(
            f"ray.init(address={address!r}): muster.as_ray runs on this machine; leave the address out, or "
            "use the real Ray with RunConfig(engine='ray')"
        )
    if is_initialized():
        if ignore_reinit_error:
            return _context(namespace)
        raise RuntimeError(
            "ray.init() was called twice; pass ignore_reinit_error=True, or call ray.shutdown() first"
        )
    given: dict[str, float | None] = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
    variables = dict(runtime_env or {}).get("env_vars") or {}
    machine.declare({name: float(n) for name, n in given.items() if n is not None}, variables)
    _initialized[0] = True
    return _context(namespace)


def _context(namespace: str | None) -> RayContext:
    address = machine.node_ip()
    return RayContext(
        node_ip_address=address,
        address=address,
        redis_address=f"{address}:6379",  # of Ray 1, which scripts split
        node_id=_node_id,
        namespace=namespace,
        webui_url="",
    )


def _is_worker() -> bool:
    return current() is not None or bool(tasks.inherited)


def is_initialized() -> bool:
    """Return whether `init` was called; True inside trials and tasks."""
    return _initialized[0] or _is_worker()


@public
def shutdown(_exiting_interpreter: bool = False) -> None:
    """End the tasks, forget stored objects and what `init` declared; trials are not affected."""
    del _exiting_interpreter
    tasks.close_pool()
    free_all()
    if not _is_worker():
        machine.declare({}, {})
        _initialized[0] = False


def cluster_resources() -> dict[str, float]:
    """Return what this machine has, as far as `init` did not declare it."""
    found = machine.detected_capacity()
    return {**found, f"node:{machine.node_ip()}": 1.0, "object_store_memory": found.get("memory", 0.0) * 0.3}


def available_resources() -> dict[str, float]:
    """Return the same without what running tasks use."""
    left = cluster_resources()
    for task in tasks.busy():
        for name, amount in ({} if task.needs is None else task.needs.required_resources).items():
            left[name] = left.get(name, 0.0) - amount
    return {name: amount for name, amount in left.items() if amount > 0}


def nodes() -> list[dict[str, Any]]:
    """Return this machine, in Ray's description of a node."""
    address = machine.node_ip()
    return [
        {
            "NodeID": _node_id,
            "Alive": True,
            "alive": True,
            "NodeManagerAddress": address,
            "NodeManagerHostname": machine.hostname(),
            "Resources": cluster_resources(),
            "Labels": {"ray.io/node-id": _node_id},
        }
    ]


def get_gpu_ids() -> list[int | str]:
    """Return the GPUs of this trial or task."""
    ids = machine.gpu_ids() if _is_worker() else ()
    return [int(each) if each.isdigit() else each for each in ids]


state = SimpleNamespace(nodes=nodes, cluster_resources=cluster_resources)  # AutoGluon's parallel fit reads it


class RuntimeContext:
    """What code can ask about where it runs."""

    namespace = "muster"
    gcs_address = ""
    was_current_actor_reconstructed = False

    @property
    def worker(self) -> SimpleNamespace:
        mode = 1 if _is_worker() else 0
        return SimpleNamespace(mode=mode, current_job_id=_job_id, node_id=_node_id)

    @property
    def runtime_env(self) -> RuntimeEnv:
        return RuntimeEnv()

    def get(self) -> dict[str, Any]:
        return {"job_id": _job_id, "node_id": _node_id, "namespace": self.namespace}

    def get_job_id(self) -> str:
        return _job_id

    def get_node_id(self) -> str:
        return _node_id

    def get_worker_id(self) -> str:
        return f"{os.getpid():x}"

    def get_task_id(self) -> str | None:
        return self.get_worker_id() if _is_worker() else None

    def get_actor_id(self) -> str | None:
        return None

    get_placement_group_id = get_actor_id

    def get_assigned_resources(self) -> dict[str, float]:
        return tasks.capacity() if _is_worker() else {}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": [str(each) for each in get_gpu_ids()]}


def get_runtime_context() -> RuntimeContext:
    return RuntimeContext()


@public
def cancel(ray_waitable: ObjectRef[Any], *, force: bool = False, recursive: bool = True) -> None:
    """Cancel a task; `ray.get` of its ref raises TaskCancelledError.

    Args:
        ray_waitable: The ref that `.remote()` returned.
        force: Kill the process, instead of raising KeyboardInterrupt in it.
    """
    del recursive
    if not isinstance(ray_waitable, ObjectRef):
        raise TypeError(f"ray.cancel({ray_waitable!r}): needs the ObjectRef of a task")
    if isinstance(ray_waitable._task, tasks.RemoteTask):
        tasks.pool().cancel(ray_waitable._task, force)


@public
def kill(actor: object, *, no_restart: bool = True) -> None:
    """Refuse: there are no actors."""
    del actor, no_restart
    no_actors("kill")


@public
def get_actor(name: str, namespace: str | None = None) -> None:
    """Raise ValueError, as Ray does for a name that no actor has."""
    del namespace
    raise ValueError(f"no actor is named {name!r}: muster.as_ray runs no actors")
