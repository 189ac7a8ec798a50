"""V1Calls makes the few calls that the adapter needs of a v1 provider, whatever class it is made from.

Duck typed: a provider written against Ray's NodeProvider, against muster's or against nothing at all works,
also one that lacks the newer methods. Calls may block; the adapter's threads make them.
"""

from __future__ import annotations

import copy
import math
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from msgspec import to_builtins

from muster.base.ids import CloudId, RequestId
from muster.base.untrusted import error_text
from muster.cluster.model import CloudInstance, NodeKind, Offer
from muster.config.schema import ClusterConfig
from muster.config.to_spec import NodeLaunch
from muster.errors import RemoteError
from muster.providers.machines import ClusterMachines, Machine, SshAccess
from muster.providers.node_provider import create_nodes
from muster.providers.v1 import tags as t
from muster.providers.v1.failures import ShieldedProvider, provider_call
from muster.remote.own_runner import OwnRunner
from muster.remote.runner import CommandRunner

_KINDS = {t.NODE_KIND_HEAD: NodeKind.HEAD, t.NODE_KIND_WORKER: NodeKind.WORKER}
_TAGS = {kind: tag for tag, kind in _KINDS.items()}
LISTED_WITHIN_S = 600.0
_NOT_OURS = frozenset({None, "", t.NODE_KIND_UNMANAGED})


