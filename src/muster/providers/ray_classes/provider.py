"""CompatProvider is a v1 provider over the classes of the user's Ray: one object per zone, seen as one.

Made by the registry for `type: gcp|azure|vsphere|aliyun`. It shields the loop from what these classes are
known for: calls that never return, a "not found" for a machine that was just taken, one zone only.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from muster.base.clock import Clock
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.cluster.model import Offer
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError, MusterError
from muster.host.atomic_write import atomic_write
from muster.host.call_threads import ThreadPool
from muster.providers.node_provider import NodeProvider
from muster.providers.ray_classes.clouds import CLOUDS, node_config_for, settings_in, zones_of
from muster.providers.v1.failures import provider_call

logger = logging.getLogger(__name__)

ZONES_FILE = "zones.json"
LIST_TRIES = 3  # a machine that goes while a class lists can make the whole list "not found"
STALE_S = 600.0  # how long the last list of a zone counts, while the zone cannot be listed
TIMEOUT_KEY = "call_timeout_s"  # ours, of `provider`
LOOK_S = 60.0
CHANGE_S = 900.0  # classes of Ray's wait in create calls until the cloud has done all of it
_LOOKS = frozenset(
    {"external_ip", "internal_ip", "is_running", "is_terminated", "node_tags", "non_terminated_nodes"}
)


def make_compat(config: ClusterConfig, home: Path, clock: Clock, found: type[Any]) -> CompatProvider:
    """Return the provider; zones that the cluster ever had are remembered in its home."""
    settings = {k: v for k, v in config.provider.settings().items() if k != TIMEOUT_KEY}
    limit_s = config.provider.settings().get(TIMEOUT_KEY, LOOK_S)
    if not isinstance(limit_s, int | float) or isinstance(limit_s, bool) or not 0 < limit_s <= CHANGE_S:
        raise ConfigError(
            f"must be seconds, more than 0 and at most {CHANGE_S:g}", path=f"provider.{TIMEOUT_KEY}"
        )
    zones = zones_of(config)
    known = _remembered(home, zones) if zones != ("",) else zones
    kind, name = config.provider.type, config.cluster_name

    def make(zone: str) -> GuardedObject:
        return GuardedObject(lambda: found(settings_in(kind, settings, zone), name), look_s=float(limit_s))

    return CompatProvider(settings, name, {zone: make(zone) for zone in known}, clock)


def _remembered(home: Path, zones: Sequence[str]) -> tuple[str, ...]:
    """Return the zones with those of earlier files: machines there are still ours to list and to end."""
    file = home / ZONES_FILE
    try:
        before = [str(zone) for zone in json.loads(file.read_bytes())]
    except (FileNotFoundError, ValueError, TypeError):
        before = []
    known = tuple(dict.fromkeys([*zones, *before]))
    if list(known) != before:
        atomic_write(file, json.dumps(known).encode(), mode=0o600)
    return known


class CompatProvider(NodeProvider):
    """Shows the machines of all zones; a purchase goes to the object of its zone."""

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        objects: Mapping[str, GuardedObject],
        clock: Clock,
    ) -> None:
        super().__init__(provider_config, cluster_name)
        self.kind = str(provider_config["type"])
        self.buys_offers = CLOUDS[self.kind].write_terms is not None
        self.ids_ignore_case = CLOUDS[self.kind].ids_ignore_case
        self._objects, self._clock = dict(objects), clock
        self._zones: dict[str, str] = {}  # of machines: node id -> zone
        self._lists: dict[str, tuple[float, list[str]]] = {}  # by zone: when, and what it had
        self._changes = OnChange(logger)

    # -- looking ----------------------------------------------------------------------------------

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """List every zone; one that cannot be listed now is as it was, for a while, and then an error."""
        found: dict[str, str] = {}
        for zone, one in self._objects.items():
            found.update(dict.fromkeys(self._listed(zone, one, tag_filters), zone))
        self._zones.update(found)
        return list(found)

    def _listed(self, zone: str, one: GuardedObject, tag_filters: dict[str, str]) -> list[str]:
        for attempt in range(1, LIST_TRIES + 1):
            try:
                names = [str(name) for name in one.call("non_terminated_nodes", dict(tag_filters))]
            except Exception as error:  # noqa: BLE001 - raised again below, unless an older list will do
                if is_not_found(error) and attempt < LIST_TRIES:
                    continue
                return self._last_list(zone, tag_filters, error)
            if not tag_filters:
                self._lists[zone] = self._clock.monotonic(), names
                self._changes.forget(zone)
            return names
        raise AssertionError("a loop that returns")

    def _last_list(self, zone: str, tag_filters: dict[str, str], error: Exception) -> list[str]:
        """With one zone there is nothing to protect from it; with filters nothing may be guessed."""
        at, names = self._lists.get(zone, (float("-inf"), []))
        if len(self._objects) == 1 or tag_filters or self._clock.monotonic() - at > STALE_S:
            raise error
        text = f"zone {zone} cannot be listed, so its machines are taken to be as before: {error_text(error)}"
        self._changes.log(logging.WARNING, zone, text)
        return names

    def is_running(self, node_id: str) -> bool:
        return bool(self._ask(node_id, "is_running", gone=False))

    def is_terminated(self, node_id: str) -> bool:
        return bool(self._ask(node_id, "is_terminated", gone=True))

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Return the tags; none for a machine that is gone, so that no list shows it."""
        return dict(self._ask(node_id, "node_tags", gone={}))

    def internal_ip(self, node_id: str) -> str | None:
        found = self._ask(node_id, "internal_ip", gone=None)
        return None if found is None else str(found)

    def external_ip(self, node_id: str) -> str | None:
        found = self._ask(node_id, "external_ip", gone=None)
        return None if found is None else str(found)

    def _ask(self, node_id: str, method: str, *arguments: object, gone: object) -> Any:  # noqa: ANN401
        """Ask the zone of a machine, or all zones for one that no list has shown; `gone` without it."""
        zone = self._zones.get(node_id)
        objects = self._objects.values() if zone is None else (self._objects[zone],)
        for one in objects:
            try:
                return one.call(method, node_id, *arguments)
            except Exception as error:
                if not is_not_found(error) and not (
                    zone is None and isinstance(error, KeyError | ValueError)
                ):
                    raise
        return gone

    # -- doing ------------------------------------------------------------------------------------

    def create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any] | None:
        return self.create_node_with_resources_and_labels(node_config, tags, count, {}, {})

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> dict[str, Any] | None:
        """Launch in the zone and on the market of the offer, with the most that the class takes."""
        terms = node_config.get("offer")
        offer = Offer(zone=terms["zone"], market=terms["market"]) if terms else None
        config, zone = node_config_for(self.kind, node_config, offer, tuple(self._objects))
        one = self._objects[zone]
        if one.has("create_node_with_resources_and_labels"):
            made = one.call(
                "create_node_with_resources_and_labels", config, dict(tags), count, resources, labels
            )
        elif one.has("create_node_with_resources"):
            made = one.call("create_node_with_resources", config, dict(tags), count, resources)
        else:
            made = one.call("create_node", config, dict(tags), count)
        if isinstance(made, Mapping):
            self._zones.update(dict.fromkeys(map(str, made), zone))
            return {str(node_id): known for node_id, known in made.items()}
        return None

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._ask(node_id, "set_node_tags", dict(tags), gone=None)

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        """End a machine; one that is gone is not an error."""
        self._ask(node_id, "terminate_node", gone=None)
        return None

    def terminate_nodes(self, node_ids: Sequence[str]) -> dict[str, Any] | None:
        """End machines one by one: of a class that ends many in one call, one that is gone fails all."""
        for node_id in dict.fromkeys(node_ids):
            self.terminate_node(node_id)
        return None

    def prepare_for_head_node(self, cluster_config: dict[str, Any]) -> dict[str, Any]:
        first = next(iter(self._objects.values()))
        if not first.has("prepare_for_head_node"):
            return cluster_config
        prepared = first.call("prepare_for_head_node", cluster_config)
        return prepared if isinstance(prepared, dict) else cluster_config

    def close(self) -> None:
        for one in self._objects.values():
            one.close()


