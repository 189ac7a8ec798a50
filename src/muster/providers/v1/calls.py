"""V1Calls makes the few calls that the adapter needs of a v1 provider, whatever class it is made from.

Duck typed: a provider written against Ray's NodeProvider, against muster's or against nothing at all works,
also one that lacks the newer methods. Calls may block; the adapter's threads make them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from muster.base.foreign import error_text
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, NodeKind, Offer
from muster.config.node_launch import NodeLaunch
from muster.providers.node_provider import NodeBatch
from muster.providers.v1 import tags as t
from muster.providers.v1.failures import ShieldedProvider, provider_call
from muster.providers.v1.thread_pools import Job, Pool

_KINDS = {t.NODE_KIND_HEAD: NodeKind.HEAD, t.NODE_KIND_WORKER: NodeKind.WORKER}
_NOT_OURS = frozenset({None, "", t.NODE_KIND_UNMANAGED})


class V1Calls:
    """A V1Calls translates the calls to one v1 provider."""

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
        offers: Sequence[Offer] = (),
        part: int = 0,
    ) -> set[str] | None:
        """Makes one create call; returns the new ids, or None where the provider does not report them.

        An offer is passed as tags, so that the list shows it later, and under `offer` in the node config. A
        provider with `create_node_batch` gets all of the offers, and which part of the request this is.
        """
        tags = t.worker_tags(self._cluster_name, launch.node_type, launch.launch_hash, request_id)
        config = copy.deepcopy(dict(launch.node_config))  # providers write into it
        offer = offers[0] if offers else None
        if self.repeats_safely():
            own = {} if offer is None else t.offer_tags(offer.zone, offer.market)
            batch = NodeBatch(
                node_config=config, tags={**tags, **own}, count=count, offers=tuple(offers), part=part
            )
            return set(self._v1.create_node_batch(batch))
        if offer is not None:
            tags |= t.offer_tags(offer.zone, offer.market)
            price = offer.price_per_hour
            config["offer"] = {"zone": offer.zone, "market": offer.market, "price_per_hour": price}
        made = self._create(config, tags, count, launch)
        return set(made) if isinstance(made, Mapping) else None

    def _create(self, config: dict[str, Any], tags: dict[str, str], count: int, launch: NodeLaunch) -> object:
        resources, labels = dict(launch.resources), dict(launch.labels)
        newest = getattr(self._v1, "create_node_with_resources_and_labels", None)
        if newest is not None:
            return newest(config, tags, count, resources, labels)
        older = getattr(self._v1, "create_node_with_resources", None)
        if older is not None:
            return older(config, tags, count, resources)
        return self._v1.create_node(config, tags, count)

    def made_for(self, request_id: RequestId, node_type: str) -> set[str]:
        """Returns living nodes of this request and type, whichever process created them.

        The answer is checked against the tags: with a provider that filters loosely, everything would seem to
        exist already, and nothing would ever be bought.
        """
        wanted = {t.TAG_RAY_LAUNCH_REQUEST: t.request_tag(request_id), t.TAG_RAY_USER_NODE_TYPE: node_type}
        return {
            node_id for node_id in self._ids(wanted) if wanted.items() <= self._v1.node_tags(node_id).items()
        }

    def keeps_request_tags(self) -> bool:
        """Returns whether any listed node carries the tag of its launch: then others would, too."""
        return any(self._v1.node_tags(node_id).get(t.TAG_RAY_LAUNCH_REQUEST) for node_id in self._ids({}))

    # -- terminating ------------------------------------------------------------------------------

    @property
    def max_terminate(self) -> int | None:
        """Returns how many ids one terminate call takes; None: any number."""
        limit = getattr(self._v1, "max_terminate_nodes", None)
        return limit if isinstance(limit, int) and limit > 0 else None

    def terminate(self, node_ids: Sequence[str]) -> None:
        together = getattr(self._v1, "terminate_nodes", None)
        if together is not None and len(node_ids) > 1:
            together(list(node_ids))
            return
        for node_id in node_ids:
            self._v1.terminate_node(node_id)

    def living(self, node_ids: Iterable[str]) -> set[str]:
        """Returns those that are still listed."""
        return set(node_ids) & set(self._ids({}))

    def _ids(self, filters: Mapping[str, str]) -> list[str]:
        return provider_call(lambda: list(self._v1.non_terminated_nodes(dict(filters))))

    # -- looking ----------------------------------------------------------------------------------

    def read_only(self) -> bool:
        ask = getattr(self._v1, "is_readonly", None)
        return bool(ask()) if ask is not None else False

    def installs_runtime(self) -> bool:
        """Returns what its config sets, or the class itself (an attribute of muster's, unknown to Ray)."""
        config = getattr(self._v1, "provider_config", None)
        disabled = isinstance(config, Mapping) and bool(config.get("disable_node_updaters"))
        return disabled or bool(getattr(self._v1, "installs_runtime", False))

    def repeats_safely(self) -> bool:
        """Returns whether a repeated create call buys nothing more, by a token that the cloud keeps."""
        return callable(getattr(self._v1, "create_node_batch", None))

    def buys_offers(self) -> bool:
        """Returns whether the class says that it buys in the zone and the market that it is given."""
        return bool(getattr(self._v1, "buys_offers", False))

    def listed(self) -> tuple[dict[CloudId, CloudInstance], dict[str, str]]:
        """Returns every machine of the cluster, and what is wrong with single ones.

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
        """Returns a machine of the cluster; None for others."""
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
        """Returns a detail of a machine; None when the call fails, which is no reason to miss the machine."""
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


F = TypeVar("F")

REMEMBERED = 10_000  # ids; what an earlier process took on is found by its effects


class Requests(Generic[F]):
    """A Requests counts the open jobs of requests, and keeps their failures of type `F`."""

    def __init__(self) -> None:
        self._jobs: dict[RequestId, int] = {}  # still to do per request, oldest request first
        self._failures: list[tuple[RequestId, F]] = []
        self._lock = threading.Lock()

    def start(self, request_id: RequestId, jobs: Sequence[Job], pool: Pool) -> None:
        """Submits the jobs of a request; an id that was seen before changes nothing.

        A request that a closed pool refuses is forgotten: if it comes again, it is new.
        """
        with self._lock:
            if request_id in self._jobs:
                return
            self._jobs[request_id] = len(jobs)
            if len(self._jobs) > REMEMBERED:
                oldest_done = next((known for known, left in self._jobs.items() if left <= 0), None)
                self._jobs.pop(oldest_done or request_id)
        for job in jobs:
            try:
                pool.submit(job)
            except RuntimeError:
                with self._lock:
                    self._jobs.pop(request_id, None)
                raise

    def job_done(self, request_id: RequestId) -> None:
        with self._lock:
            if request_id in self._jobs:
                self._jobs[request_id] -= 1

    def fail(self, request_id: RequestId, failure: F) -> None:
        with self._lock:
            self._failures.append((request_id, failure))

    def poll(self) -> tuple[F, ...]:
        """Returns every failure since the last poll."""
        with self._lock:
            polled, self._failures = self._failures, []
        return tuple(failure for _, failure in polled)

    def is_open(self, request_id: RequestId) -> bool:
        """Returns whether something is still to come of the request: work, or a failure to poll."""
        with self._lock:
            return self._jobs.get(request_id, 0) > 0 or any(r == request_id for r, _ in self._failures)
