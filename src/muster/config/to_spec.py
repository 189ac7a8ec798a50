"""Turns a ClusterConfig in Ray's terms into the ClusterSpec of the planner."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from msgspec.structs import replace

from muster.base.resources import Resources
from muster.cluster.model import (
    ClusterSpec,
    LaunchLimits,
    NodeReport,
    NodeStatus,
    NodeType,
    NoticePolicy,
    RuntimeReport,
)
from muster.cluster.spending import Budget, ForecastPolicy
from muster.config.load import load_config
from muster.config.node_launch import NodeLaunch, node_launches
from muster.config.prices import PriceTable, check_prices, load_prices, offers_of_type, unheld
from muster.config.rack import rack_hosts
from muster.config.schema import BudgetConfig, ClusterConfig, NodeTypeConfig
from muster.errors import ConfigError


def load_spec(path: Path) -> ClusterSpec:
    """Returns the spec of a cluster file and its price file; ConfigError names file, line, key and fix."""
    config = load_config(path)
    return to_spec(config, load_prices(config, path))


def to_spec(config: ClusterConfig, prices: PriceTable | None = None) -> ClusterSpec:
    """Returns what the planner needs; counts of workers become counts of nodes, the head included."""
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
    """Raises ConfigError where the price file lacks a type; `load` has checked what needs no price file."""
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
    return NodeType(
        name=name,
        resources=Resources.of(entry.resources),
        min_nodes=_least(config, entry, is_head=is_head),
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
        existing=_existing(config, name),
    )


def _existing(config: ClusterConfig, name: str) -> int | None:
    """Returns how many computers of a type a rack has; None where machines are bought."""
    provider = config.provider
    if provider.type != "local" or provider.coordinator_address:
        return None
    return sum(host.node_type == name for host in rack_hosts(config).values())


def _least(config: ClusterConfig, entry: NodeTypeConfig, *, is_head: bool) -> int:
    """Returns the least nodes of a type. The head counts for its own type, as in Ray.

    But not in a rack: there the minimum is by default all computers of a list that does not have the head.
    """
    is_beside_head = is_head and config.provider.type == "local" and entry.min_workers > 0
    return entry.min_workers + int(is_beside_head)


class RetentionNumbers(TypedDict):
    """RetentionNumbers are keyword arguments of the store's Retention; config may not import stores."""

    max_age_s: float
    max_ended: int
    max_decisions: int
    max_decision_bytes: int


def retention_of(config: ClusterConfig) -> RetentionNumbers:
    """Returns the arguments for `Retention(**retention_of(config))`."""
    kept = config.muster.retention
    return RetentionNumbers(
        max_age_s=kept.max_age_s,
        max_ended=kept.max_records,
        max_decisions=kept.max_decisions,
        max_decision_bytes=kept.max_decision_bytes,
    )


def readonly_spec(base: ClusterSpec, report: RuntimeReport) -> ClusterSpec:
    """Returns `base` with one node type per kind of live node, none larger than it is, none ever idle."""
    alive = [node for node in report.nodes if node.status is not NodeStatus.DEAD]
    groups: dict[str, list[NodeReport]] = {}
    for node in alive:
        groups.setdefault(type_name(node), []).append(node)
    head = next((node for node in alive if node.is_head), None)
    return replace(
        base,
        head_node_type=type_name(head) if head else "",
        node_types=tuple(_observed_node_type(name, nodes) for name, nodes in groups.items()),
        max_nodes=len(alive),
        idle_timeout_s=None,
    )


def type_name(node: NodeReport) -> str:
    """Returns the type that the node reports, else one of its own."""
    return node.node_type or f"node_{node.node_id}"


def _observed_node_type(name: str, nodes: list[NodeReport]) -> NodeType:
    """Nodes of one name are taken to be alike; the first one has the size."""
    first = nodes[0]
    return NodeType(name=name, resources=first.total, max_nodes=len(nodes), labels=first.labels)