class V1Calls:
    """Translates the calls to one v1 provider."""

    def __init__(self, node_provider: Any, cluster_name: str) -> None:  # noqa: ANN401 - duck typed
        self._v1 = ShieldedProvider(node_provider)
        self._bare = node_provider  # for a list of thousands, where one shield per machine is enough
        self._cluster_name = cluster_name

    # -- creating ---------------------------------------------------------------------------------

    def create(
        self,
        launch: NodeLaunch,
        request_id: RequestId,
        count: int,
        offer: Offer | None = None,
    ) -> set[str] | None:
        """Make one create call; returns the new ids, or None where the provider does not report them.

        An offer is passed as tags, so that the list shows it later, and under `offer` in the node config.
        """
        tags = t.worker_tags(self._cluster_name, launch.node_type, launch.launch_hash, request_id)
        config = copy.deepcopy(dict(launch.node_config))  # providers write into it
        if offer is not None:
            tags |= t.offer_tags(offer.zone, offer.market)
            price = offer.price_per_hour
            config["offer"] = {"zone": offer.zone, "market": offer.market, "price_per_hour": price}
        resources, labels = dict(launch.resources), dict(launch.labels)
        made = create_nodes(self._v1, self._bare.__class__, config, tags, count, resources, labels)
        return set(made) if isinstance(made, Mapping) else None

    def made_for(self, request_id: RequestId, node_type: str) -> set[str]:
        """Return living nodes of this request and type, whichever process created them.

        The answer is checked against the tags: with a provider that filters loosely, everything would seem to
        exist already, and nothing would ever be launched.
        """
        wanted = {t.TAG_RAY_LAUNCH_REQUEST: t.request_tag(request_id), t.TAG_RAY_USER_NODE_TYPE: node_type}
        return {
            node_id for node_id in self._ids(wanted) if wanted.items() <= self._v1.node_tags(node_id).items()
        }

    def keeps_request_tags(self) -> bool:
        """Return whether any listed node carries the tag of its launch: then others would, too."""
        return any(self._v1.node_tags(node_id).get(t.TAG_RAY_LAUNCH_REQUEST) for node_id in self._ids({}))

    # -- terminating ------------------------------------------------------------------------------

    @property
    def max_terminate(self) -> int | None:
        """Return how many ids one terminate call takes; None: any number."""
        limit = getattr(self._v1, "max_terminate_nodes", None)
        return limit if isinstance(limit, int) and limit > 0 else None

    def terminate(self, node_ids: Sequence[str]) -> None:
        together = getattr(self._v1, "terminate_nodes", None)
        if together is not None and len(node_ids) > 1:
            together(list(node_ids))
            return
        for node_id in node_ids:
            self._v1.terminate_node(node_id)

    def living(self) -> set[str]:
        return set(self._ids({}))

    def _ids(self, filters: Mapping[str, str]) -> list[str]:
        return provider_call(lambda: list(self._v1.non_terminated_nodes(dict(filters))))

    # -- looking ----------------------------------------------------------------------------------

    def read_only(self) -> bool:
        ask = getattr(self._v1, "is_readonly", None)
        return bool(ask()) if ask is not None else False

    def installs_runtime(self) -> bool:
        """Return what its config sets, or the class itself (an attribute of muster's, unknown to Ray)."""
        config = getattr(self._v1, "provider_config", None)
        disabled = isinstance(config, Mapping) and bool(config.get("disable_node_updaters"))
        return disabled or bool(getattr(self._v1, "installs_runtime", False))

    @cached_property
    def listed_within_s(self) -> float:
        """Return how long after its create call a machine may be listed first; the class may know better."""
        known = getattr(self._v1, "listed_within_s", None)
        return float(known) if isinstance(known, int | float) and 0 <= known < math.inf else LISTED_WITHIN_S

    def buys_offers(self) -> bool:
        """Return whether the class says that it buys in the zone and the market that it is given."""
        return bool(getattr(self._v1, "buys_offers", False))

    def listed(self) -> tuple[dict[CloudId, CloudInstance], dict[str, str]]:
        """Return every machine of the cluster, and what is wrong with single ones.

        A machine that cannot be read is listed as unmanaged: it exists, so its record must not end.
        """
        machines: dict[CloudId, CloudInstance] = {}
        problems: dict[str, str] = {}
        for node_id in self._ids({}):
            try:
                machine = provider_call(partial(self._machine, node_id))
            except Exception as error:  # noqa: BLE001 - the others are still listed
                problems[node_id] = f"its tags cannot be read: {error_text(error)}"
                machine = _strange(node_id, "")
            if machine is None:
                continue
            machines[machine.cloud_id] = machine
            if machine.kind is NodeKind.UNMANAGED:
                problems.setdefault(node_id, "its kind is neither head, worker nor unmanaged: left alone")
        return machines, problems

    def _machine(self, node_id: str) -> CloudInstance | None:
        """Return a machine of the cluster; None for others."""
        tags: Mapping[str, str] = self._bare.node_tags(node_id)
        kind, node_type = tags.get(t.TAG_RAY_NODE_KIND), tags.get(t.TAG_RAY_USER_NODE_TYPE, "")
        if kind in _NOT_OURS:
            return None
        if kind not in _KINDS:
            return _strange(node_id, node_type)
        return CloudInstance(
            cloud_id=CloudId(node_id),
            node_type=node_type,
            kind=_KINDS[kind],
            is_running=bool(self._ask("is_running", node_id)),
            request_id=t.request_of(tags.get(t.TAG_RAY_LAUNCH_REQUEST)),
            launch_hash=tags.get(t.TAG_RAY_LAUNCH_CONFIG, ""),
            internal_ip=str(self._ask("internal_ip", node_id) or ""),
            external_ip=str(self._ask("external_ip", node_id) or ""),
            zone=tags.get(t.TAG_MUSTER_ZONE, ""),
            market=tags.get(t.TAG_MUSTER_MARKET, ""),
        )

    def _ask(self, question: str, node_id: str) -> object:
        """Return a detail of a machine; None when the call fails: the machine still counts."""
        try:
            found: object = getattr(self._bare, question)(node_id)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - the machine is listed without this detail
            return None
        return found


def _strange(node_id: str, node_type: str) -> CloudInstance:
    return CloudInstance(
        cloud_id=CloudId(node_id), node_type=node_type, kind=NodeKind.UNMANAGED, is_running=False
    )


