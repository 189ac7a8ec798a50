"""ClusterDefaults looks up what a `node_config` leaves out: image, security group, key pair and profile.

It only looks; `bootstrap` makes them. What is found is kept, because machines of one cluster are alike.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from muster.base.log import OnChange
from muster.errors import ProviderDenied, ProviderError, ProviderMisconfigured
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.machine_config import MachineConfig, MachineDefaults, with_defaults
from muster.providers.aws.tags import group_name, key_name, resource_name

logger = logging.getLogger(__name__)

LATEST_DLAMI = "latest_dlami"  # as in Ray's files: the newest Deep Learning AMI
# Who publishes the images, and their names.
_UBUNTU = ("099720109477", "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-*-server-*")
_DLAMI = ("amazon", "Deep Learning*Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)*")
_OLD_DLAMI = ("amazon", "Deep Learning*Base Proprietary Nvidia Driver GPU AMI (Ubuntu 2*")
_OLD_GPUS = ("p2.", "p3.", "p3dn.", "g3.", "g3s.")  # which the open driver does not know
MISSING_S = 60.0  # what was not there is looked for again after this long
T = TypeVar("T")


class ClusterDefaults:
    """Completes settings of machines; threads share it."""

    def __init__(
        self, calls: AwsCalls, provider_config: Mapping[str, Any], cluster_name: str, *, uses_docker: bool
    ) -> None:
        self._calls, self._provider, self.cluster_name = calls, provider_config, cluster_name
        self._hop_limit = 2 if uses_docker else 1
        self._found: dict[str, Any] = {}
        self._missing: dict[str, tuple[float, Any]] = {}  # when it was looked for in vain
        self._lock = threading.RLock()
        self._changes = OnChange(logger)

    def settings(self, config: MachineConfig, vpc: str, *, is_head: bool) -> dict[str, Any]:
        """Return the settings of RunInstances for a machine, complete."""
        given = dict(config.settings)
        image = self.image_of(config)
        given |= {"ImageId": image} if image else {}
        if "LaunchTemplate" not in given:  # the user's template may have all of these
            if (
                not given.get("SecurityGroupIds")
                and not given.get("SecurityGroups")
                and not any(one.get("Groups") for one in given.get("NetworkInterfaces") or ())
            ):
                group = self._once(f"group {vpc}", lambda: self.group_id(vpc))
                given |= {"SecurityGroupIds": [group]} if group else {}
            if not given.get("KeyName"):
                key = self._once("key", self.key_pair)
                given |= {"KeyName": key} if key else {}
            if is_head and not given.get("IamInstanceProfile"):
                profile = self._once("profile", self.profile)
                given |= {"IamInstanceProfile": {"Name": profile}} if profile else {}
        device, gib = self._root_disk(given.get("ImageId", ""))
        defaults = MachineDefaults(hop_limit=self._hop_limit, root_device=device, root_gib=gib)
        return with_defaults(given, defaults)

    # -- one thing each ---------------------------------------------------------------------------

    def image_of(self, config: MachineConfig) -> str:
        """Return a type's image; one that the file leaves open is the newest for the type's processors.

        That is an Ubuntu 22.04, or for `latest_dlami` a Deep Learning AMI. "": the user's template says it.
        """
        given = str(config.settings.get("ImageId") or "")
        if given != LATEST_DLAMI and (given or "LaunchTemplate" in config.settings):
            return given
        first = next(iter(config.machine_types), "")
        architecture = self.architectures([first] if first else []).get(first, ("x86_64",))[0]
        dlami = _OLD_DLAMI if first.startswith(_OLD_GPUS) else _DLAMI
        source = dlami if given else _UBUNTU
        return self._once(f"image {source} {architecture}", lambda: self._newest_image(*source, architecture))

    def _newest_image(self, owner: str, name: str, architecture: str) -> str:
        filters = [
            {"Name": "name", "Values": [name]},
            {"Name": "architecture", "Values": [architecture]},
            {"Name": "state", "Values": ["available"]},
        ]
        found = list(self._calls.pages("describe_images", "Images", Owners=[owner], Filters=filters))
        if not found:
            raise ProviderMisconfigured(
                f"no image {name!r} for {architecture} was found in {self._calls.region}",
                fix="give ImageId in node_config",
            )
        newest = max(found, key=lambda one: one.get("CreationDate", ""))
        logger.info("image %s (%s) is used", newest["ImageId"], newest.get("Name", name))
        return str(newest["ImageId"])

    def architectures(self, machine_types: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the processors of machine types; {} where that may not be asked."""
        found = self._described(machine_types)
        return {
            name: tuple(one.get("ProcessorInfo", {}).get("SupportedArchitectures", ("x86_64",)))
            for name, one in found.items()
        }

    def sizes(self, machine_types: Sequence[str]) -> dict[str, int]:
        """Return the CPUs of machine types; {} where that may not be asked."""
        found = self._described(machine_types)
        counts = {name: int(one.get("VCpuInfo", {}).get("DefaultVCpus", 0)) for name, one in found.items()}
        return {name: count for name, count in counts.items() if count}

    def _described(self, machine_types: Sequence[str]) -> dict[str, dict[str, Any]]:
        def ask() -> dict[str, dict[str, Any]]:
            given = {"InstanceTypes": list(machine_types)}
            found = self._calls.pages("describe_instance_types", "InstanceTypes", **given)
            return {one["InstanceType"]: one for one in found}

        if not machine_types:
            return {}
        return self._once(f"types {' '.join(machine_types)}", lambda: self._allowed(ask, {}))

    def _root_disk(self, image: str) -> tuple[str, int]:
        """Return the device and the GiB of an image's own disk; "" where that may not be asked."""

        def ask() -> tuple[str, int]:
            found: dict[str, Any] = next(self._calls.pages("describe_images", "Images", ImageIds=[image]), {})
            device = str(found.get("RootDeviceName") or "")
            disks = {
                one.get("DeviceName"): one.get("Ebs") or {} for one in found.get("BlockDeviceMappings", ())
            }
            return device, int(disks.get(device, {}).get("VolumeSize") or 0)

        if not image.startswith("ami-"):
            return "", 0
        return self._once(f"root of {image}", lambda: self._allowed(ask, ("", 0)))

    def group_id(self, vpc: str) -> str:
        """Return the cluster's security group in a network; "" when there is none."""
        filters = [{"Name": "group-name", "Values": [group_name(self._provider, self.cluster_name)]}]
        filters += [{"Name": "vpc-id", "Values": [vpc]}] if vpc else []
        found = list(self._calls.pages("describe_security_groups", "SecurityGroups", Filters=filters))
        return str(found[0]["GroupId"]) if found else ""

    def key_pair(self) -> str:
        """Return the cluster's key pair; "" when there is none."""
        name = key_name(self._provider, self.cluster_name)
        filters = [{"Name": "key-name", "Values": [name]}]
        return name if self._calls.ec2("describe_key_pairs", Filters=filters).get("KeyPairs") else ""

    def profile(self) -> str:
        """Return the instance profile of the cluster's head; "" when there is none."""
        name = resource_name(self.cluster_name)
        try:
            self._calls.call("iam", "get_instance_profile", {"InstanceProfileName": name})
        except ProviderError as error:
            logger.warning("the head gets no instance profile, so it cannot buy workers: %s", error)
            return ""
        return name

    def _allowed(self, ask: Callable[[], T], otherwise: T) -> T:
        """Ask for what is only good to know."""
        try:
            return ask()
        except ProviderDenied as denied:
            self._changes.log(logging.WARNING, str(denied), str(denied))  # once for all types and images
            return otherwise

    def _once(self, key: str, ask: Callable[[], T]) -> T:
        with self._lock:
            if key in self._found:
                known: T = self._found[key]
                return known
            now = self._calls.clock.monotonic()
            if now - self._missing.get(key, (float("-inf"), None))[0] <= MISSING_S:
                nothing: T = self._missing[key][1]
                return nothing
            found = ask()
            if found:
                self._found[key] = found
            else:
                self._missing[key] = now, found
            return found
