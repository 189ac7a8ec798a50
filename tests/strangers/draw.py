"""Draw a world from its seed: cluster file, faults, and what users do while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.strangers.truth import Work, World

from muster.base.resources import Resources
from muster.base.rng import Seed, Stream
from muster.cluster.budget_policy import Budget
from muster.cluster.model import (
    Backoff,
    ClusterSpec,
    Demand,
    LaunchLimits,
    NodeType,
    Objective,
    Offer,
    Strategy,
    Timeouts,
)

# Each fault with the highest rate per occasion; the rate of a world is between a fifth of it and all of it.
FAULTS = {
    "list-fails": 0.2,
    "list-late": 0.5,
    "list-misses": 0.05,
    "list-lingers": 0.5,
    "listed-twice": 0.3,
    "tag-request-lost": 0.5,
    "tag-request-case": 0.5,
    "tag-type-lost": 0.3,
    "tag-type-changed": 0.3,
    "tag-type-case": 0.3,
    "ip-reused": 1.0,
    "sold-out": 0.3,
    "launch-refused": 0.3,
    "launch-call-lost": 0.3,
    "launch-reply-lost": 0.3,
    "launch-slow": 0.4,
    "launch-swallowed": 0.15,
    "terminate-call-lost": 0.3,
    "terminate-reply-lost": 0.3,
    "terminate-refused": 0.3,
    "terminate-ignored": 0.3,
    "terminate-slow": 0.5,
    "machine-dies": 0.01,
    "interruption": 0.01,
    "report-fails": 0.2,
    "report-half": 0.1,
    "report-garbage": 0.2,
    "report-stale": 0.1,
    "node-late": 0.4,
    "node-never": 0.2,
    "node-twice": 0.4,
    "node-restarts": 0.01,
    "node-dies": 0.01,
    "node-id-case": 0.5,
    "node-without-id": 0.5,
    "node-without-ip": 0.5,
    "node-without-both": 0.3,
    "node-stays-unknown": 0.2,
    "node-cloned-id": 0.5,
    "head-without-id": 1.0,
    "drain-call-lost": 0.3,
    "drain-refused": 0.3,
    "drain-ignored": 0.3,
    "install-fails": 0.4,
    "install-hangs": 0.2,
    "install-lies": 0.5,
    "head-replaced": 0.006,
    "ledger-older": 1.0,
    "kill": 1.0,
    "clock-ahead": 0.3,
    "clock-back": 0.3,
    "ledger-fails": 0.03,
    "types-edited": 0.01,
    "limits-edited": 0.015,
    "budget": 1.0,
    "outsider": 0.01,
}
SHARE = 0.2  # of the faults, in one world


def draw_faults(seed: int) -> dict[str, float]:
    chosen = Seed(seed).derive("faults")
    found = {}
    for name, most in FAULTS.items():
        is_in, part = chosen.random() < SHARE, chosen.uniform(0.2, 1.0)
        if is_in:
            found[name] = most if most == 1.0 else most * part
    return found


def draw_spec(seed: int, faults: dict[str, float]) -> ClusterSpec:
    draw = Seed(seed).derive("spec")
    head = NodeType(name="head", resources=Resources.of(CPU=0), max_nodes=1, price_per_hour=0.1)
    workers = [_worker(draw, number) for number in range(draw.randint(1, 4))]
    if sum(known.min_nodes for known in workers) > 3:
        workers = [replace(known, min_nodes=0) for known in workers]
    fewest = 1 + sum(known.min_nodes for known in workers) + 2
    spec = ClusterSpec(
        cluster_name=f"stranger-{seed}",
        head_node_type="head",
        node_types=(head, *workers),
        max_nodes=draw.choice((None, fewest, fewest + 3, fewest + 6)),
        idle_timeout_s=draw.choice((45.0, 120.0, 240.0)),
        objective=Objective.COST if draw.random() < 0.15 else Objective.UTILIZATION,
        install_runtime=draw.random() < 0.35,
        timeouts=_timeouts(draw),
        limits=LaunchLimits(
            upscaling_speed=draw.choice((0.0, 1.0, 5.0)),
            max_concurrent=draw.choice((2, 5, 10)),
            max_request_retries=draw.choice((0, 1, 3)),
        ),
        backoff=Backoff(max_s=60.0, user_action_base_s=20.0, decay_s=60.0, recovery_s=120.0),
    )
    if "budget" in faults:
        total = draw.uniform(0.4, 3.0)
        spec = replace(spec, budget=Budget(total=total, per_hour=draw.choice((None, 4.0, 9.0))))
    return spec


def _timeouts(draw: Stream) -> Timeouts:
    return Timeouts(
        request_s=draw.choice((300.0, 500.0)),  # longer than delays and losses of one launch together
        allocate_s=draw.choice((180.0, 300.0)),
        install_s=draw.choice((120.0, 240.0)),
        terminating_s=draw.choice((60.0, 150.0)),
        stop_requested_s=60.0,
        stopping_s=draw.choice((60.0, 180.0)),
        drain_deadline_s=draw.choice((20.0, 60.0)),
        pending_idle_s=draw.choice((None, 60.0)),
    )


def _worker(draw: Stream, number: int) -> NodeType:
    cpus = draw.choice((2, 4, 8, 16))
    sizes = {"CPU": cpus, "GPU": draw.choice((1, 4))} if draw.random() < 0.3 else {"CPU": cpus}
    price = round(0.3 * cpus + draw.uniform(0, 1), 2)
    most = draw.randint(1, 5)
    known = NodeType(
        name=f"w{number}",
        resources=Resources.of(sizes),
        min_nodes=draw.choice((0, 0, 0, 1, min(2, most))),
        max_nodes=most,
        price_per_hour=price,
    )
    if draw.random() < 0.4:
        return known
    zones = ("east-a", "east-b")[: draw.randint(1, 2)]
    most_of_each = draw.choice((None, None, 1, 3)) if len(zones) > 1 or known.min_nodes < 2 else None
    return replace(
        known,
        offers=tuple(
            Offer(
                zone=zone,
                market=market,
                price_per_hour=round(price * (0.4 if market == "spot" else 1.0) + draw.uniform(0, 0.1), 3),
                max_nodes=most_of_each,
                billing_minimum_s=draw.choice((0.0, 60.0)),
                billing_granularity_s=draw.choice((0.0, 0.0, 300.0)),
            )
            for zone in zones
            for market in ("on-demand", "spot")[: draw.randint(1, 2)]
        ),
    )


def draw_work(world: World, draw: Stream, *, that_fits: bool = False) -> list[Work]:
    """Tasks or a gang that a user starts now."""
    types = [known for known in world.spec.node_types if known.name != "head" and known.max_nodes]
    if not types:
        return []
    known = draw.choice(types)
    part = draw.choice((0.25, 0.5, 1.0))
    shape = Resources({name: max(1, int(units * part)) for name, units in known.resources.items()})
    if not that_fits and draw.random() < 0.05:
        shape = known.resources.times(3)
    duration_s = draw.uniform(40, 300)
    if draw.random() < 0.7:
        count = draw.randint(1, 5)
        return [Work(world.fresh("w"), (shape,), duration_s, world.t) for _ in range(count)]
    size = draw.randint(1, min(3, room_of(world.spec, known)) if that_fits else 4)
    strategy = draw.choice(tuple(Strategy))
    if that_fits and strategy is Strategy.STRICT_PACK:
        size = min(size, int(1 / part))
    return [Work(world.fresh("g"), (shape,) * size, duration_s, world.t, strategy=strategy)]


def room_of(spec: ClusterSpec, known: NodeType) -> int:
    """Return how many nodes of a type there can be next to the head and the minimums of the others."""
    others = 1 + sum(one.min_nodes for one in spec.node_types if one.name != known.name)
    offered = known.max_nodes
    if known.offers and all(offer.max_nodes is not None for offer in known.offers):
        offered = min(offered, sum(offer.max_nodes or 0 for offer in known.offers))
    return offered if spec.max_nodes is None else min(offered, spec.max_nodes - others)


def draw_constraint(world: World, draw: Stream) -> tuple[Demand, ...]:
    """What request_resources asks for: mostly what fits, now and then more than the limits allow."""
    types: Sequence[NodeType] = [known for known in world.spec.node_types if known.name != "head"]
    known = draw.choice(types) if types else None
    if known is None:
        return ()
    return (Demand(shape=known.resources, count=draw.randint(1, known.max_nodes + 1)),)


def edit_types(world: World, draw: Stream) -> None:
    """Remove or rename a worker type, as a user may do at any time."""
    workers = [known for known in world.spec.node_types if known.name != "head"]
    victim = draw.choice(workers)
    if len(workers) < 2:
        return
    world.retired.append(victim)
    renamed = () if draw.random() < 0.5 else (replace(victim, name=f"{victim.name}x"),)
    kept = tuple(known for known in world.spec.node_types if known is not victim)
    world.spec = replace(world.spec, node_types=(*kept, *renamed))


def edit_limits(world: World, draw: Stream) -> None:
    """Change the limits of a type; the cluster's maximum still has room for the minimums."""
    workers = [known for known in world.spec.node_types if known.name != "head"]
    chosen = draw.choice(workers)
    most = draw.randint(0, 5)
    edited = replace(chosen, max_nodes=most, min_nodes=min(most, draw.choice((0, 0, 1))))
    types = tuple(edited if known is chosen else known for known in world.spec.node_types)
    fewest = 1 + sum(known.min_nodes for known in types) + 2
    limit = world.spec.max_nodes
    world.spec = replace(
        world.spec, node_types=types, max_nodes=None if limit is None else max(fewest, limit - 1)
    )
