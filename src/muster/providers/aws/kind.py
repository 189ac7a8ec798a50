"""The kind `aws`: machines of EC2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from muster.config.check import FileRules, MachineSize
from muster.config.document import Document
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.kind import (
    RAY_START,
    SSH,
    Launches,
    ProviderContext,
    ProviderKind,
    imported_from,
    known_size,
    two_types,
)

if TYPE_CHECKING:
    from muster.providers.machines import ManagedProvider


def _build(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    from muster.providers.aws.provider import AwsParts, AwsProvider

    return AwsProvider(
        config.provider.settings(),
        context.cluster_name,
        launches,
        AwsParts(clock=context.clock),
        installs_runtime=not config.has_worker_commands,
        uses_docker=bool(config.docker.container_name),
    )


def _check(config: ClusterConfig) -> None:
    if not config.provider.region:
        raise ConfigError("is missing", path="provider.region", fix="write for example us-west-2")


class AwsRules(FileRules):
    """As in Ray, EC2 completes the resources of an entry."""

    defaults: ClassVar[Plain] = {**SSH, **RAY_START, **two_types({"InstanceType": "m5.large"}, {})}
    machine_key = ("InstanceType",)
    completes_resources = True
    asks_for_sizes = True
    notices = "aws"

    def check(self, document: Document, config: ClusterConfig) -> None:
        if config.provider.settings().get("cloudwatch"):
            why = "is not supported; remove it, and start the CloudWatch agent in setup_commands"
            raise document.error(("provider", "cloudwatch"), why)

    def size_of(self, machine_type: str) -> MachineSize | None:
        return known_size("aws", machine_type)


KIND = ProviderKind(
    name="aws",
    build=_build,
    rules=AwsRules(),
    sizes=imported_from(".aws.sizes", "InstanceSizes"),
    check=_check,
    place=lambda config: f"AWS ({config.provider.region})",
    with_access=imported_from(".aws.tags", "with_access"),
    makes_key=True,
    prepare=imported_from(".aws.account", "prepare"),
    made_by_prepare=imported_from(".aws.account", "made_beside"),
    needed_rights=imported_from(".aws.account", "needed_policy"),
    preflight=imported_from(".aws.account", "check_account"),
    purge=imported_from(".aws.account", "purge"),
    price_list=imported_from(".aws.prices", "price_csv"),
)
