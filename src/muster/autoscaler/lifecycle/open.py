"""Open a cluster for one command of a user: its file, its files on this computer, its provider and machines.

Used by `up`, `down` and every command that reaches the head or workers of a running cluster.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.known_clusters import cluster_file, cluster_name, find_cluster
from muster.autoscaler.lifecycle.head_file import (
    NO_OVERRIDES,
    Overrides,
    gcs_port,
    head_commands,
    with_overrides,
)
from muster.autoscaler.status_files import ClusterRecord, HeadRecord, read_record, write_record
from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.base.text import counted
from muster.cluster.model import NodeKind
from muster.cluster.states import ON_CLOUD
from muster.config.document import Document
from muster.config.load import SizeSource, any_size, is_cluster_name
from muster.config.prices import load_prices, price_file
from muster.config.schema import ClusterConfig, ProviderConfig
from muster.config.to_spec import node_launches
from muster.errors import ClusterError, ConfigError, MusterError
from muster.providers.kind import (
    HeadPolicy,
    ProviderContext,
    ProviderKind,
    build_provider,
    check_provider,
    kind_of,
    parse_config,
)
from muster.providers.machines import Machine, ManagedProvider, SshAccess
from muster.providers.process.launch_queue import NodeProgram, ray_head
from muster.providers.rack.host_list import rack_hosts
from muster.remote.ledger_copy import pull_ledger
from muster.remote.node_setup import Timing, timing_of
from muster.remote.runner import CommandRunner
from muster.stores.ledger.history import open_history

NODE_START_S = 900.0  # Ray's AUTOSCALER_NODE_START_WAIT_S
SSH_EVERY_S = 5.0  # Ray's AUTOSCALER_NODE_SSH_INTERVAL_S
Report = Callable[[str, str], None]  # takes a node ("" for the cluster) and the step that begins there


@dataclass(frozen=True)
class Programs:
    """What starts a head and a monitor on this computer; tests replace them by cheap ones."""

    head: NodeProgram = field(default_factory=ray_head)
    monitor: tuple[str, ...] = (sys.executable, "-m", "muster.cli.main", "monitor")


@dataclass(frozen=True)
class LaunchContext:
    """What the lifecycle of a cluster needs of this computer."""

    root: Path  # of the clusters' homes
    environment: Mapping[str, str]
    clock: Clock
    ids: IdSource
    report: Report = field(default=lambda node, step: None)
    programs: Programs = field(default_factory=Programs)  # of a head on this computer


@dataclass(frozen=True)
class RunningCluster:
    """What `up` started or found."""

    record: ClusterRecord
    auth: Mapping[str, str]  # paths on the head
    is_new: bool  # the head was started now
    is_changed: bool  # False: everything ran already, as the file says
    notes: tuple[str, ...] = ()


class OpenCluster:
    """One cluster while a command works on it; use it in a `with` statement."""

    def __init__(
        self,
        context: LaunchContext,
        file: Path,
        overrides: Overrides = NO_OVERRIDES,
        sizes: SizeSource = any_size,
    ) -> None:
        """Raise ConfigError or ClusterError for a file that cannot be launched.

        No provider is asked yet, unless `sizes` does: that of `up`, which needs to know what machines have.
        """
        self.context, self.file = context, file.expanduser().resolve()
        document = Document.load(file)
        written = parse_config(document, context.environment, any_size)
        check_provider(written, str(file))
        load_prices(written, self.file)  # a mistake in it is one before anything is started
        data = with_overrides(document.data, overrides)
        name = data.get("cluster_name") or written.cluster_name
        self.data: dict[str, Any] = kind_of(written).with_access(data, name)
        prices = price_file(written, self.file)
        if prices is not None:
            self.data["muster"] = {**self.data["muster"], "prices": str(prices)}
        self.config = parse_config(document.changed(self.data), context.environment, sizes)
        if sizes is not any_size:
            self.data = with_told_sizes(self.data, self.config)
        self.home = ClusterHome.of(self.config.cluster_name, context.root)
        self.filled: dict[str, Any] | None = None
        self._port: ManagedProvider | None = None
        self._close: Callable[[], None] = lambda: None

    @classmethod
    def of_record(cls, context: LaunchContext, record: ClusterRecord) -> OpenCluster:
        """Open a cluster as its monitor has left it, without its file; enough to stop it."""
        opened = cls.__new__(cls)
        section = dict(record.provider)
        provider = ProviderConfig(
            type=str(section.get("type", "")),
            module=section.get("module"),
            disable_node_updaters=bool(section.get("disable_node_updaters")),
            written=section,
        )
        opened.context, opened.file = context, Path(record.config)
        opened.config = ClusterConfig(cluster_name=record.cluster_name, provider=provider)
        opened.data = {"cluster_name": record.cluster_name, "provider": section}
        opened.home = ClusterHome.of(record.cluster_name, context.root)
        opened.filled, opened._port, opened._close = None, None, lambda: None
        return opened

    @property
    def kind(self) -> ProviderKind:
        return kind_of(self.config)

    def __enter__(self) -> OpenCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    # -- the provider -----------------------------------------------------------------------------

    def bootstrap(self) -> None:
        """Let the provider's class complete the file, as the first step of `up`: it may make things."""
        report = self.context.report
        answer = self.kind.prepare(self.config, lambda: self.port, lambda step: report("", step))
        if answer != self.config:
            self.filled = {
                "provider": answer.provider.settings(),
                "auth": answer.auth.settings(),
                "available_node_types": {
                    name: {
                        **(self.data.get("available_node_types", {}).get(name) or {}),
                        "node_config": entry.node_config or {},
                        "resources": dict(entry.resources),
                    }
                    for name, entry in answer.available_node_types.items()
                },
            }
            self._close()  # one that was asked before knew only what the user wrote
            self._port, self._close = None, lambda: None
        self.config = answer

    @property
    def port(self) -> ManagedProvider:
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

    # -- machines ---------------------------------------------------------------------------------

    def head(self) -> Machine | None:
        """Return the head; of a rack the one on the host that the file names: a lost one is remembered."""
        heads = self.port.machines(NodeKind.HEAD)
        if self.kind.head is HeadPolicy.HOST:
            named = [ip for ip, host in rack_hosts(self.config).items() if host.is_head]
            heads = [one for one in heads if one.ip in named]
        return heads[0] if heads else None

    def earlier_heads(self) -> list[Machine]:
        """Return the heads of a rack on hosts that the file does not name as the head any more."""
        if self.kind.head is not HeadPolicy.HOST:
            return []
        named = [ip for ip, host in rack_hosts(self.config).items() if host.is_head]
        return [one for one in self.port.machines(NodeKind.HEAD) if one.ip not in named]

    def running_head(self) -> Machine:
        """Return the head. Raises ClusterError when there is none."""
        head = self.head()
        if head is None:
            raise ClusterError(
                f"cluster {self.config.cluster_name!r} has no head: `muster up {self.file}` starts it"
            )
        return head

    def workers(self) -> list[Machine]:
        return self.port.machines(NodeKind.WORKER)

    def notes_on_removed_types(self) -> tuple[str, ...]:
        """Return a note about workers whose node type the file no longer has; it is not worth a failure."""
        try:
            types = Counter(one.node_type for one in self.workers())
        except Exception:  # noqa: BLE001 - a provider may raise anything
            return ()
        until = "removed when idle, and included in max_workers until then"
        return tuple(
            f"{counted(count, 'worker')} of type {name}, which the file no longer has: {until}"
            for name, count in types.items()
            if name not in self.config.available_node_types
        )

    def runner(
        self, node_id: str, *, login_shell: bool = False, is_head: bool = True, is_setup: bool = False
    ) -> CommandRunner:
        pins = self.home.path / "known_hosts"
        access = SshAccess(pins=pins, is_inside=False, login_shell=login_shell, is_setup=is_setup)
        return self.port.runner(self.config, node_id, access, is_head=is_head)

    def head_timing(self) -> Timing:
        """Return how long the head is waited for; commands on it run once, as the user watches."""
        given, timing = self.context.environment, timing_of(self.config)
        ready_s = _number(given.get("AUTOSCALER_NODE_START_WAIT_S"), NODE_START_S)
        return replace(
            timing,
            ready_s=min(ready_s, self.kind.start_s),
            interval_s=_number(given.get("AUTOSCALER_NODE_SSH_INTERVAL_S"), SSH_EVERY_S),
            command_tries=1,
        )

    # -- files here -------------------------------------------------------------------------------

    def record(self) -> ClusterRecord:
        known = read_record(self.home)
        return known or ClusterRecord(cluster_name=self.config.cluster_name, config=str(self.file))

    def head_record(self) -> HeadRecord:
        return self.record().head or HeadRecord()

    def write_head(self, address: str = "", **changes: Any) -> ClusterRecord:  # noqa: ANN401 - of a HeadRecord
        """Write what is new about the head on another machine; the rest of the record stays."""
        record, head = self.record(), replace(self.head_record(), **changes)
        record = replace(record, config=str(self.file), address=address or record.address, head=head)
        self.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_record(self.home, record)
        return record

    async def pull_ledger(self, runner: CommandRunner) -> None:
        """Keep a copy of the head's ledger here; a later `up` on a new head starts from it."""
        head = self.head_record()
        with contextlib.suppress(MusterError, TimeoutError, OSError):
            await pull_ledger(
                runner,
                python=head.python or "python3",
                directory=head.home,
                cluster=self.config.cluster_name,
                target=self.home.backups,
            )

    def address(self, head: Machine) -> str:
        """Return the GCS's address; the head's own, since nodes connect to it, not this computer."""
        inner = self.port.internal_ip(head.node_id) or head.ip
        return f"{inner}:{gcs_port(head_commands(self.config))}"


