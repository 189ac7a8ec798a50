"""Imported lazily: what the launcher does with an AWS account for a cluster: check, prepare, clean up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

from muster.config.schema import ClusterConfig, NodeTypeConfig
from muster.errors import ConfigError, MusterError
from muster.providers.aws.bootstrap import AwsBootstrap, first_subnet, names_groups, profile_name
from muster.providers.aws.defaults import LATEST_DLAMI
from muster.providers.aws.machine_config import read_config
from muster.providers.aws.policy import launcher_policy, role_named
from muster.providers.aws.preflight import AccountCheck, AccountFinding, CheckedType
from muster.providers.aws.provider import AwsProvider
from muster.providers.aws.ssh_access import is_ssh_restricted, launcher_network
from muster.providers.aws.tags import group_name, key_file, key_name, resource_name
from muster.providers.aws.wire import check_region

Report = Callable[[str], None]


def check_account(
    provider: AwsProvider, config: ClusterConfig, report: Report = lambda step: None
) -> list[AccountFinding]:
    """Return what would go wrong, asked of AWS; nothing is made."""
    try:
        check_region(config.provider.region)
        keys = provider.launcher.launch_keys()
    except ConfigError as error:
        return [AccountFinding(problem=f"{error.path}: {error.message}", fix=error.fix or "then try again")]
    report("checking the AWS account: rights, images, zones, addresses and quotas")
    check = AccountCheck(provider.calls, provider.launcher.subnets, provider.launcher.defaults, keys)
    found = check.run([_checked(config, name, entry) for name, entry in config.available_node_types.items()])
    try:
        if not found:
            _ssh_source(provider, config)
    except ConfigError as error:
        found.append(AccountFinding(problem=f"{error.path}: {error.message}", fix=error.fix))
    return found


def prepare(config: ClusterConfig, provider: Callable[[], AwsProvider], report: Report) -> ClusterConfig:
    """Make the security group, the key and the instance profile that the file leaves out."""
    check_region(config.provider.region)
    types = {name: entry.node_config or {} for name, entry in config.available_node_types.items()}
    made = provider()
    _bootstrap(made, config, report).ensure(types, config.head_type, _key(config), made.launcher.subnets)
    return config


def purge(provider: AwsProvider, config: ClusterConfig, report: Report) -> list[str]:
    """Remove what `prepare` has made; return a line for each that is left."""
    report("removing the security group, the key and the instance profile")
    return _bootstrap(provider, config, report).purge(_key(config))


def needed_policy(config: ClusterConfig) -> str:
    """Return the least-privilege policy for running `up`, as JSON."""
    region, uses_ssm = str(config.provider.region), bool(config.provider.settings().get("use_ssm"))
    profiles = [profile_name(one.node_config or {}) for one in config.available_node_types.values()]
    passed = [role_named(name, region) for name in dict.fromkeys(filter(None, profiles))]
    return json.dumps(launcher_policy(config.cluster_name, region, passed, uses_ssm=uses_ssm), indent=2)


def made_beside(config: ClusterConfig, provider: Callable[[], AwsProvider]) -> list[str]:
    """Return what `prepare` would make, and images that are used; what AWS does not tell is left out."""
    types = [entry.node_config or {} for entry in config.available_node_types.values()]
    head = config.available_node_types[config.head_type].node_config or {}
    settings, name = config.provider.settings(), config.cluster_name
    found = []
    if any(not one.get("KeyName") and "LaunchTemplate" not in one for one in types):
        found.append(f"key pair {key_name(settings, name)}, with its key in {_key(config)}")
    if any(not names_groups(one) and "LaunchTemplate" not in one for one in types):
        found.append(f"security group {group_name(settings, name)}{_ssh_words(config, provider)}")
    if not head.get("IamInstanceProfile") and "LaunchTemplate" not in head:
        found.append(f"role and instance profile {resource_name(name)}, which let the head launch workers")
    return [*(f"creates if missing: {line}" for line in found), *_images(config, provider)]


def _images(config: ClusterConfig, provider: Callable[[], AwsProvider]) -> Iterator[str]:
    for name, entry in config.available_node_types.items():
        given = entry.node_config or {}
        if given.get("ImageId", LATEST_DLAMI) != LATEST_DLAMI:
            continue
        with suppress(MusterError):
            launcher = provider().launcher
            image = launcher.defaults.image_of(read_config(given, launcher.launch_keys()))
            if image:
                yield f"image of {name}: {image}, the newest {given.get('ImageId', 'Ubuntu 22.04')}"


def _ssh_words(config: ClusterConfig, provider: Callable[[], AwsProvider]) -> str:
    source = "this computer"
    with suppress(MusterError):
        source = _ssh_source(provider(), config)
    return f"; SSH only from {source}" if source else "; SSH as the file says"


def _ssh_source(provider: AwsProvider, config: ClusterConfig) -> str:
    """Return which network may use SSH; "" where the file says it, or muster makes no group."""
    types = [entry.node_config or {} for entry in config.available_node_types.values()]
    open_types = [one for one in types if not names_groups(one) and "LaunchTemplate" not in one]
    settings = config.provider.settings()
    if not open_types or not is_ssh_restricted(settings):
        return ""
    subnet = first_subnet(open_types[0], provider.launcher.subnets)
    return launcher_network(settings, subnet.cidr)


def _bootstrap(provider: AwsProvider, config: ClusterConfig, report: Report) -> AwsBootstrap:
    return AwsBootstrap(
        provider.calls, config.provider.settings(), config.cluster_name, provider.clock, report
    )


def _key(config: ClusterConfig) -> str:
    own = config.auth.ssh_private_key
    return own or key_file(key_name(config.provider.settings(), config.cluster_name))


def _checked(config: ClusterConfig, name: str, entry: NodeTypeConfig) -> CheckedType:
    is_head = int(name == config.head_type)
    most = min(config.type_max_workers(name), config.max_workers)
    return CheckedType(
        name=name,
        node_config=entry.node_config or {},
        least=entry.min_workers + is_head,
        most=most + is_head,
        zones=tuple(dict.fromkeys(offer.zone for offer in entry.offers)),
        cpus=float(entry.resources.get("CPU", 0.0)),
        markets=tuple(dict.fromkeys(offer.market.value for offer in entry.offers)),
        is_head=bool(is_head),
    )
