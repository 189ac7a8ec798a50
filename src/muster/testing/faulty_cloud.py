"""FaultyCloud is a v1 provider without machines that misbehaves as instructed, in tests or from a YAML file.

Example:
    provider:
      type: external
      module: muster.testing.faulty_cloud.FaultyCloud
      disable_node_updaters: true
      state: /tmp/cloud.json
      faults:
        - {fault: fail, call: non_terminated_nodes, times: 2, of: 3}
"""

from __future__ import annotations

import copy
import fcntl
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, convert

from muster.base.clock import Clock, SystemClock
from muster.base.text import did_you_mean
from muster.cluster.model import FailureKind
from muster.errors import (
    CapacityExhausted,
    ConfigError,
    ProviderDenied,
    ProviderError,
    ProviderMisconfigured,
    QuotaExceeded,
    Throttled,
)
from muster.providers.node_provider import NodeProvider

Kind = Literal[
    "fail",  # `call` raises an error of `kind`, before it does anything
    "reply_lost",  # create_node makes the machines, and raises TimeoutError
    "slow",  # `call` takes `seconds` longer
    "hang",  # `call` does not return, until `release()`
    "returns",  # `call` returns `value` instead of its answer
    "list_late",  # a new machine is missing from so many `lists`, and its node has not joined
    "node_first",  # the same, but its node has joined already
    "list_omits",  # a list leaves one machine out
    "ends_late",  # a terminated machine stays on so many `lists`
    "ends_never",  # terminate_node returns, and the machine stays
    "short",  # create_node makes `by` fewer, without saying so
    "ids_reused",  # the id of a terminated machine is used again
    "tags_lost",  # these `tags` (all, when none are named) of create_node are not kept
    "one_address",  # all machines have the same address
]
_KINDS = get_args(Kind)
_ONCE = ("list_omits",)  # these hit once, unless `times` says otherwise; the others always
_OF_A_CALL = ("slow", "hang", "fail", "returns")  # these say which call they are about
_ERRORS: Mapping[str, type[Exception]] = {
    FailureKind.CAPACITY.value: CapacityExhausted,
    FailureKind.QUOTA.value: QuotaExceeded,
    FailureKind.THROTTLED.value: Throttled,
    FailureKind.PERMISSION.value: ProviderDenied,
    FailureKind.CONFIG.value: ProviderMisconfigured,
    FailureKind.UNKNOWN.value: ProviderError,
    "connection": ConnectionError,
}
Call = Literal[
    "non_terminated_nodes",
    "is_running",
    "is_terminated",
    "node_tags",
    "set_node_tags",
    "internal_ip",
    "external_ip",
    "create_node",
    "terminate_node",
]
ErrorKind = Literal["capacity", "quota", "throttled", "permission", "config", "unknown", "connection"]
Count = Annotated[int, Meta(ge=0)]
T = TypeVar("T")


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong: `times` of every `of` calls, after the first `after` of them."""

    fault: Kind
    call: Call | None = None  # the method it is about; "fail", "slow", "hang" and "returns" need it
    kind: ErrorKind = "unknown"
    times: Count | None = None  # None: always ("list_omits": once)
    of: Annotated[int, Meta(ge=1)] | None = None
    after: Count = 0
    seconds: Annotated[float, Meta(ge=0)] = 1.0
    lists: Count = 1
    by: Count = 1
    tags: tuple[str, ...] = ()
    value: Any = None

    def hits(self, number: int) -> bool:
        """Return whether the call with this number (from 0) is hit."""
        number -= self.after
        if number < 0:
            return False
        times = 1 if self.times is None and self.fault in _ONCE else self.times
        return times is None or (number if self.of is None else number % self.of) < times


def faults_of(entries: object) -> tuple[Fault, ...]:
    """Return the faults of a `provider` section; ConfigError names the entry and the fix."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ConfigError("must be a list, for example [{fault: short, by: 1}]", path="provider.faults")
    found = []
    for number, entry in enumerate(entries):
        path = f"provider.faults[{number}]"
        try:
            fault = entry if isinstance(entry, Fault) else convert(entry, Fault)
        except ValidationError as error:
            name = entry.get("fault") if isinstance(entry, Mapping) else None
            near = did_you_mean(str(name), _KINDS) or f"faults are {', '.join(_KINDS)}"
            hint = "docs/providers.md lists the keys" if name in _KINDS else near
            raise ConfigError(f"{error}", path=path, fix=f"{hint}") from None
        if fault.call is None and fault.fault in _OF_A_CALL:
            raise ConfigError(f"'{fault.fault}' needs a call, for example call: create_node", path=path)
        found.append(fault)
    return tuple(found)


