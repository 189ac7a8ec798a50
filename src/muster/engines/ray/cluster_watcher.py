"""The lookout: a thread that asks the cluster now and then what it is, may become, and can never place.

RayEngine's own thread must not wait for the GCS; what the lookout saw comes to it by the bell.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from muster.errors import EngineError

_log = logging.getLogger(__name__)

LOOK_S = 2.0
_FRESH_S = 60.0  # a board that nobody has written to for so long has no monitor any more
_HOPELESS = ("infeasible", "invalid")
_OWN_MARKS = ("node:", "accelerator_type:", "object_store_memory")
_SCOUT_S = 30.0
# For what must not go with a node: an actor or task without resources does not keep a node from idling.
ON_THE_HEAD = {"node:__internal_head__": 0.001}
_LEGACY_STATUS = "__autoscaling_status"  # where Ray's older autoscaler says that it is there


class Sight(NamedTuple):
    """What was seen."""

    nodes: Sequence[Mapping[str, float]]  # what each node that lives has in all
    limit: Mapping[str, float] | None = None  # what the cluster may become; None: nobody has said
    has_autoscaler: bool = False
    hopeless: Mapping[
        str, str
    ] = {}  # placement groups, by hex id, that the autoscaler can never place, and why

    @property
    def present(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for node in self.nodes:
            for name, amount in node.items():
                total[name] = total.get(name, 0.0) + amount
        return total


def nodes_of(ray: Any) -> list[dict[str, float]]:  # noqa: ANN401 - a module
    """What each living node has, without Ray's own markers."""
    return [
        {name: amount for name, amount in node["Resources"].items() if not name.startswith(_OWN_MARKS)}
        for node in ray.nodes()
        if node["Alive"]
    ]


def look(ray: Any, link: Any, now: float) -> Sight:  # noqa: ANN401 - a module, a GcsLink
    """Ask everything once."""
    nodes = nodes_of(ray)
    from muster.runtimes.ray.publish import max_resources
    from muster.runtimes.ray.verdict_board import read_board

    limit, board = max_resources(link), read_board(link)
    is_ours = now - board.at < _FRESH_S
    hopeless = {
        group: f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason
        for group, verdict in board.gangs.items()
        if is_ours and verdict.reason in _HOPELESS
    }
    has_autoscaler = limit is not None or is_ours or link.kv_get(_LEGACY_STATUS) is not None
    return Sight(nodes, limit, has_autoscaler, hopeless)


class Scout:
    """Looks from the head, for a driver that cannot reach the GCS itself (Ray Client)."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401 - a module
        self._ray = ray
        self._task: Any = ray.remote(num_cpus=0, max_retries=0, resources=ON_THE_HEAD)(_look_there)

    def look(self, now: float) -> Sight:
        """Where the head lacks this package nobody knows what comes: wait rather than give up."""
        if self._task is not None:
            try:
                return Sight(*self._ray.get(self._task.remote(now), timeout=_SCOUT_S))
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds; we can do without
                _log.debug("the cluster could not be looked at from its head: %s", error)
                if "No module named" in str(error):
                    self._task = None
        return Sight(nodes_of(self._ray), has_autoscaler=True)


def _look_there(now: float) -> tuple[Any, ...]:
    """A task on the head."""
    import ray

    from muster.runtimes.ray.client import GcsLink

    return tuple(look(ray, GcsLink(ray.get_runtime_context().gcs_address), now))


class Lookout:
    """Looks every two seconds until it is closed; `seen` is called in its thread."""

    def __init__(
        self, look: Callable[[], Sight], seen: Callable[[Sight], object], every_s: float = LOOK_S
    ) -> None:
        self._look, self._seen, self._every_s = look, seen, every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="muster-lookout", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self._seen(self._look())
            except EngineError as error:
                _log.debug("the cluster could not be looked at: %s", error)
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds while a head restarts
                _log.debug("the cluster could not be looked at: %s", error)

    def close(self) -> None:
        self._ends.set()
        self._thread.join(timeout=10.0)
