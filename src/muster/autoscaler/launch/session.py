"""Opens a cluster for one command of a user: its file, its files on this computer, its provider and machines.

Used by `up`, `down` and every command that reaches the head or workers of a running cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.known_clusters import cluster_file
from muster.autoscaler.launch.head_file import (
    NO_OVERRIDES,
    Overrides,
    gcs_port,
    head_commands,
    with_overrides,
)
from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.cluster.ports import CloudProvider
from muster.config.document import Document
from muster.config.load import load_config, parse_config
from muster.config.node_launch import SizeSource, any_size, machine_type, node_launches, size_of
from muster.config.prices import load_prices, price_file
from muster.config.rack import rack_hosts
from muster.config.schema import ClusterConfig
from muster.errors import ClusterError
from muster.host.atomic_write import atomic_write
from muster.providers.aws.names import with_access
from muster.providers.bootstrap import CompletedConfig, completed
from muster.providers.registry import ProviderContext, build_provider, check_provider
from muster.providers.runners import Reach, address_of, runner_of
from muster.providers.v1.failures import ShieldedProvider
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    NODE_KIND_WORKER,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
)
from muster.remote.runner import CommandRunner

Report = Callable[[str, str], None]  # takes a node ("" for the cluster) and the step that begins there


@dataclass(frozen=True)
class LaunchContext:
    """A LaunchContext is what a launcher needs of this computer."""

    root: Path  # of the clusters' homes
    environment: Mapping[str, str]
    clock: Clock
    ids: IdSource
    report: Report = field(default=lambda node, step: None)


class LaunchRecord(Struct, frozen=True, kw_only=True):
    """A LaunchRecord is what `up` leaves on this computer: by it a cluster is found by its name."""

    cluster_name: str
    config: str  # the user's file
    head_ip: str = ""
    head_id: str = ""
    address: str = ""  # of the GCS
    head_home: str = ""  # the cluster's directory on the head
    python: str = ""  # on the head, that has muster
    is_up: bool = False  # False: `up` was begun, and ended before it was done
    request: str = ""  # of the last `up`
    shares_home: bool = False  # the head has the same HOME directory, as with homes on NFS


class Machine(Struct, frozen=True, kw_only=True):
    """A Machine is one that the provider lists."""

    node_id: str
    node_type: str
    ip: str
    tags: Mapping[str, str]


def read_launch(home: ClusterHome) -> LaunchRecord | None:
    """Returns None where no `up` was begun."""
    try:
        return msgspec.json.decode(home.launch.read_bytes(), type=LaunchRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class ClusterSession:
    """A ClusterSession is one cluster while a command works on it; use it in a `with` statement."""

    def __init__(
        self,
        context: LaunchContext,
        file: Path,
        overrides: Overrides = NO_OVERRIDES,
        sizes: SizeSource = any_size,
    ) -> None:
        """Raises ConfigError or ClusterError for a file that cannot be launched.

        No provider is asked yet, unless `sizes` does: that of `up`, which needs to know what machines have.
        """
        self.context, self.file = context, file.expanduser().resolve()
        written = load_config(file, context.environment, any_size)
        check_launchable(written, file)
        load_prices(written, self.file)  # a mistake in it is one before anything is started
        self.data: dict[str, Any] = with_overrides(Document.load(file).data, overrides)
        if written.provider.type == "aws":
            self.data = with_access(self.data, self.data.get("cluster_name") or written.cluster_name)
        prices = price_file(written, self.file)
        if prices is not None:
            self.data["muster"] = {**self.data["muster"], "prices": str(prices)}
        text = yaml.safe_dump(self.data, sort_keys=False, allow_unicode=True)
        self.config = parse_config(Document(text, str(file)), context.environment, sizes)
        if sizes is not any_size:
            self.data = with_told_sizes(self.data, self.config)
        self.home = ClusterHome.of(self.config.cluster_name, context.root)
        self.filled: dict[str, Any] | None = None
        self._port: CloudProvider | None = None
        self._close: Callable[[], None] = lambda: None

    def __enter__(self) -> ClusterSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    # -- the provider -----------------------------------------------------------------------------

    def bootstrap(self) -> None:
        """Lets the provider's class complete the file, as the first step of `up`: it may make things."""
        if self.config.provider.type == "aws":
            from muster.providers.aws.account import prepare

            prepare(self.bare_provider, self.config, lambda step: self.context.report("", step))
            return
        done: CompletedConfig = completed(self.config)
        if done.answer != self.config:
            self.filled = {
                "provider": done.answer.provider.settings(),
                "auth": done.answer.auth.settings(),
                "available_node_types": {
                    name: {
                        **(self.data.get("available_node_types", {}).get(name) or {}),
                        "node_config": entry.node_config or {},
                        "resources": dict(entry.resources),
                    }
                    for name, entry in done.answer.available_node_types.items()
                },
            }
        self.config = done.answer
        self._close()  # one that was asked before knew only what the user wrote
        self._port, self._close = None, lambda: None

    @property
    def port(self) -> CloudProvider:
        if self._port is None:
            self.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            context = ProviderContext(
                cluster_name=self.config.cluster_name,
                home=self.home.path,
                address="",
                clock=self.context.clock,
                ids=self.context.ids,
                environment=self.context.environment,
            )
            made = build_provider(self.config, lambda: node_launches(self.config), context)
            self._port, self._close = made, made.close
        return self._port

    @property
    def bare_provider(self) -> Any:  # noqa: ANN401 - duck typed
        """Returns the v1 object itself."""
        return getattr(self.port, "v1")  # noqa: B009 - of V1Adapter

    @property
    def node_provider(self) -> Any:  # noqa: ANN401 - duck typed
        """Returns the v1 object; whatever its methods raise is an Exception."""
        return ShieldedProvider(self.bare_provider)

    # -- machines ---------------------------------------------------------------------------------

    def machines(self, kind: str) -> list[Machine]:
        v1 = self.node_provider
        found = []
        for node_id in v1.non_terminated_nodes({TAG_RAY_NODE_KIND: kind}):
            tags = dict(v1.node_tags(node_id))
            ip = address_of(self.config, v1, node_id, is_inside=False)
            node_type = tags.get(TAG_RAY_USER_NODE_TYPE, "")
            found.append(Machine(node_id=node_id, node_type=node_type, ip=ip, tags=tags))
        return found

    def head(self) -> Machine | None:
        """Returns the head; of a rack the one on the host that the file names: a lost one is remembered."""
        heads = self.machines(NODE_KIND_HEAD)
        if self.config.provider.type == "local":
            named = [ip for ip, host in rack_hosts(self.config).items() if host.is_head]
            heads = [one for one in heads if one.ip in named]
        return heads[0] if heads else None

    def earlier_heads(self) -> list[Machine]:
        """Returns the heads of a rack on hosts that the file does not name as the head any more."""
        if self.config.provider.type != "local":
            return []
        named = [ip for ip, host in rack_hosts(self.config).items() if host.is_head]
        return [one for one in self.machines(NODE_KIND_HEAD) if one.ip not in named]

    def running_head(self) -> Machine:
        """Returns the head. Raises ClusterError when there is none."""
        head = self.head()
        if head is None:
            raise ClusterError(
                f"cluster {self.config.cluster_name!r} has no head: `muster up {self.file}` starts it"
            )
        return head

    def workers(self) -> list[Machine]:
        return self.machines(NODE_KIND_WORKER)

    def runner(self, node_id: str, *, login_shell: bool = False, is_head: bool = True) -> CommandRunner:
        v1 = self.bare_provider
        reach = Reach(pins=self.home.path / "known_hosts", is_inside=False, login_shell=login_shell)
        return runner_of(self.config, v1, node_id, reach, is_head=is_head)

    # -- files here -------------------------------------------------------------------------------

    def record(self) -> LaunchRecord:
        found = read_launch(self.home)
        return found or LaunchRecord(cluster_name=self.config.cluster_name, config=str(self.file))

    def write_record(self, **changes: Any) -> LaunchRecord:  # noqa: ANN401 - of its fields
        record = replace(self.record(), config=str(self.file), **changes)
        self.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(self.home.launch, msgspec.json.encode(record), mode=0o600)
        return record

    def address(self, head: Machine) -> str:
        """Returns the GCS's address; the head's own, since nodes connect to it, not this computer."""
        inner = str(self.node_provider.internal_ip(head.node_id) or head.ip)
        return f"{inner}:{gcs_port(head_commands(self.config))}"


