"""Sections of the cluster file about machines: who makes them, how to log in, which container runs there."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field, to_builtins

from muster.config.check import Section
from muster.config.schema_kinds import Quantity

# The providers a file may name. Which of them this program can drive is the registry's business.
PROVIDERS = (
    "aliyun",
    "aws",
    "azure",
    "external",
    "fake_multinode",
    "fake_multinode_docker",
    "gcp",
    "kuberay",
    "local",
    "process",
    "readonly",
    "spark",
    "vsphere",
)


class SectionAsWritten(Section, frozen=True, kw_only=True, omit_defaults=True):
    """A section that others read as plain data too, so what was written is kept beside the typed keys."""

    kept_in: ClassVar[str] = "written"

    written: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The section as plain data: exactly the keys of the file (of the values, when made by code)."""
        if self.written:
            return dict(self.written)
        found: dict[str, Any] = to_builtins(self)
        return found


class ProviderConfig(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """`provider`: keys that the core reads; all others are the provider's business and in `settings()`."""

    takes_any_key: ClassVar[bool] = True

    type: str
    module: str | None = None  # of `external`: package.module.Class
    disable_node_updaters: bool = False
    disable_launch_config_check: bool = True
    foreground_node_launch: bool = False
    worker_liveness_check: bool = True
    use_internal_ips: bool = False
    use_external_head_ip: bool = False
    cache_stopped_nodes: bool = True
    namespace: str | None = None
    region: str | None = None
    availability_zone: str | None = None
    project_id: str | None = None
    security_group: dict[str, Any] | None = None
    head_ip: str | None = None
    worker_ips: tuple[str, ...] = ()
    coordinator_address: str | None = None


class AuthConfig(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """`auth`: how machines are logged into."""

    ssh_user: str = "ubuntu"
    ssh_private_key: str | None = None
    ssh_public_key: str | None = None
    ssh_proxy_command: str | None = None
    ssh_proxy_use_node_id: bool = False


class DockerConfig(Section, frozen=True, kw_only=True):
    """`docker`: without a container_name everything runs on the machine itself."""

    image: str = ""
    container_name: str = ""
    pull_before_run: bool = True
    run_options: tuple[str, ...] = ()
    head_image: str = ""
    head_run_options: tuple[str, ...] = ()
    worker_image: str = ""
    worker_run_options: tuple[str, ...] = ()
    disable_automatic_runtime_detection: bool = False
    disable_shm_size_detection: bool = False
    use_podman: bool = False


class NodeTypeDocker(Section, frozen=True, kw_only=True):
    """`docker` of one node type: what differs from the cluster's; None: nothing."""

    pull_before_run: bool | None = None
    worker_image: str | None = None
    worker_run_options: tuple[str, ...] | None = None


class LegacyMachine(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """`head_node` and `worker_nodes`, the form before node types: a node_config with `resources` in it."""

    takes_any_key: ClassVar[bool] = True

    resources: dict[str, Quantity] | None = None
