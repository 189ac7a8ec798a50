"""Say what is done on a machine to make it a node, as values: container, commands, hashes of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from muster.config.schema import ClusterConfig
from muster.config.to_spec import canonical_json, digest, encoded
from muster.errors import ConfigError


class Container(Struct, frozen=True, kw_only=True):
    """Describes the container of one node, all choices made."""

    image: str
    name: str
    pull_before_run: bool
    run_options: tuple[str, ...]
    use_podman: bool
    detect_runtime: bool
    detect_shm_size: bool


def initialization_commands(config: ClusterConfig, node_type: str) -> tuple[str, ...]:
    """Return the commands that run on the machine itself, before its container."""
    own = config.available_node_types[node_type].initialization_commands
    return config.initialization_commands if own is None else own


def worker_setup_commands(config: ClusterConfig, node_type: str) -> tuple[str, ...]:
    """Return a type's own commands, which replace all of the cluster's, `setup_commands` included."""
    own = config.available_node_types[node_type].worker_setup_commands
    return config.worker_setup_commands if own is None else own


def container_of(config: ClusterConfig, node_type: str, *, is_head: bool) -> Container | None:
    """Return the container of a node; None when it works on the machine itself."""
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


class RuntimeHashes(Struct, frozen=True):
    """What a node is tagged with."""

    runtime: str
    contents: str | None  # None: not computed


def head_runtime_hashes(config: ClusterConfig, *, with_contents: bool = True) -> RuntimeHashes:
    """Return hashes of the whole config, because the head runs the autoscaler."""
    return _hashes(_text(config, config.plain(), with_contents))


def worker_runtime_hashes(
    config: ClusterConfig, node_type: str, *, with_contents: bool = True
) -> RuntimeHashes:
    """Return hashes of the mounts and of the commands that set workers up and start them."""
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
                f"{local} cannot be read: {reason}", path=key, fix="fix that or remove the entry"
            ) from None
    return encoded(hasher.digest())


def _mounted(file_mounts: dict[str, str], cluster_synced_files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the key of the config and the local path, mounts first."""
    for remote, local in sorted(file_mounts.items()):
        if not Path(local).expanduser().exists():
            raise ConfigError(
                f"{local} is not on this computer",
                path=f"file_mounts.{remote}",
                fix="create it or remove the entry",
            )
        yield f"file_mounts.{remote}", local
    for index, local in enumerate(cluster_synced_files):
        yield f"cluster_synced_files[{index}]", local


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the contents of one mount, in an order that does not depend on the file system."""
    if path.is_file():
        yield path.read_bytes()
        return
    # Links to folders are not followed: they may lead in circles.
    folders = sorted(inner for inner in path.rglob("*") if inner.is_dir() and not inner.is_symlink())
    for folder in (path, *folders):
        yield str(folder.relative_to(path)).encode("utf-8", "surrogateescape")
        for file in sorted(inner for inner in folder.iterdir() if inner.is_file()) if folder.is_dir() else ():
            yield file.name.encode("utf-8", "surrogateescape")
            yield file.read_bytes()
