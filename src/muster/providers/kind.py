"""ProviderKind holds everything muster knows about one kind of provider (`provider: {type: ...}`).

A kind is one folder below `providers` with one value, and one line in `KINDS`; it is imported when it is
named. Nothing outside `providers` tests the type of a provider: it asks the kind. A kind states only what is
special about it. `load_config` reads a cluster file by the rules of its kind.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from muster.config.check import PLAIN_RULES, FileRules, MachineSize, nearest, shortened
from muster.config.document import Document
from muster.config.load import Plain, SizeSource, parse, table_only
from muster.config.prices import load_prices
from muster.config.schema import ClusterConfig
from muster.config.to_spec import NodeLaunch, to_spec
from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.base.clock import Clock
    from muster.base.ids import IdSource
    from muster.cluster.model import ClusterSpec, RuntimeReport
    from muster.cluster.ports import CloudProvider
    from muster.config.source import FileSpecSource
    from muster.providers.machines import ManagedProvider

logger = logging.getLogger(__name__)

Launches = Callable[[], Mapping[str, NodeLaunch]]  # today's node types, asked again for every launch
Report = Callable[[str], None]  # a step that begins, for the user


Describe = Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, MachineSize]]


@dataclass(frozen=True)
class ProviderContext:
    """What a provider needs of time, ids and the environment."""

    cluster_name: str
    home: Path  # the cluster's directory on this machine
    address: str  # of the GCS; "" where no head runs yet
    clock: Clock
    ids: IdSource
    auth: Mapping[str, str] = field(default_factory=dict)  # RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH
    environment: Mapping[str, str] = field(default_factory=dict)  # what new processes inherit
    runtime: Callable[[], RuntimeReport] | None = None  # the runtime's report, from which `readonly` lists
    current: Callable[[], ClusterConfig] | None = None  # the file as it is now; None: it does not change
    made: ManagedProvider | None = None  # shared with the source of the configuration; None: not made yet


class HeadPolicy(Enum):
    """Where the head of a cluster comes from."""

    NONE = "none"  # another tool runs the cluster: muster watches it, or is its sidecar
    HERE = "here"  # processes of this computer
    MACHINE = "machine"  # a machine that the provider creates
    HOST = "host"  # the host that the cluster file names


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong before anything is started: where, what, and the fix."""

    place: str  # an address or a cloud; "" for this computer
    problem: str
    fix: str
    is_fatal: bool = True
    key: tuple[str, ...] = ()  # of the cluster file, which `up` shows as the place

    def __str__(self) -> str:
        return f"{self.place or 'this computer'}: {self.problem}; {self.fix}"


