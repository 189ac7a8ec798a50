"""Builds everything a provider needs to make one machine of a type, as values."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from muster.config.document import Document
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError


class Container(Struct, frozen=True, kw_only=True):
    """A Container describes the container of one node, all choices made."""

    image: str
    name: str
    pull_before_run: bool
    run_options: tuple[str, ...]
    use_podman: bool
    detect_runtime: bool
    detect_shm_size: bool


def initialization_commands(config: ClusterConfig, node_type: str) -> tuple[str, ...]:
    """Returns the commands that run on the machine itself, before its container."""
    own = config.available_node_types[node_type].initialization_commands
    return config.initialization_commands if own is None else own


def worker_setup_commands(config: ClusterConfig, node_type: str) -> tuple[str, ...]:
    """Returns a type's own commands, which replace all of the cluster's, `setup_commands` included."""
    own = config.available_node_types[node_type].worker_setup_commands
    return config.worker_setup_commands if own is None else own


def container_of(config: ClusterConfig, node_type: str, *, is_head: bool) -> Container | None:
    """Returns the container of a node; None when it works on the machine itself."""
    shared, own = config.docker, config.available_node_types[node_type].docker
    if not shared.container_name:
        return None
    if is_head:
        role_image, role_options = shared.head_image, shared.head_run_options
    else:
        role_image = shared.worker_image if own.worker_image is None else own.worker_image
        role_options = shared.worker_run_options if own.worker_run_options is None else own.worker_run_options
    return Container(
        image=role_image or shared.image,
        name=shared.container_name,
        pull_before_run=shared.pull_before_run if own.pull_before_run is None else own.pull_before_run,
        run_options=(*shared.run_options, *role_options),
        use_podman=shared.use_podman,
        detect_runtime=not shared.disable_automatic_runtime_detection,
        detect_shm_size=not shared.disable_shm_size_detection,
    )


_LONG = 2**63
_KEY_FILES = ("ssh_private_key", "ssh_public_key")


def canonical_json(value: object) -> str:
    """Returns one text for equal values, whatever the order of their keys."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _plain(value: object) -> object:
    """Returns what JSON can write: YAML has keys that are no text, and numbers of any length."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return hex(value) if isinstance(value, int) and abs(value) >= _LONG else value


def digest(text: str) -> str:
    """Returns the sha256 of a text, encoded for a tag."""
    return encoded(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


def encoded(raw: bytes) -> str:
    """Returns lower-case base32hex without padding: short and plain enough for a tag of any cloud."""
    return base64.b32hexencode(raw).decode("ascii").lower().rstrip("=")


def launch_hash(node_config: Mapping[str, Any], auth: Mapping[str, Any]) -> str:
    """Returns a hash that changes when new machines would differ: their config, or who may log in.

    Key files count by their contents, read when this pair is first seen; one that is not on this computer
    counts by its path.
    """
    return _launch_hash(canonical_json(dict(node_config)), canonical_json(dict(auth)))


@lru_cache(maxsize=4096)
def _launch_hash(node_config: str, auth: str) -> str:
    resolved = {
        key: _contents(value) if key in _KEY_FILES else value for key, value in json.loads(auth).items()
    }
    return digest(canonical_json([json.loads(node_config), resolved]))


def _contents(path: object) -> object:
    try:
        file = Path(str(path)).expanduser()
        if not file.is_file():  # a device may never end
            return path
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):  # not here, not a path, no such home
        return path


class RuntimeHashes(Struct, frozen=True):
    """RuntimeHashes are what a node is tagged with."""

    runtime: str
    contents: str | None  # None: not computed


def head_runtime_hashes(config: ClusterConfig, *, with_contents: bool = True) -> RuntimeHashes:
    """Returns hashes of the whole config, because the head runs the autoscaler."""
    return _hashes(_text(config, to_builtins(config), with_contents))


def worker_runtime_hashes(
    config: ClusterConfig, node_type: str, *, with_contents: bool = True
) -> RuntimeHashes:
    """Returns hashes of the mounts and of the commands that set workers up and start them."""
    commands = [worker_setup_commands(config, node_type), config.worker_start_ray_commands]
    return _hashes(_text(config, commands, with_contents))


def _text(config: ClusterConfig, extra: object, with_contents: bool) -> str:
    return canonical_json([config.file_mounts, config.cluster_synced_files, extra, with_contents])


@lru_cache(maxsize=256)
def _hashes(config: str) -> RuntimeHashes:
    file_mounts, synced, extra, with_contents = json.loads(config)
    contents = contents_hash(file_mounts, synced) if with_contents else None
    return RuntimeHashes(digest(canonical_json([file_mounts, extra, contents])), contents)


def contents_hash(file_mounts: dict[str, str], cluster_synced_files: Sequence[str]) -> str:
    """Hashes directory paths (below the mount), file names and bytes; only synced files may be missing."""
    hasher = hashlib.sha256()
    for key, local in _mounted(file_mounts, cluster_synced_files):
        try:
            for part in _parts(Path(local).expanduser()):
                hasher.update(len(part).to_bytes(8, "big") + part)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ConfigError(
                f"{local} cannot be read: {reason}; fix that or remove the entry", path=key
            ) from None
    return encoded(hasher.digest())


def _mounted(file_mounts: dict[str, str], cluster_synced_files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the key of the config and the local path, mounts first."""
    for remote, local in sorted(file_mounts.items()):
        if not Path(local).expanduser().exists():
            raise ConfigError(
                f"{local} is not on this computer; create it or remove the entry",
                path=f"file_mounts.{remote}",
            )
        yield f"file_mounts.{remote}", local
    for index, local in enumerate(cluster_synced_files):
        yield f"cluster_synced_files[{index}]", local


