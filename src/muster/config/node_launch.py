"""Builds everything a provider needs to make one machine of a type, as values."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

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
        return Path(str(path)).expanduser().read_text(encoding="utf-8", errors="replace")
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
    return {
        name: NodeLaunch(
            node_type=name,
            node_config=entry.node_config or {},
            resources=entry.resources,
            labels=entry.labels,
            launch_hash=launch_hash(entry.node_config or {}, auth),
            machine_type=machine_type(config.provider.type, entry.node_config or {}),
        )
        for name, entry in config.available_node_types.items()
    }
