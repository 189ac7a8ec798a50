"""InstanceSizes asks EC2 what its machine types have; what it may not ask is left to the shipped table.

The SizeSource of those who have an account: `muster up`, and the monitor at its start and after an edit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from muster.base.clock import Clock
from muster.base.untrusted import message_text
from muster.config.check import MachineSize
from muster.errors import MusterError, ProviderDenied
from muster.host.call_threads import ThreadPool
from muster.providers.aws.calls import AwsCalls
from muster.providers.kind import known_size

logger = logging.getLogger(__name__)

LIMIT_S = 20.0  # an edit of the file must not keep the loop waiting for a network that is gone
AT_ONCE = 100  # types of one call
Report = Callable[[str], None]


class InstanceSizes:
    """Asks once for each type; threads do not share it."""

    def __init__(self, clock: Clock, report: Report = logger.warning, limit_s: float = LIMIT_S) -> None:
        self._clock, self._report, self._limit_s = clock, report, limit_s
        self._known: dict[tuple[str, str], MachineSize] = {}
        self._asked: set[tuple[str, str]] = set()  # also what EC2 does not describe, or not to us
        self._said: set[str] = set()

    def __call__(self, provider: Mapping[str, Any], machine_types: Sequence[str]) -> dict[str, MachineSize]:
        """Return what EC2 describes of these types."""
        region = str(provider.get("region") or "")
        fresh = [name for name in machine_types if (region, name) not in self._asked]
        if fresh:
            self._ask(region, provider.get("profile"), fresh)
        return {name: self._known[region, name] for name in machine_types if (region, name) in self._known}

    def _ask(self, region: str, profile: str | None, names: Sequence[str]) -> None:
        try:
            found = self._within_limit(lambda: self._described(region, profile, names))
        except MusterError as error:
            if isinstance(error, ProviderDenied):  # it will not be allowed a moment later
                self._asked.update((region, name) for name in names)
            self._say(f"the sizes of machine types are those of muster's own table: {message_text(error)}")
            return
        self._asked.update((region, name) for name in names)
        for name, described in found.items():
            table = known_size("aws", name)
            size = read_size(described, table)
            if size is None:
                continue
            self._known[region, name] = size
            if table is not None and table != size:
                text = (
                    f"{name} has {shown(size)}, as EC2 says, and not {shown(table)} as in muster's own table"
                )
                self._say(text)

    def _described(self, region: str, profile: str | None, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        calls = AwsCalls(region, self._clock, profile)
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(names), AT_ONCE):
            # By filter: one name that EC2 does not know would refuse the whole call.
            filters = [{"Name": "instance-type", "Values": list(names[start : start + AT_ONCE])}]
            items = calls.pages("describe_instance_types", "InstanceTypes", Filters=filters)
            found.update((one["InstanceType"], one) for one in items)
        return found

    def _within_limit(self, ask: Callable[[], dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """Return the answer; raise what the call raises, and MusterError when there is none in time."""
        pool = ThreadPool("muster-aws-sizes", 1)
        answer = pool.submit(ask)
        wait((answer,), self._limit_s)
        if not answer.done():  # the thread is left to the call
            raise MusterError(
                f"EC2 has not described them within {self._limit_s:g} s", fix="is it reached from here?"
            )
        pool.close()
        return answer.result()

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._report(line)


def shown(size: MachineSize) -> str:
    """Return a size in words."""
    more = f" and {size.accelerators} {size.resource} ({size.accelerator_type})" if size.accelerators else ""
    return f"{size.cpus} CPUs, {size.memory_mib} MiB{more}"


def read_size(described: Mapping[str, Any], table: MachineSize | None) -> MachineSize | None:
    """Return the size in an answer of DescribeInstanceTypes; None where it has no CPUs or no memory.

    What the answer does not have is taken from the table: older regions describe no accelerators of some
    types. So is the name of an accelerator that both have, because nodes report it by that name.
    """
    cpus = int((described.get("VCpuInfo") or {}).get("DefaultVCpus") or 0)
    memory_mib = int((described.get("MemoryInfo") or {}).get("SizeInMiB") or 0)
    if not cpus or not memory_mib:
        return None
    resource, count, kind = _accelerators(described)
    if table is not None and (not count or (resource, count) == (table.resource, table.accelerators)):
        resource, count, kind = table.resource, table.accelerators, table.accelerator_type
    return MachineSize(cpus, memory_mib, resource, count, kind)


def _accelerators(described: Mapping[str, Any]) -> tuple[str, int, str]:
    """Return resource, count and type, as Ray's nodes report them; a part of a GPU is none."""
    neurons = (described.get("NeuronInfo") or {}).get("NeuronDevices") or ()
    cores = sum(
        int(one.get("Count") or 0) * int(one.get("CoreInfo", {}).get("Count") or 0) for one in neurons
    )
    if cores:
        return "neuron_cores", cores, "aws-neuron-core"
    described_gpus = (described.get("GpuInfo") or {}).get("Gpus") or ()
    gpus = [one for one in described_gpus if float(one.get("LogicalGpuCount", 1.0)) >= 1.0]
    count = sum(int(one.get("Count") or 0) for one in gpus)
    if not count:
        return "", 0, ""
    if gpus[0].get("Manufacturer") == "Habana":
        return "HPU", count, "Intel-GAUDI"
    return "GPU", count, "-".join(str(gpus[0].get("Name", "")).split())