class _State:
    """The cloud itself: machines, and how often each fault was asked; shared by all objects."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"next": 1, "machines": {}, "asked": {}}
        self.lock = threading.RLock()

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        with self.lock:
            yield self.data


class _FileState(_State):
    """Keeps the cloud in a file, so that it outlives the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        with self.lock, self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            data = json.loads(text) if text else copy.deepcopy(self.data)
            yield data
            if (changed := json.dumps(data)) != text:
                file.seek(0)
                file.truncate()
                file.write(changed)


_clouds: dict[str, _State] = {}
_clouds_lock = threading.Lock()


def _cloud(state: object, cluster_name: str) -> _State:
    """Return the cloud in a file, or the one of a cluster in this process."""
    with _clouds_lock:
        key = f"file {state}" if state else f"memory {cluster_name}"
        if key not in _clouds:
            _clouds[key] = _FileState(Path(str(state)).expanduser()) if state else _State()
        return _clouds[key]


class FaultyCloud(NodeProvider):
    """Sells machines that do not exist; `faults` of its section say what goes wrong.

    With `state` (a file) the machines outlive the process; without, they live in it, by cluster.
    """

    clock: ClassVar[Clock] = SystemClock()

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.faults = faults_of(provider_config.get("faults", ()))
        self._state = _cloud(provider_config.get("state"), cluster_name)
        self._released = threading.Event()

    # -- what is true, for tests ----------------------------------------------------------------------

    def machines(self) -> dict[str, dict[str, Any]]:
        """Return every living machine of the cluster, listed or not."""
        with self._state.open() as cloud:
            living = {n: one for n, one in cloud["machines"].items() if self._is_living(one)}
            return copy.deepcopy(living)

    def joined(self) -> list[str]:
        """Return the machines whose node has joined the runtime; with `node_first`, unlisted ones, too."""
        return [n for n, one in self.machines().items() if not one["late"] or one["node_first"]]

    def release(self) -> None:
        """End every call that hangs."""
        self._released.set()

    # -- looking ----------------------------------------------------------------------------------------

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        def answer(cloud: dict[str, Any]) -> list[str]:
            listed = [(n, one["tags"]) for n, one in cloud["machines"].items() if self._is_listed(one)]
            found = [node_id for node_id, tags in listed if tag_filters.items() <= tags.items()]
            return found[:-1] if found and self._hit("list_omits", cloud) else found

        return self._call("non_terminated_nodes", answer)

    def is_running(self, node_id: str) -> bool:
        return self._call("is_running", lambda cloud: self._is_living(self._machine(cloud, node_id)))

    def is_terminated(self, node_id: str) -> bool:
        return self._call("is_terminated", lambda cloud: not self._is_living(self._machine(cloud, node_id)))

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._call("node_tags", lambda cloud: dict(self._machine(cloud, node_id)["tags"]))

    def internal_ip(self, node_id: str) -> str | None:
        return self._call("internal_ip", lambda cloud: str(self._machine(cloud, node_id)["ip"]))

    def external_ip(self, node_id: str) -> str | None:
        return self._call("external_ip", lambda cloud: None)

    # -- doing ------------------------------------------------------------------------------------------

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._call("set_node_tags", lambda cloud: self._machine(cloud, node_id)["tags"].update(tags))

    def create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any] | None:
        def answer(cloud: dict[str, Any]) -> dict[str, Any] | None:
            short = next((one.by for one in self._hitting("short", cloud)), None)
            made = [self._make(cloud, tags) for _ in range(max(0, count - (short or 0)))]
            return None if short is not None else {node_id: {} for node_id in made}

        made = self._call("create_node", answer)
        with self._state.open() as cloud:
            is_lost = self._hit("reply_lost", cloud)
        if is_lost:
            raise TimeoutError("faulty cloud: the reply to the create call was lost")
        return made

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        def answer(cloud: dict[str, Any]) -> None:
            machine = self._machine(cloud, node_id)
            late = next((one.lists for one in self._hitting("ends_late", cloud)), 0)
            if not self._hit("ends_never", cloud) and machine["state"] == "running":
                machine["state"], machine["looks"] = "ended", late

        return self._call("terminate_node", answer)

    def _make(self, cloud: dict[str, Any], tags: Mapping[str, str]) -> str:
        machines = cloud["machines"]
        late = [*self._hitting("list_late", cloud), *self._hitting("node_first", cloud)]
        lost = {tag for one in self._hitting("tags_lost", cloud) for tag in one.tags or tags}
        gone = [n for n, one in machines.items() if self._is_gone(one)]
        number, cloud["next"] = cloud["next"], cloud["next"] + 1
        node_id = gone[0] if gone and self._hit("ids_reused", cloud) else f"machine-{number}"
        is_alone = not self._hit("one_address", cloud)
        machines.pop(node_id, None)  # a machine with a used id is the newest one
        machines[node_id] = {
            "cluster": self.cluster_name,
            "state": "running",
            "tags": {key: value for key, value in tags.items() if key not in lost},
            "ip": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}" if is_alone else "10.0.0.1",
            "late": max((one.lists for one in late), default=0),
            "node_first": any(one.fault == "node_first" for one in late),
            "looks": 0,
        }
        return node_id

    # -- faults -----------------------------------------------------------------------------------------

    def _call(self, name: str, answer: Callable[[dict[str, Any]], T]) -> T:
        """Answer a call, with the faults that hit it."""
        with self._state.open() as cloud:
            hitting = [one for kind in _OF_A_CALL for one in self._hitting(kind, cloud, name)]
        for one in hitting:
            if one.fault == "slow":
                self.clock.sleep(one.seconds)
            elif one.fault == "hang":
                self._released.wait()
            if one.fault == "fail":
                raise _ERRORS[one.kind](f"faulty cloud: {name} was refused ({one.kind})")
        with self._state.open() as cloud:
            result = answer(cloud)
        instead: list[T] = [copy.deepcopy(one.value) for one in hitting if one.fault == "returns"]
        return instead[0] if instead else result

    def _hitting(self, kind: str, cloud: dict[str, Any], call: str | None = None) -> list[Fault]:
        """Return the faults of a kind that happen now, and counts that they were asked for."""
        found = []
        for number, fault in enumerate(self.faults):
            if fault.fault == kind and call in (None, fault.call):
                key = f"{number} {kind}"
                asked = cloud["asked"].get(key, 0)
                cloud["asked"][key] = asked + 1
                if fault.hits(asked):
                    found.append(fault)
        return found

    def _hit(self, kind: str, cloud: dict[str, Any]) -> bool:
        return bool(self._hitting(kind, cloud))

    def _machine(self, cloud: dict[str, Any], node_id: str) -> dict[str, Any]:
        found: dict[str, Any] | None = cloud["machines"].get(node_id)
        if found is None or found["cluster"] != self.cluster_name:
            raise KeyError(f"cluster {self.cluster_name!r} has no machine {node_id!r}")
        return found

    def _is_gone(self, machine: Mapping[str, Any]) -> bool:
        ended = machine["state"] == "ended" and not machine["looks"]
        return bool(ended and machine["cluster"] == self.cluster_name)

    def _is_living(self, machine: Mapping[str, Any]) -> bool:
        return bool(machine["cluster"] == self.cluster_name and machine["state"] == "running")

    def _is_listed(self, machine: dict[str, Any]) -> bool:
        """Return whether a list shows a machine now; one that is late, or ends late, comes a list nearer."""
        if machine["cluster"] != self.cluster_name:
            return False
        waits_for = "late" if machine["state"] == "running" else "looks"
        if not machine[waits_for]:
            return bool(machine["state"] == "running")
        machine[waits_for] -= 1
        return waits_for == "looks"