def imported_from(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports another, and calls it: a kind must not import its clients."""

    def call(*given: Any) -> Any:  # noqa: ANN401 - of the other
        return getattr(importlib.import_module(module, __package__), name)(*given)

    return call


def _as_written(config: ClusterConfig, *context: object) -> ClusterConfig:
    return config


def _nothing(*values: object) -> tuple[()]:
    return ()


def _no_price_list(config: ClusterConfig, clock: Clock) -> str:
    raise ConfigError(f"muster cannot ask {config.provider.type!r} for its prices", path="provider.type")


def _no_sizes(provider: Mapping[str, Any], machine_types: Sequence[str]) -> Mapping[str, MachineSize]:
    return {}


@dataclass(frozen=True, kw_only=True)
class ProviderKind:
    """One kind of provider, as a value."""

    name: str  # of the cluster file: `provider.type`
    build: Callable[[ClusterConfig, Launches, ProviderContext], ManagedProvider]
    rules: FileRules = PLAIN_RULES  # of its cluster files
    head: HeadPolicy = HeadPolicy.MACHINE
    head_place: str = "on another machine"  # where its head is, for people
    place: Callable[[ClusterConfig], str] = lambda config: config.provider.type  # of its machines, for people
    has_workers: bool = False  # its workers are elsewhere although the head is on this computer
    head_ip: Callable[[ClusterConfig], str] = lambda config: "127.0.0.1"  # of a head on this computer
    # Raises ConfigError for a provider that can never be built; makes nothing and asks no cloud.
    check: Callable[[ClusterConfig], object] = _nothing
    live_keys: tuple[str, ...] = ()  # of `provider`: their edits apply while a monitor runs
    start_s: float = 3600.0  # the longest that `up` waits until the head's machine answers
    quiet_s: float = 2.0  # how long a list must stay empty until no machine is left

    # When a monitor starts: returns the file with what hosts or a user's class fill in.
    fill_in: Callable[[ClusterConfig, ProviderContext], ClusterConfig] = _as_written
    # For commands that reach machines: returns the plain data with the SSH key and the proxy command to use.
    with_access: Callable[[Mapping[str, Any], str], dict[str, Any]] = lambda data, cluster_name: dict(data)
    makes_key: bool = False  # `prepare` makes the SSH key that the file names, where it is missing
    # Before `up` creates machines: makes what they need, and returns the completed file. `provider()` builds
    # the provider, for kinds that need it.
    prepare: Callable[[ClusterConfig, Callable[[], CloudProvider], Report], ClusterConfig] = _as_written
    needed_rights: Callable[[ClusterConfig], str] = lambda config: ""  # of who runs `up`, for `--dry-run`
    # Returns what `prepare` makes and what the plan shows beside it, a line each.
    made_by_prepare: Callable[[ClusterConfig, Callable[[], CloudProvider]], Sequence[str]] = _nothing
    # Asks the cloud what would go wrong; None: muster asks for the list of machines instead.
    preflight: Callable[[CloudProvider, ClusterConfig, Report], Sequence[Finding]] | None = None
    # Removes what `prepare` has made; returns a line for each thing that is left.
    purge: Callable[[CloudProvider, ClusterConfig, Report], Sequence[str]] | None = None
    # Returns the sizes that the cloud describes: takes `provider` and machine types; the report is for notes.
    sizes: Callable[[Clock, Report], Describe] = lambda clock, report: _no_sizes
    # Returns a price file (CSV) from the cloud's own lists.
    price_list: Callable[[ClusterConfig, Clock], str] = _no_price_list

    @property
    def has_machines(self) -> bool:
        """Return whether the provider creates or takes machines in addition to this computer."""
        return self.has_workers or self.has_distant_head

    @property
    def has_distant_head(self) -> bool:
        """Return whether commands reach the head on another machine."""
        return self.head in (HeadPolicy.MACHINE, HeadPolicy.HOST)


# -- defaults and sizes that several kinds share ----------------------------------------------------------

HEAD_TYPE = "ray.head.default"
WORKER_TYPE = "ray.worker.default"

SSH: Plain = {"auth": {"ssh_user": "ubuntu"}}
RAY_START: Plain = {
    "head_start_ray_commands": ["ray start --head --port=6379 --no-monitor --disable-usage-stats"],
    "worker_start_ray_commands": ["ray start --address=$RAY_HEAD_IP:6379 --disable-usage-stats"],
}
# Keys of `provider` where machines come up with the runtime.
MANAGED: Plain = {"disable_node_updaters": True}


def two_types(machine: Plain, resources: Plain, head: str = HEAD_TYPE, worker: str = WORKER_TYPE) -> Plain:
    """Return defaults with a head type and a worker type that are alike."""
    one = {"resources": resources, "node_config": machine}
    return {"head_node_type": head, "available_node_types": {head: one, worker: one}}


def known_size(cloud: str, machine_type: str) -> MachineSize | None:
    """Return the size of a cloud's machine type; None for one that the table does not have."""
    return known_sizes().get((cloud, machine_type.lower()))


@cache
def known_sizes() -> dict[tuple[str, str], MachineSize]:
    """Read machine_sizes.txt; a line has cloud, CPUs, MiB, `resource=count:type` or `-`, and names."""
    sizes: dict[tuple[str, str], MachineSize] = {}
    table = Path(__file__).with_name("machine_sizes.txt").read_text(encoding="ascii")
    for line in table.splitlines():
        cloud, cpus, mib, extra, *names = line.split()
        resource, _, rest = extra.partition("=")
        count, _, kind = rest.partition(":")
        size = MachineSize(int(cpus), int(mib))
        if kind:
            size = MachineSize(size.cpus, size.memory_mib, resource, int(count), kind)
        sizes.update(((cloud, name), size) for name in names)
    return sizes


# -- the kinds ----------------------------------------------------------------------------------------

# By `provider.type`: the module, below this package where it starts with a dot, and the name of its value.
KINDS: dict[str, tuple[str, str]] = {
    "aliyun": (".ray_classes.kind", "ALIYUN"),
    "aws": (".aws.kind", "KIND"),
    "azure": (".ray_classes.kind", "AZURE"),
    "external": (".v1.kind", "KIND"),
    "gcp": (".ray_classes.kind", "GCP"),
    "kuberay": (".kuberay.kind", "KIND"),
    "local": (".rack.kind", "KIND"),
    "process": (".process.kind", "KIND"),
    "readonly": (".readonly", "KIND"),
    "slurm": (".slurm.kind", "KIND"),
    "vsphere": (".ray_classes.kind", "VSPHERE"),
}


class SparkRules(FileRules):
    """Ray's defaults."""

    defaults: ClassVar[Plain] = {
        "cluster_name": "spark",
        "max_workers": 8,
        "idle_timeout_minutes": 1.0,
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 8, "GPU": 0}, "node_config": {}, "max_workers": 0},
            "ray.worker": {
                "resources": {"CPU": 1, "object_store_memory": 1_000_000_000},
                "node_config": {},
                "max_workers": 4,
            },
        },
    }


