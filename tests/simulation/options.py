"""Draw everything of a run from its seed before it starts, except the faults.

Timeouts are minutes instead of hours, so that every one of them can expire within a run.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.rng import Seed, Stream
from muster.cluster.model import (
    Backoff,
    ClusterSpec,
    LaunchLimits,
    NodeType,
    Objective,
    Offer,
    Timeouts,
    health_key,
)
from muster.cluster.states import ResizeLimits
from muster.sim.cluster.machines import Catalogue
from muster.sim.cluster.options import HEAD_TYPE, WORKER_TYPES, RunOptions, catalogue_for, head_type

TIMEOUTS = Timeouts(
    request_s=60.0,
    allocate_s=120.0,
    install_s=60.0,
    terminating_s=40.0,
    stop_requested_s=40.0,
    stopping_s=60.0,
    warn_s=30.0,
    listing_grace_s=20.0,
    drain_deadline_s=20.0,
)
BACKOFF = Backoff(base_s=5.0, max_s=60.0, user_action_base_s=20.0, decay_s=60.0, recovery_s=120.0)
RESIZE_SHARE = 0.25  # of the runs
RESIZE_TIMEOUT_S = 40.0
RESIZED = ("CPU", "memory")


def draw_options(seed: Seed) -> RunOptions:
    """Draw the options of this seed. Offers have a stream of their own: others are as before."""
    draw, of_offers = seed.derive("sim.setting"), seed.derive("sim.offers")
    spec = with_limits(seed.derive("sim.resize"), _with_offers(of_offers, _spec(draw)))
    options = RunOptions(
        spec=spec,
        catalogue=_catalogue(draw, spec),
        tick_s=draw.choice((5.0, 8.0, 12.0)),
        waves=draw.randint(2, 8),
        dead_kept_s=draw.choice((0.0, 60.0, 600.0)),
        install_s=draw.choice((5.0, 20.0)),
        runtime_ends_drains=draw.random() < 0.5,
        head_late_s=draw.choice((0.0, 0.0, 30.0)),
    )
    options.catalogue.reports_offers = of_offers.random() < 0.5
    options.catalogue.ids_ignore_case = seed.derive("sim.case").random() < 0.25
    options.broken_setup = _broken_setup(seed.derive("sim.setups"), spec)
    options.shown = _shown(options)
    return options


def _spec(draw: Stream) -> ClusterSpec:
    chosen = draw.sample(WORKER_TYPES, draw.randint(2, len(WORKER_TYPES)))
    workers = [
        replace(
            t,
            min_nodes=draw.choice((0, 0, 0, 1, 2)),
            max_nodes=draw.randint(2, 8),
            priority=draw.choice((0, 0, 1)),
        )
        for t in chosen
    ]
    return ClusterSpec(
        cluster_name="simulated",
        head_node_type=HEAD_TYPE,
        node_types=(head_type(draw.choice((0, 4))), *workers),
        max_nodes=draw.choice((None, 6, 12, 20)),
        idle_timeout_s=draw.choice((20.0, 40.0, 90.0)),
        objective=draw.choices((Objective.UTILIZATION, Objective.COST, Objective.AUTO), (70, 20, 10))[0],
        check_launch_hash=draw.random() < 0.3,
        conserve_gpus=draw.random() < 0.7,
        install_runtime=draw.random() < 0.3,
        timeouts=replace(TIMEOUTS, pending_idle_s=draw.choice((None, 20.0))),
        limits=LaunchLimits(
            upscaling_speed=draw.choice((0.0, 1.0, 10.0)),
            max_concurrent=draw.choice((2, 10)),
            max_request_retries=draw.choice((1, 3)),
        ),
        backoff=BACKOFF,
    )


def _broken_setup(draw: Stream, spec: ClusterSpec) -> str:
    """Draw the type, or one of its offers, whose set-ups fail where the run has that fault."""
    known = draw.choice(spec.node_types[1:])
    offers = [offer.name for offer in known.offers]
    return health_key(known.name, draw.choice(("", *offers)))


_WAYS = tuple((zone, market) for zone in ("a", "b", "c") for market in ("on-demand", "spot"))


def _with_offers(draw: Stream, spec: ClusterSpec) -> ClusterSpec:
    """Give offers to most worker types, in half of the runs."""
    if draw.random() < 0.5:
        return spec
    head, *workers = spec.node_types
    offered = [replace(t, offers=_offers(draw, t)) if draw.random() < 0.75 else t for t in workers]
    return replace(spec, node_types=(head, *offered))


def _offers(draw: Stream, of: NodeType) -> tuple[Offer, ...]:
    return tuple(
        Offer(
            zone=zone,
            market=market,
            price_per_hour=round((of.price_per_hour or 1.0) * draw.choice((0.3, 0.5, 0.5, 1.0, 1.3)), 3),
            max_nodes=draw.choice((None, None, 1, 2, 3)),
            billing_minimum_s=draw.choice((0.0, 60.0)),
            billing_granularity_s=draw.choice((0.0, 0.0, 60.0, 3600.0)),
        )
        for zone, market in draw.sample(_WAYS, draw.randint(1, 4))
    )


def _catalogue(draw: Stream, spec: ClusterSpec) -> Catalogue:
    sells = catalogue_for(spec)
    sells.boot_s = draw.choice(((2.0, 6.0), (10.0, 40.0)))
    if draw.random() < 0.3:
        scarce = draw.choice(spec.node_types[1:])
        sells.capacity = {scarce.name: draw.randint(0, 3)}
    if draw.random() < 0.15:
        sells.quota = draw.randint(4, 8)
    return sells


def _ways(of: NodeType) -> str:
    return ",".join(f"{o.name}@{o.price_per_hour:g}[{o.max_nodes or ''}]" for o in of.offers)


def _shown(options: RunOptions) -> dict[str, object]:
    spec, sells = options.spec, options.catalogue
    workers = (f"{t.name}[{t.min_nodes}..{t.max_nodes}]" for t in spec.node_types[1:])
    return {
        "tick_s": options.tick_s,
        "types": " ".join(workers),
        "offers": " ".join(f"{t.name}:{_ways(t)}" for t in spec.node_types if t.offers) or None,
        "resize": " ".join(f"{t.name}<={t.resize.maximum}" for t in spec.node_types if t.resize) or None,
        "max_nodes": spec.max_nodes,
        "objective": spec.objective.value,
        "idle_timeout_s": spec.idle_timeout_s,
        "pending_idle_s": spec.timeouts.pending_idle_s,
        "check_launch_hash": spec.check_launch_hash,
        "install_runtime": spec.install_runtime,
        "upscaling_speed": spec.limits.upscaling_speed,
        "max_concurrent": spec.limits.max_concurrent,
        "max_request_retries": spec.limits.max_request_retries,
        "boot_s": "{:g}..{:g}".format(*sells.boot_s),
        "capacity": " ".join(f"{name}:{count}" for name, count in sells.capacity.items()) or None,
        "quota": sells.quota,
        "waves": options.waves,
        "head_cpus": spec.node_types[0].resources.to_floats()["CPU"],
        "head_late_s": options.head_late_s,
        "dead_kept_s": options.dead_kept_s,
        "broken_setup": options.broken_setup if spec.install_runtime else None,
        "runtime_ends_drains": options.runtime_ends_drains,
    }


def with_limits(draw: Stream, spec: ClusterSpec) -> ClusterSpec:
    """Let machines of most worker types grow, in some of the runs."""
    if draw.random() >= RESIZE_SHARE:
        return spec
    head, *workers = spec.node_types
    return replace(spec, node_types=(head, *(_growing(draw, known) for known in workers)))


def _growing(draw: Stream, known: NodeType) -> NodeType:
    if draw.random() < 0.3:
        return known
    factor = draw.choice((2, 2, 4))
    most = Resources({name: known.resources.units(name) * factor for name in RESIZED})
    return replace(known, resize=ResizeLimits(maximum=most, timeout_s=RESIZE_TIMEOUT_S))
