"""The kind `local`: the hosts of a list, which clusters share by a lock on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from muster.config.check import FileRules
from muster.config.document import Document
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.providers.kind import RAY_START, SSH, HeadPolicy, ProviderKind, imported_from
from muster.providers.rack.host_list import check_rack, rack_hosts, with_local_type


class RackRules(FileRules):
    """As in Ray, hosts find out themselves what they have, and by default all of them are wanted."""

    defaults: ClassVar[Plain] = {**SSH, **RAY_START}
    own_keys = frozenset({"hosts", "lock_dir"})
    overrides_resources = False
    head_is_extra = True  # the default minimum is all hosts of a list that does not have the head

    def check(self, document: Document, config: ClusterConfig) -> None:
        check_rack(document, config)

    def complete(self, document: Document, data: Mapping[str, Any]) -> Plain:
        return with_local_type(document, data)

    def existing(self, config: ClusterConfig, node_type: str) -> int | None:
        if config.provider.coordinator_address:
            return None
        return sum(host.node_type == node_type for host in rack_hosts(config).values())


KIND = ProviderKind(
    name="local",
    build=imported_from(".rack.build", "make_rack"),
    rules=RackRules(),
    head=HeadPolicy.HOST,
    place=lambda config: "your hosts",
    live_keys=("hosts", "worker_ips"),
    start_s=60.0,
    quiet_s=0.5,  # hosts are asked directly; a cloud's list may be late
    fill_in=imported_from(".rack.build", "with_host_sizes"),
)