def check_elsewhere(cluster: OpenCluster) -> None:
    """Raise ClusterError for a cluster that has no head on another machine."""
    if not cluster.kind.has_distant_head:
        name, place = cluster.kind.name, cluster.kind.head_place
        raise ClusterError(
            f"a cluster of provider type {name!r} is {place}", fix="this command is for others"
        )


def with_told_sizes(data: Mapping[str, Any], config: ClusterConfig) -> dict[str, Any]:
    """Return the file's data with the resources of machine types that only the cloud knows.

    They go to the head: it may not be allowed to ask.
    """
    types = {
        name: {**entry, "resources": dict(config.available_node_types[name].resources)}
        for name, entry in (data.get("available_node_types") or {}).items()
        if config.rules.asks_for_sizes
        and entry.get("resources") is None
        and config.rules.size_of(config.rules.machine_type(entry.get("node_config") or {})) is None
    }
    return (
        {**data, "available_node_types": {**data["available_node_types"], **types}} if types else dict(data)
    )


def open_cluster(
    word: str | Path,
    context: LaunchContext,
    overrides: Overrides = NO_OVERRIDES,
    sizes: SizeSource = any_size,
) -> OpenCluster:
    """Open the cluster of a file, or of a name that was launched from here."""
    file = word if isinstance(word, Path) else cluster_file(word)
    if file is None:
        record = read_record(ClusterHome.of(str(word), context.root)) if is_cluster_name(str(word)) else None
        if record is None:
            raise ClusterError(f"no cluster {word!r} was launched from here", fix="name its file instead")
        file = Path(record.config)
    return OpenCluster(context, file, overrides, sizes)