def _parts(path: Path) -> Iterator[bytes]:
    """Yields the contents of one mount, in an order that does not depend on the file system."""
    if path.is_file():
        yield path.read_bytes()
        return
    for folder in (path, *sorted(inner for inner in path.rglob("*") if _is_folder(inner))):
        yield str(folder.relative_to(path)).encode("utf-8", "surrogateescape")
        for file in sorted(inner for inner in folder.iterdir() if inner.is_file()) if folder.is_dir() else ():
            yield file.name.encode("utf-8", "surrogateescape")
            yield file.read_bytes()


def _is_folder(path: Path) -> bool:
    """Links to folders are not followed: they may lead in circles."""
    return path.is_dir() and not path.is_symlink()


# Where each provider's node_config names its machine type.
_PATHS: dict[str, tuple[str, ...]] = {
    "aws": ("InstanceType",),
    "aliyun": ("InstanceType",),
    "azure": ("azure_arm_parameters", "vmSize"),
    "gcp": ("machineType",),
}


def machine_type(provider: str, node_config: Mapping[str, Any]) -> str:
    """Returns the machine type, or "" when the provider has no such names or the config has none."""
    path = _PATHS.get(provider, ())
    found: Any = node_config if path else ""
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


class MachineSize(Struct, frozen=True):
    """A MachineSize is what a machine type of a cloud has; `accelerators` count in units of `resource`."""

    cpus: int
    memory_mib: int
    resource: str = ""  # GPU, neuron_cores, ...; "": no accelerators
    accelerators: int = 0
    accelerator_type: str = ""  # as Ray's nodes report it


_CUSTOM = re.compile(r"(?:[a-z]\w+-)?custom-(\d+)-(\d+)(?:-ext)?")  # gcp: CPUs and MiB are in the name
_MAX_ADDED = 64  # GPUs of one machine
_MEMORY_SHARE = 0.7  # Ray keeps the rest for its object store


def size_of(provider_type: str, machine_type: str) -> MachineSize | None:
    """Returns the size of a cloud's machine type; None for one that the table does not have."""
    name = machine_type.lower().rpartition("/")[2]  # gcp takes the whole address of a type, too
    custom = _CUSTOM.fullmatch(name) if provider_type == "gcp" else None
    if custom:
        return MachineSize(int(custom[1]), int(custom[2]))
    return _known_sizes().get((provider_type, name))


@lru_cache(maxsize=1)
def _known_sizes() -> dict[tuple[str, str], MachineSize]:
    """Reads machine_sizes.txt; a line has cloud, CPUs, MiB, `resource=count:type` or `-`, and names."""
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


# Takes the section `provider` and machine types; returns those that the cloud itself describes.
SizeSource = Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, MachineSize]]
_NO_SIZES: Mapping[str, MachineSize] = {}


def table_only(provider: Mapping[str, Any], machine_types: Sequence[str]) -> Mapping[str, MachineSize]:
    """The SizeSource of those who have no account, such as `muster plan`: the shipped table stands."""
    return _NO_SIZES


def any_size(provider: Mapping[str, Any], machine_types: Sequence[str]) -> Mapping[str, MachineSize]:
    """The SizeSource of those who need other keys only: what EC2 would be asked for is no mistake here."""
    unknown = [name for name in machine_types if size_of("aws", name) is None]
    return dict.fromkeys(unknown, MachineSize(0, 0)) if provider["type"] == "aws" else _NO_SIZES


