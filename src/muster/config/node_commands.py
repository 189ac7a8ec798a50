"""What is run on one node, and in which container: the node type's word, else the cluster's."""

from __future__ import annotations

from msgspec import Struct

from muster.config.schema import ClusterConfig


class Container(Struct, frozen=True, kw_only=True):
    """The container of one node, all choices made."""

    image: str
    name: str
    pull_before_run: bool
    run_options: tuple[str, ...]
    use_podman: bool
    detect_runtime: bool
    detect_shm_size: bool


def initialization_commands(config: ClusterConfig, node_type: str) -> tuple[str, ...]:
    """Run on the machine itself, before its container."""
    own = config.available_node_types[node_type].initialization_commands
    return config.initialization_commands if own is None else own


def worker_setup_commands(config: ClusterConfig, node_type: str) -> tuple[str, ...]:
    """A type's own commands stand in place of all of the cluster's, `setup_commands` included."""
    own = config.available_node_types[node_type].worker_setup_commands
    return config.worker_setup_commands if own is None else own


def container_of(config: ClusterConfig, node_type: str, *, is_head: bool) -> Container | None:
    """The container of a node; None when it works on the machine itself."""
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
