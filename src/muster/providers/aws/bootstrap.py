"""AwsBootstrap makes what a cluster needs beside machines, as `ray up` does, and removes it again.

That is a security group, a key pair and an instance profile for the head, where the file names none. All
of it is tagged with the cluster's name, and only what has that tag is ever removed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from muster.base.clock import Clock
from muster.errors import ConfigError, ProviderDenied, ProviderError, ProviderMisconfigured
from muster.providers.aws.calls import AwsCalls, code_of
from muster.providers.aws.listing import to_filters
from muster.providers.aws.machine_config import subnets_of
from muster.providers.aws.places import Subnet, SubnetTable
from muster.providers.aws.policy import assumed_by_ec2, head_policy, role_named, ssm_policy
from muster.providers.aws.ssh_access import ingress_rules, is_stale, launcher_network, single_rules
from muster.providers.aws.tags import (
    TAG_MADE_BY,
    from_aws,
    group_name,
    key_file,
    key_name,
    resource_name,
    tagged,
    to_aws,
)

logger = logging.getLogger(__name__)

PURGE_S, LOOK_S = 180.0, 3.0  # a group cannot be removed before its machines are gone
Report = Callable[[str], None]


class AwsBootstrap:
    """Makes and removes the things of one cluster."""

    def __init__(
        self,
        calls: AwsCalls,
        provider_config: Mapping[str, Any],
        cluster_name: str,
        clock: Clock,
        report: Report = lambda text: None,
    ) -> None:
        self._calls, self._provider, self._cluster_name = calls, provider_config, cluster_name
        self._clock, self._report = clock, report
        self._own = {TAG_MADE_BY: cluster_name}

    # -- making -----------------------------------------------------------------------------------

    def ensure(
        self, types: Mapping[str, Mapping[str, Any]], head_type: str, private_key: str, subnets: SubnetTable
    ) -> None:
        """Make what the node configs leave out, and completes what an earlier call has half made."""
        configs = [one for one in types.values() if "LaunchTemplate" not in one]
        if any(not one.get("KeyName") for one in configs):
            self._ensure_key(Path(private_key).expanduser())
        used = [first_subnet(one, subnets) for one in configs if not names_groups(one)]
        for subnet in {one.vpc: one for one in reversed(used)}.values():
            self._ensure_group(subnet)
        head = types.get(head_type, {})
        if not head.get("IamInstanceProfile") and "LaunchTemplate" not in head:
            workers = [one for name, one in types.items() if name != head_type]
            self._ensure_profile([role for one in workers for role in self.roles_of(one)])

    def _ensure_group(self, subnet: Subnet) -> None:
        """Only the rules of a group that muster has made are changed."""
        name = group_name(self._provider, self._cluster_name)
        filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [subnet.vpc]}]
        found = list(self._calls.pages("describe_security_groups", "SecurityGroups", Filters=filters))
        if found and not self._is_own(found[0].get("Tags")):
            return
        group = str(found[0]["GroupId"]) if found else self._create_group(name, subnet.vpc)
        launcher = partial(launcher_network, self._provider, subnet.cidr)
        wanted = single_rules(ingress_rules(self._provider, group, launcher))
        there = single_rules(found[0].get("IpPermissions") or []) if found else {}
        missing = [rule for key, rule in wanted.items() if key not in there]
        stale = [rule for key, rule in there.items() if key not in wanted and is_stale(key, rule)]
        for operation, rules in (("authorize", missing), ("revoke", stale)):
            if rules:
                self._calls.ec2(f"{operation}_security_group_ingress", GroupId=group, IpPermissions=rules)

    def _create_group(self, name: str, vpc: str) -> str:
        self._report(f"making the security group {name}")
        made = self._calls.ec2(
            "create_security_group",
            GroupName=name,
            Description=f"Nodes of cluster {self._cluster_name}",
            VpcId=vpc,
            TagSpecifications=[tagged("security-group", self._own)],
        )
        return str(made["GroupId"])

    def _ensure_key(self, file: Path) -> None:
        """The key is made on this computer; AWS gets its public half only."""
        name = key_name(self._provider, self._cluster_name)
        filters = [{"Name": "key-name", "Values": [name]}]
        exists = bool(self._calls.ec2("describe_key_pairs", Filters=filters).get("KeyPairs"))
        if exists and not file.is_file():
            raise ConfigError(
                f"the key pair {name} is on AWS, but its key {file} is not on this computer",
                path="auth.ssh_private_key",
                fix=("copy it here, or give KeyName in node_config and auth.ssh_private_key"),
            )
        if exists:
            return
        mark = f"muster-cluster:{self._cluster_name}"
        if not file.is_file():
            self._report(f"making the key {file}")
            _make_key(file, mark)
        public = _public_half(file)
        by = "made" if mark.encode() in public.split() else "given"
        self._calls.ec2(
            "import_key_pair",
            KeyName=name,
            PublicKeyMaterial=public,
            TagSpecifications=[tagged("key-pair", {**self._own, "muster-key-file": by})],
        )

    def _ensure_profile(self, passed: Sequence[str]) -> None:
        """A role or a profile with this name that muster has not made stays as it is."""
        name, region = resource_name(self._cluster_name), self._calls.region
        tags, profile = to_aws(self._own), self._iam_or_none("get_instance_profile", InstanceProfileName=name)
        role = self._iam_or_none("get_role", RoleName=name)
        if profile is None or role is None:
            self._report(f"making the role and the instance profile {name}")
        if role is None:
            document = json.dumps(assumed_by_ec2(region))
            self._iam("create_role", RoleName=name, AssumeRolePolicyDocument=document, Tags=tags)
        if role is None or self._is_own(role["Role"].get("Tags")):
            document = json.dumps(head_policy(self._cluster_name, region, passed))
            self._iam("put_role_policy", RoleName=name, PolicyName="muster", PolicyDocument=document)
            if self._provider.get("use_ssm"):
                self._iam("attach_role_policy", RoleName=name, PolicyArn=ssm_policy(region))
        if profile is None:
            self._iam("create_instance_profile", InstanceProfileName=name, Tags=tags)
        if profile is None or not profile["InstanceProfile"].get("Roles"):
            self._iam("add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)

    def roles_of(self, node_config: Mapping[str, Any]) -> list[str]:
        """Return the roles of a config's instance profile; where it cannot be read, that of its name."""
        name = profile_name(node_config)
        if not name:
            return []
        found: dict[str, Any] = {}
        with suppress(ProviderDenied):
            found = self._iam_or_none("get_instance_profile", InstanceProfileName=name) or {}
        roles = [one["Arn"] for one in found.get("InstanceProfile", {}).get("Roles", ())]
        return roles or [role_named(name, self._calls.region)]

    # -- removing ---------------------------------------------------------------------------------

    def remove_templates(self) -> None:
        """Remove launch templates: they cost nothing, and are made again when needed."""
        filters = to_filters(self._own)
        for one in list(self._calls.pages("describe_launch_templates", "LaunchTemplates", Filters=filters)):
            self._calls.ec2("delete_launch_template", LaunchTemplateId=one["LaunchTemplateId"])

    def purge(self, key: str = "") -> list[str]:
        """Remove everything that `ensure` has made; returns a line for each that could not be removed."""
        left: list[str] = []
        for what, remove in (
            ("launch templates", self.remove_templates),
            ("instance profile", self._remove_profile),
            ("key pair", lambda: self._remove_key(Path(key or key_file("")).expanduser())),
            ("security group", self._remove_groups),
        ):
            try:
                remove()
            except ProviderError as error:
                left.append(f"{what}: {error}")
        return left

    def _remove_profile(self) -> None:
        name = resource_name(self._cluster_name)
        profile = self._iam_or_none("get_instance_profile", InstanceProfileName=name)
        role = self._iam_or_none("get_role", RoleName=name)
        if profile is not None and self._is_own(profile["InstanceProfile"].get("Tags")):
            for one in profile["InstanceProfile"].get("Roles", ()):
                self._iam(
                    "remove_role_from_instance_profile", InstanceProfileName=name, RoleName=one["RoleName"]
                )
            self._iam("delete_instance_profile", InstanceProfileName=name)
        if role is not None and self._is_own(role["Role"].get("Tags")):
            for one in self._iam("list_attached_role_policies", RoleName=name)["AttachedPolicies"]:
                self._iam("detach_role_policy", RoleName=name, PolicyArn=one["PolicyArn"])
            for policy in self._iam("list_role_policies", RoleName=name)["PolicyNames"]:
                self._iam("delete_role_policy", RoleName=name, PolicyName=policy)
            self._iam("delete_role", RoleName=name)

    def _remove_key(self, file: Path) -> None:
        found = self._calls.ec2("describe_key_pairs", Filters=to_filters(self._own)).get("KeyPairs") or ()
        for one in found:
            self._calls.ec2("delete_key_pair", KeyName=one["KeyName"])
            if from_aws(one.get("Tags")).get("muster-key-file") == "made":
                for each in (file, Path(f"{file}.pub")):
                    each.unlink(missing_ok=True)

    def _remove_groups(self) -> None:
        filters = to_filters(self._own)
        give_up = self._clock.monotonic() + PURGE_S
        for one in list(self._calls.pages("describe_security_groups", "SecurityGroups", Filters=filters)):
            while True:
                try:
                    self._calls.ec2("delete_security_group", GroupId=one["GroupId"])
                    break
                except ProviderError as error:
                    if code_of(error) != "DependencyViolation" or self._clock.monotonic() > give_up:
                        raise
                self._clock.sleep(LOOK_S)

    def _is_own(self, tags: Sequence[Mapping[str, str]] | None) -> bool:
        return from_aws(tags).get(TAG_MADE_BY) == self._cluster_name

    def _iam(self, operation: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - as boto3's
        return self._calls.call("iam", operation, parameters)

    def _iam_or_none(self, operation: str, **parameters: Any) -> dict[str, Any] | None:  # noqa: ANN401
        try:
            return self._iam(operation, **parameters)
        except ProviderError as error:
            if code_of(error) != "NoSuchEntity":
                raise
            return None


def names_groups(node_config: Mapping[str, Any]) -> bool:
    """Return whether a node config says by itself which security groups its machines have."""
    interfaces = node_config.get("NetworkInterfaces") or ()
    own = node_config.get("SecurityGroupIds") or node_config.get("SecurityGroups")
    return bool(own) or any(one.get("Groups") or one.get("NetworkInterfaceId") for one in interfaces)


def first_subnet(node_config: Mapping[str, Any], subnets: SubnetTable) -> Subnet:
    return subnets.of(subnets_of(node_config))[0]


def profile_name(node_config: Mapping[str, Any]) -> str:
    """Return the name of a config's instance profile; "" for none."""
    given = node_config.get("IamInstanceProfile") or {}
    return str(given.get("Name") or str(given.get("Arn") or "").rpartition("/")[2])


def _make_key(file: Path, mark: str) -> None:
    """Make a key that has the mark as its comment; a key that is there is a whole one."""
    _keygen_is_here()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = Path(f"{file}.new")
    for one in (new, Path(f"{new}.pub")):
        one.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", mark, "-f", str(new)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    os.chmod(new, 0o600)
    os.replace(f"{new}.pub", f"{file}.pub")
    os.replace(new, file)


def _public_half(file: Path) -> bytes:
    """Return the public half of a key; it is computed, as the file beside it may be another's."""
    _keygen_is_here()
    done = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise ProviderMisconfigured(
            f"the key {file} cannot be read ({done.stderr.decode(errors='replace').strip()})",
            fix=("give one without a passphrase, or KeyName in node_config"),
        )
    return done.stdout


def _keygen_is_here() -> None:
    if shutil.which("ssh-keygen") is None:
        raise ConfigError(
            "ssh-keygen is missing on this computer, so no key is made: `sudo apt install openssh-client`",
            path="auth.ssh_private_key",
        )