class CallTimedOut(MusterError):
    """A provider did not return in time; what it did is not known."""

    retryable = True


class GuardedObject:
    """One object of a provider's class, whose calls come back in time."""

    def __init__(self, make: Callable[[], Any], look_s: float = LOOK_S, change_s: float = CHANGE_S) -> None:
        self._make, self._look_s, self._change_s = make, look_s, change_s
        self._object: Any = None
        self._threads = ThreadPool("muster-compat")
        self._lock = threading.Lock()

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - duck typed
        """Return what the method returns; raises CallTimedOut, or what it raised."""
        limit_s = self._look_s if method in _LOOKS else self._change_s
        return self._timed(method, limit_s, lambda made: getattr(made, method)(*arguments))

    def has(self, method: str) -> bool:
        """Return whether the class has the method; the object is made for it."""
        return bool(self._timed(method, self._look_s, lambda made: callable(getattr(made, method, None))))

    def _timed(self, name: str, limit_s: float, work: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        future = self._threads.submit(lambda: provider_call(lambda: work(self._made())))
        if not wait((future,), limit_s).done:
            with self._lock:
                self._object = None
            raise CallTimedOut(f"the provider's {name} did not return within {limit_s:g} s")
        return future.result()

    def close(self) -> None:
        self._threads.close()

    def _made(self) -> Any:  # noqa: ANN401 - duck typed
        made = self._object
        if made is None:
            made = provider_call(self._make)
            with self._lock:
                self._object = made = self._object or made
        return made


def is_not_found(error: BaseException) -> bool:
    """Return whether a cloud said that something is not there (any more)."""
    current: BaseException | None = error
    for _ in range(5):
        if current is None:
            return False
        if _status_of(current) in (404, 410) or _has_code(current):
            return True
        current = current.__cause__ or current.__context__
    return False


def _status_of(error: BaseException) -> int:
    """Return the HTTP status, wherever the libraries of the clouds keep it; 0 without one."""
    response = getattr(error, "resp", None) or getattr(error, "response", None)
    for owner in (error, response):
        for name in ("status", "status_code", "code", "http_status"):
            value = getattr(owner, name, None)
            if isinstance(value, int | str) and str(value).isdecimal():
                return int(value)
    return 0


def _has_code(error: BaseException) -> bool:
    words = [
        type(error).__name__,
        *(str(getattr(error, name, "")) for name in ("error_code", "reason", "code")),
    ]
    plain = {"".join(letter for letter in word.lower() if letter.isalpha()) for word in words}
    return any("notfound" in word or "doesnotexist" in word for word in plain)