def open_to_stop(word: str, context: LaunchContext) -> OpenCluster:
    """Open a cluster for `down`; what its monitor has left is enough where the file cannot be used."""
    file, name = cluster_file(word), cluster_name(word)
    home = ClusterHome.of(name, context.root)
    record = read_record(home)
    if record is not None and record.head is None and record.provider:
        return OpenCluster.of_record(context, record)
    if file is None and record is None:
        home = find_cluster(word, context.root).home  # raises for a name that has no files
    try:
        if file is None and record is None:
            raise ConfigError("no monitor has left it")
        opened = OpenCluster(context, file or Path(record.config if record else ""))
    except ConfigError as error:
        if file is not None and record is None:
            raise
        left = [] if home.nodes.is_dir() or home.shadow.exists() else machines_of(home)
        if left:
            raise ClusterError(
                (
                    f"these machines may still run, and which provider ends them is not known ({error}): "
                    f"{', '.join(left)}"
                ),
                fix="name the cluster's file: `muster down FILE`",
            ) from error
        here = ClusterRecord(cluster_name=home.path.name, config="", provider={"type": "process"})
        return OpenCluster.of_record(context, here)
    return opened


def machines_of(home: ClusterHome) -> list[str]:
    """Return the workers that the ledger holds as launched."""
    if not home.ledger.is_file():
        return []
    with open_history(home.ledger) as history:
        records = history.find(states=ON_CLOUD)
    return [one.cloud_id for one in records if one.cloud_id and one.kind is not NodeKind.HEAD]


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        return default