# Types of `ray up` whose files can be read and planned with, but not run.
NOT_BUILT = {"fake_multinode": PLAIN_RULES, "fake_multinode_docker": PLAIN_RULES, "spark": SparkRules()}


class UnknownTypeRules(FileRules):
    """Refuse a type that nobody has."""

    def check(self, document: Document, config: ClusterConfig) -> None:
        name = config.provider.type
        hint = nearest(name, (*KINDS, *NOT_BUILT))
        raise document.error(
            ("provider", "type"),
            f"{shortened(name)} is not a provider; {hint} "
            "(your own class: type external, and its name as module)",
        )


def rules_named(name: str) -> FileRules:
    """Return the rules of the files of a provider type; for an unknown one, rules that refuse it."""
    return kind_named(name).rules if name in KINDS else NOT_BUILT.get(name, UnknownTypeRules())


def kind_named(name: str) -> ProviderKind:
    """Return the kind of a provider type. Raises ConfigError for a name that has none."""
    if name not in KINDS:
        raise ConfigError(_why_not(name), path="provider.type")
    module, value = KINDS[name]
    found: ProviderKind = getattr(importlib.import_module(module, __package__), value)
    return found


def kind_of(config: ClusterConfig) -> ProviderKind:
    """Return the kind of a cluster file. Raises ConfigError for a type that has none."""
    return kind_named(config.provider.type)


def check_provider(config: ClusterConfig, file: str = "") -> None:
    """Raise ConfigError for a provider that can never be built; make nothing and ask no cloud."""
    try:
        kind_of(config).check(config)
    except ConfigError as error:
        raise ConfigError(error.message, path=error.path, file=file, fix=error.fix) from error


def build_provider(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    """Return the provider of a cluster file; ConfigError names the key and the fix."""
    check_provider(config)
    return kind_of(config).build(config, launches, context)


def _why_not(name: str) -> str:
    if name in NOT_BUILT:
        return (
            f"{name!r} is not built yet; use type: external with module: my_package.MyProvider (a class"
            " written for Ray works unchanged), or type: process for nodes on this computer"
        )
    close = difflib.get_close_matches(name, KINDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(KINDS))}"
    return f"{name!r} is not a provider; {hint}"


_NO_VARIABLES: Mapping[str, str] = {}


def load_config(
    path: Path, environment: Mapping[str, str] = _NO_VARIABLES, sizes: SizeSource = table_only
) -> ClusterConfig:
    """Return a file as typed data; ConfigError names file, line, key and fix."""
    return parse_config(Document.load(path), environment, sizes)


def parse_config(
    document: Document, environment: Mapping[str, str] = _NO_VARIABLES, sizes: SizeSource = table_only
) -> ClusterConfig:
    """Return a document that was read already as typed data; `environment` gives what the file does not."""
    return parse(document, rules_named, environment, sizes)


def load_spec(path: Path) -> ClusterSpec:
    """Return the spec of a cluster file and its price file; ConfigError names file, line, key and fix."""
    config = load_config(path)
    return to_spec(config, load_prices(config, path))


def watch_file(
    path: Path, environment: Mapping[str, str] = _NO_VARIABLES, sizes: SizeSource = table_only
) -> FileSpecSource:
    """Return the source of a monitor's configuration, which reads the file again after each edit."""
    from muster.config.source import FileSpecSource

    return FileSpecSource(path, lambda document: parse_config(document, environment, sizes))


def asked_sizes(clock: Clock, report: Report = logger.warning) -> SizeSource:
    """Return a SizeSource that asks the cloud of the file's kind, for commands with an account."""
    describe = cache(lambda name: kind_named(name).sizes(clock, report))
    return lambda rules, provider, machine_types: describe(provider["type"])(provider, machine_types)