def machine_resources(
    provider: str, node_config: Mapping[str, Any], told: Mapping[str, MachineSize] = _NO_SIZES
) -> dict[str, int]:
    """Returns what Ray finds on a machine of this config; {} when its type is not known.

    What the cloud itself says (`told`) is newer than the table.
    """
    name = machine_type(provider, node_config)
    size = told.get(name) or size_of(provider, name)
    if size is None:
        return {}
    found = {"CPU": size.cpus, "memory": int(size.memory_mib * 2**20 * _MEMORY_SHARE)}
    for resource, count, kind in (
        (size.resource, size.accelerators, size.accelerator_type),
        *_added(node_config),
    ):
        if count:
            found.update({resource: found.get(resource, 0) + count, f"accelerator_type:{kind}": 1})
    return found


def _added(node_config: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yields the GPUs that gcp adds to a machine: `nvidia-tesla-t4`, or the address of such a type."""
    listed = node_config.get("guestAccelerators")
    for entry in listed if isinstance(listed, list) else ():
        name, count = (
            (entry.get(f"accelerator{key}") for key in ("Type", "Count"))
            if isinstance(entry, dict)
            else (0, 0)
        )
        if isinstance(name, str) and isinstance(count, int) and 0 < count <= _MAX_ADDED:
            yield "GPU", count, name.rpartition("/")[2].removeprefix("nvidia-").removeprefix("tesla-").upper()


def with_sizes(
    document: Document, data: Mapping[str, Any], source: SizeSource = table_only
) -> dict[str, Any]:
    """Adds the resources of machines of known types, where the file does not give them.

    As in Ray, what an entry for aws gives is completed, and the memory of the head is left to the head. The
    entries for other clouds are used as they are, unless they give nothing.
    """
    provider, types = data["provider"]["type"], data.get("available_node_types", {})
    head = data.get("head_node_type") or next(iter(types), "")
    sized: dict[str, Any] = {}
    machines = (machine_type(provider, entry.get("node_config") or {}) for entry in types.values())
    named = [name for name in dict.fromkeys(machines) if name]
    told = source(data["provider"], named) if named else _NO_SIZES
    for name, entry in types.items():
        given = entry.get("resources")
        known = machine_resources(provider, entry.get("node_config") or {}, told)
        if given is None and not known:
            machine = machine_type(provider, entry.get("node_config") or {})
            unknown = f", and the size of {machine} is not known" if machine else ""
            raise document.error(("available_node_types", name), f"'resources' is missing{unknown}; add it")
        if name == head:
            known.pop("memory", None)
        added = known if provider == "aws" or not given else {}
        sized[name] = {**entry, "resources": {**added, **(given or {})}}
    return {**data, "available_node_types": sized} if types else dict(data)


class NodeLaunch(Struct, frozen=True, kw_only=True):
    """A NodeLaunch is one node type, ready for a provider's create call."""

    node_type: str
    node_config: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    launch_hash: str = ""
    machine_type: str = ""


def node_launches(config: ClusterConfig) -> dict[str, NodeLaunch]:
    """Returns every type of the config, the head's included, in the order of the file."""
    auth = config.auth.settings()
    shares = memory_shares(config) if config.provider.type == "process" else {}
    return {
        name: NodeLaunch(
            node_type=name,
            node_config=entry.node_config or {},
            resources={**entry.resources, "memory": shares[name]} if name in shares else entry.resources,
            labels=entry.labels,
            launch_hash=launch_hash(entry.node_config or {}, auth),
            machine_type=machine_type(config.provider.type, entry.node_config or {}),
        )
        for name, entry in config.available_node_types.items()
    }


_USABLE_MEMORY = 0.7  # of a computer; the rest is for object stores and all that runs beside the nodes
_LEAST_MEMORY = 100_000_000.0


def memory_shares(config: ClusterConfig) -> dict[str, float]:
    """Returns the memory of types that name none, where the nodes are processes of this computer.

    Ray would offer the whole computer's on every node. The CPUs of the largest cluster that the file allows
    share what the types with a number of their own leave.
    """
    from muster.host.machine import memory_bytes  # only where nodes are processes of this computer

    types, room, left = config.available_node_types, config.max_workers, _USABLE_MEMORY * memory_bytes()
    weights = {
        name: max(1.0, entry.resources.get("CPU", 0.0))
        for name, entry in types.items()
        if "memory" not in entry.resources
    }
    total = weights.get(config.head_type, 0.0)
    for name in sorted(types, key=lambda one: -weights.get(one, 0.0)):
        count = min(config.type_max_workers(name), config.max_workers)
        left -= types[name].resources.get("memory", 0.0) * (count + int(name == config.head_type))
        total += weights.get(name, 0.0) * min(count, room)
        room -= min(count, room) if name in weights else 0
    if not memory_bytes():
        return {}
    return {
        name: float(round(max(_LEAST_MEMORY, left * weight / max(1.0, total))))
        for name, weight in weights.items()
    }
