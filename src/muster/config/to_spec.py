"""Turn a ClusterConfig in Ray's terms into the ClusterSpec of the planner, and into machines to launch."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.cluster.budget_policy import Budget, ForecastPolicy
from muster.cluster.model import (
    ClusterSpec,
    LaunchLimits,
    NodeReport,
    NodeStatus,
    NodeType,
    NoticePolicy,
    RuntimeReport,
)
from muster.config.prices import PriceTable, check_prices, offers_of_type, unheld
from muster.config.schema import BudgetConfig, ClusterConfig, NodeTypeConfig
from muster.errors import ConfigError


def to_spec(config: ClusterConfig, prices: PriceTable | None = None) -> ClusterSpec:
    """Return what the planner needs; counts of workers become counts of nodes, the head included."""
    muster = config.muster
    launches = node_launches(config)
    if prices is not None:
        check_prices(config, prices, {name: launch.machine_type for name, launch in launches.items()})
    node_types = tuple(
        _node_type(config, launches[name], entry, prices)
        for name, entry in config.available_node_types.items()
    )
    return ClusterSpec(
        cluster_name=config.cluster_name,
        head_node_type=config.head_type,
        node_types=node_types,
        max_nodes=config.max_workers + 1,
        idle_timeout_s=config.idle_timeout_minutes * 60,
        objective=muster.objective,
        check_launch_hash=not config.provider.disable_launch_config_check,
        conserve_gpus=muster.conserve_gpus,
        install_runtime=not config.provider.disable_node_updaters,
        timeouts=muster.timeouts,
        limits=LaunchLimits(
            upscaling_speed=config.upscaling_speed,
            max_concurrent=muster.limits.max_concurrent,
            max_request_retries=muster.limits.max_request_retries,
        ),
        backoff=muster.backoff,
        notices=NoticePolicy(
            ahead_s=muster.notices.ahead_s,
            rebalance_s=muster.notices.rebalance_s,
            pool_pause_s=muster.notices.pool_pause_s,
        ),
        budget=_budget(muster.budget, node_types, prices),
        consolidation=muster.consolidation,
        forecasts=ForecastPolicy(
            is_used=muster.forecasts.used,
            boot_s=muster.forecasts.boot_s,
            keep_s=muster.forecasts.keep_s,
            most_boot_share=muster.forecasts.most_boot_share,
            first_slots=muster.forecasts.first_slots,
        ),
    )


_PERIODS_S = {"hour": 3600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}


def _budget(
    given: BudgetConfig | None, node_types: Iterable[NodeType], prices: PriceTable | None
) -> Budget | None:
    """Raise ConfigError where the price file lacks a type; `load` has checked what needs no price file."""
    if given is None:
        return None
    unpriced = [known.name for known in node_types if known.max_nodes > 0 and not known.is_priced]
    if prices is not None and unpriced:
        raise ConfigError(unheld(unpriced), path="muster.budget", file=prices.file)
    period_s = _PERIODS_S[given.period] if given.period else None
    return Budget(per_hour=given.per_hour, total=given.total, period_s=period_s)


def _node_type(
    config: ClusterConfig, launch: NodeLaunch, entry: NodeTypeConfig, prices: PriceTable | None
) -> NodeType:
    name = launch.node_type
    is_head = name == config.head_type
    # The head counts for its own type, as in Ray, unless the rules say that the minimum is without it.
    is_extra = is_head and config.rules.head_is_extra and entry.min_workers > 0
    return NodeType(
        name=name,
        resources=Resources.of(entry.resources),
        min_nodes=entry.min_workers + int(is_extra),
        max_nodes=config.type_max_workers(name) + int(is_head),
        labels=entry.labels,
        priority=entry.priority,
        idle_timeout_s=entry.idle_timeout_s,
        price_per_hour=entry.price_per_hour,
        market=entry.market.value,
        speed=entry.speed,
        machine_type=launch.machine_type,
        launch_hash=launch.launch_hash,
        offers=offers_of_type(config, name, launch.machine_type, prices),
        existing=config.rules.existing(config, name),
    )


def readonly_spec(base: ClusterSpec, report: RuntimeReport) -> ClusterSpec:
    """Return `base` with one node type per kind of live node, none larger than it is, none ever idle."""
    alive = [node for node in report.nodes if node.status is not NodeStatus.DEAD]
    groups: dict[str, list[NodeReport]] = {}
    for node in alive:
        groups.setdefault(type_name(node), []).append(node)
    head = next((node for node in alive if node.is_head), None)
    return replace(
        base,
        head_node_type=type_name(head) if head else "",
        # Nodes of one name are taken to be alike; the first one has the size.
        node_types=tuple(
            NodeType(name=name, resources=nodes[0].total, max_nodes=len(nodes), labels=nodes[0].labels)
            for name, nodes in groups.items()
        ),
        max_nodes=len(alive),
        idle_timeout_s=None,
    )


def type_name(node: NodeReport) -> str:
    """Return the type that the node reports, else a type for it alone."""
    return node.node_type or f"node_{node.node_id}"


class NodeLaunch(Struct, frozen=True, kw_only=True):
    """One node type, ready for a provider's create call."""

    node_type: str
    node_config: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    launch_hash: str = ""
    machine_type: str = ""


def node_launches(config: ClusterConfig) -> dict[str, NodeLaunch]:
    """Return every type of the config, the head's included, in the order of the file."""
    auth = config.auth.settings()
    shares = config.rules.memory_shares(config)
    return {
        name: NodeLaunch(
            node_type=name,
            node_config=entry.node_config or {},
            resources={**entry.resources, "memory": shares[name]} if name in shares else entry.resources,
            labels=entry.labels,
            launch_hash=launch_hash(entry.node_config or {}, auth),
            machine_type=config.rules.machine_type(entry.node_config or {}),
        )
        for name, entry in config.available_node_types.items()
    }


_LONG = 2**63
_KEY_FILES = ("ssh_private_key", "ssh_public_key")


def canonical_json(value: object) -> str:
    """Return one text for equal values, whatever the order of their keys."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _plain(value: object) -> object:
    """Return what JSON can write: YAML has keys that are not text, and numbers of any length."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return hex(value) if isinstance(value, int) and abs(value) >= _LONG else value


def digest(text: str) -> str:
    """Return the sha256 of a text, encoded for a tag."""
    return encoded(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


def encoded(raw: bytes) -> str:
    """Return lower-case base32hex without padding: short and plain enough for a tag of any cloud."""
    return base64.b32hexencode(raw).decode("ascii").lower().rstrip("=")


def launch_hash(node_config: Mapping[str, Any], auth: Mapping[str, Any]) -> str:
    """Return a hash that changes when new machines would differ: their config, or who may log in.

    Key files count by their contents, read when this pair is first seen; one that is not on this computer
    counts by its path.
    """
    return _launch_hash(canonical_json(dict(node_config)), canonical_json(dict(auth)))


@lru_cache(maxsize=4096)
def _launch_hash(node_config: str, auth: str) -> str:
    resolved = {
        key: _contents(value) if key in _KEY_FILES else value for key, value in json.loads(auth).items()
    }
    return digest(canonical_json([json.loads(node_config), resolved]))


def _contents(path: object) -> object:
    try:
        file = Path(str(path)).expanduser()
        if not file.is_file():  # a device may never end
            return path
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):  # not here, not a path, no such home
        return path