def check_launchable(config: ClusterConfig, file: Path) -> None:
    """Raises ConfigError or ClusterError for a cluster that has no head on another machine."""
    check_provider(config, str(file))
    kind = config.provider.type
    if kind in ("process", "readonly"):
        where = (
            "on this computer: `ray` and `muster` reach it directly" if kind == "process" else "only watched"
        )
        raise ClusterError(f"a cluster of provider type {kind!r} is {where}; this command is for others")


def with_told_sizes(data: Mapping[str, Any], config: ClusterConfig) -> dict[str, Any]:
    """Returns the file's data with the resources of machine types that only the cloud knows.

    They go to the head: it may not be allowed to ask.
    """
    types = {
        name: {**entry, "resources": dict(config.available_node_types[name].resources)}
        for name, entry in (data.get("available_node_types") or {}).items()
        if config.provider.type == "aws"
        and entry.get("resources") is None
        and size_of("aws", machine_type("aws", entry.get("node_config") or {})) is None
    }
    return (
        {**data, "available_node_types": {**data["available_node_types"], **types}} if types else dict(data)
    )


def open_session(
    word: str,
    context: LaunchContext,
    overrides: Overrides = NO_OVERRIDES,
    sizes: SizeSource = any_size,
) -> ClusterSession:
    """Opens the cluster of a file, or of a name that was launched from here."""
    file = cluster_file(word)
    if file is None:
        record = read_launch(ClusterHome.of(word, context.root))
        if record is None:
            raise ClusterError(f"no cluster {word!r} was launched from here; name its file instead")
        file = Path(record.config)
    return ClusterSession(context, file, overrides, sizes)