class V1Machines(ClusterMachines):
    """The machines of one v1 provider object; whatever its methods raise is an Exception."""

    def __init__(
        self,
        node_provider: Any,  # noqa: ANN401 - duck typed
        *,
        use_internal_ips: bool = False,
        use_external_head_ip: bool = False,
    ) -> None:
        self.v1 = node_provider
        self._shielded = ShieldedProvider(node_provider)
        self._use_internal_ips, self._use_external_head_ip = use_internal_ips, use_external_head_ip

    def machines(self, kind: NodeKind) -> list[Machine]:
        found = []
        for node_id in self._shielded.non_terminated_nodes({t.TAG_RAY_NODE_KIND: _TAGS[kind]}):
            tags, ip = self.tags(node_id), self.address(node_id, is_inside=False)
            node_type = tags.get(t.TAG_RAY_USER_NODE_TYPE, "")
            found.append(Machine(node_id=node_id, node_type=node_type, ip=ip, tags=tags))
        return found

    def left_to_tear_down(self, kind: NodeKind) -> list[str]:
        tags = {t.TAG_RAY_NODE_KIND: _TAGS[kind]}
        find = getattr(self._shielded, "nodes_for_teardown", None)
        named = [] if find is None else list(find(dict(tags)))
        listed = set(self._shielded.non_terminated_nodes(dict(tags))) if named else set()
        return [node_id for node_id in named if node_id not in listed]

    def create_head(self, request_id: str, launch: NodeLaunch, tags: Mapping[str, str]) -> None:
        config = copy.deepcopy(dict(launch.node_config))  # providers write into it
        self._shielded.create_node(config, {**tags, t.TAG_RAY_LAUNCH_REQUEST: request_id}, 1)

    def terminate_machines(self, node_ids: Sequence[str]) -> None:
        for node_id in node_ids:
            self._shielded.terminate_node(node_id)

    def set_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        self._shielded.set_node_tags(node_id, dict(tags))

    def internal_ip(self, node_id: str) -> str:
        return str(self._shielded.internal_ip(node_id) or "")

    def address(self, node_id: str, *, is_inside: bool) -> str:
        if is_inside or self._is_private(node_id):
            return self.internal_ip(node_id)
        return str(self._shielded.external_ip(node_id) or "") or self.internal_ip(node_id)

    def _is_private(self, node_id: str) -> bool:
        """Return whether only the internal address is used, also from outside the cluster's network."""
        if not (self._use_internal_ips and self._use_external_head_ip):
            return self._use_internal_ips
        return self.tags(node_id).get(t.TAG_RAY_NODE_KIND) != t.NODE_KIND_HEAD

    def tags(self, node_id: str) -> Mapping[str, str]:
        return dict(self._shielded.node_tags(node_id))

    def is_gone(self, node_id: str) -> bool:
        return bool(self._shielded.is_terminated(node_id))

    def answers(self, node_id: str) -> bool:
        return bool(self._shielded.is_running(node_id))

    def clean_up(self) -> None:
        clean_up = getattr(self._shielded, "cleanup_cluster_resources", None)
        if clean_up is not None:
            clean_up()

    def prepare_for_head(self, config: dict[str, object]) -> Mapping[str, object] | None:
        prepare = getattr(self._shielded, "prepare_for_head_node", None)
        if prepare is None:
            return None
        prepared = prepare(config)
        return prepared if isinstance(prepared, dict) else config

    def has_own_runner(self) -> bool:
        return has_own_runner(self.v1)

    def runner(
        self, config: ClusterConfig, node_id: str, access: SshAccess, *, is_head: bool = False
    ) -> CommandRunner:
        if not self.has_own_runner():
            return super().runner(config, node_id, access, is_head=is_head)
        return own_runner(
            self.v1,
            node_id,
            auth=config.auth.settings(),
            cluster_name=config.cluster_name,
            use_internal_ip=access.is_inside or self._is_private(node_id),
            docker=to_builtins(config.docker) if config.docker.container_name else None,
        )


# Whose classes have a `get_command_runner` that ours replaces; those of Ray's single clouds are their own.
_DEFAULTS = ("ray.autoscaler.node_provider.", "muster.")


def has_own_runner(provider: object) -> bool:
    """Return whether a v1 provider brings its own command runner, and not Ray's or none."""
    method = getattr(type(provider), "get_command_runner", None) or getattr(
        provider, "get_command_runner", None
    )
    module = str(getattr(method, "__module__", ""))
    return callable(method) and not f"{module}.".startswith(_DEFAULTS)


def own_runner(
    provider: Any,  # noqa: ANN401 - duck typed
    node_id: str,
    *,
    auth: Mapping[str, Any],
    cluster_name: str,
    use_internal_ip: bool = True,
    docker: Mapping[str, Any] | None = None,
) -> CommandRunner:
    """Return a v1 provider's own runner of a machine; blocks as long as the provider does."""
    try:
        theirs = provider.get_command_runner(
            log_prefix=f"{node_id}: ",
            node_id=node_id,
            auth_config=dict(auth),
            cluster_name=cluster_name,
            process_runner=subprocess,
            use_internal_ip=use_internal_ip,
            docker_config=dict(docker or {}),
        )
    except Exception as error:
        raise RemoteError(
            f"get_command_runner of the provider failed for {node_id} ({error_text(error)}): fix the provider"
        ) from error
    if theirs is None:
        raise RemoteError(f"get_command_runner of the provider returned None for {node_id}: fix the provider")
    return OwnRunner(theirs, node_id)
