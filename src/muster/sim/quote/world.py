"""Run an experiment in one variant of a cluster, in virtual time, for several starts: a line of a quote."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from statistics import NormalDist, fmean, stdev
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.autoscaler.monitor import TickInterval
from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, health_key
from muster.errors import ConfigError
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import RunOptions, catalogue_for
from muster.sim.joint.cloud import SPOT, BootTime, JointCluster, SpotPool, SpotSeries
from muster.sim.joint.run import JointResult, JointRun
from muster.sim.joint.tuner import JointExperiment
from muster.sim.quote.learned import MakeCurve
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Costs
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import TrialTemplate
from muster.tune.tune_config import TuneConfig

_BOOT_TICKS = 15.0  # so many in the time of a boot: ticks are short against what they wait for
_LEAST_TICK_S, _MOST_TICK_S = 1.0, 10.0
_QUIET_TICKS = 8.0  # so much longer is the time between two ticks at most, while nothing changes
_UP_S, _DOWN_S = 36_000.0, 1_200.0  # a pool sells for ten hours, then for twenty minutes nothing
_MACHINES = 1_000
_SPANS = 200


class Assumptions(Struct, frozen=True, kw_only=True):
    """What neither the trials nor the cluster file say."""

    boot: BootTime = BootTime()
    request_s: float = 1.0  # from the call that buys a machine to the machine
    end_s: tuple[float, float] = (1.0, 8.0)  # from the call that ends a machine to its end
    # A step has the time of its saving in it. A place without a trial is kept for 5 s, as on Ray.
    costs: Costs = Costs(start_s=5.0, restore_s=5.0, checkpoint_every=1, linger_s=5.0)
    start_sigma: float = 0.3  # how far `start_s` may be off, of its logarithm
    starts: int = 10
    spot_up_s: float = _UP_S  # how long a spot pool lasts, on average
    spot_down_s: float = _DOWN_S


class QuoteVariant(Struct, frozen=True, kw_only=True):
    """One line of a quote: a change of the cluster or of the search."""

    name: str
    change: str  # what to write to get it; "" for the experiment as it is
    spec: ClusterSpec
    tune: TuneConfig


class QuoteLine(Struct, frozen=True, kw_only=True):
    """The answer for one variant; nine of ten runs are expected within the intervals."""

    name: str
    change: str
    cost: float  # $, on average
    cost_low: float
    cost_high: float
    hours: float
    hours_low: float
    hours_high: float
    best: float | None = None
    machines: float = 0.0
    taken: float = 0.0  # machines that the cloud took back


def line_of(
    variant: QuoteVariant,
    template: TrialTemplate,
    make_curve: MakeCurve,
    assumed: Assumptions,
    on_start: Callable[[int], None] = lambda number: None,
) -> QuoteLine:
    """Simulate every start of one variant; `on_start` is called before each."""
    results = []
    for start in range(assumed.starts):
        on_start(start)
        results.append(_run(variant, template, make_curve, assumed, Seed(start)))
    costs, hours = [one.cost for one in results], [one.end_s / 3600.0 for one in results]
    values = [value for one in results for value in one.best.values() if not math.isnan(value)]
    (cost_low, cost_high), (hours_low, hours_high) = interval_of(costs), interval_of(hours)
    return QuoteLine(
        name=variant.name,
        change=variant.change,
        cost=fmean(costs),
        cost_low=cost_low,
        cost_high=cost_high,
        hours=fmean(hours),
        hours_low=hours_low,
        hours_high=hours_high,
        best=fmean(values) if values else None,
        machines=fmean(one.machines for one in results),
        taken=fmean(one.taken for one in results),
    )


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return where nine of ten further values are expected, if their logarithms are normal.

    The outermost of ten values would hold eight of ten further ones at best: a spread that so few values show
    is itself uncertain, and Student's t has that in it. Of fewer than five values it makes no sense; then it
    counts as if there were five.
    """
    if len(values) < 2 or min(values) <= 0:
        return min(values), max(values)
    logs = [math.log(value) for value in values]
    count, middle = len(values), fmean(logs)
    # The 95 % point of Student's t, by the expansion of Cornish and Fisher.
    freedom = max(4, count - 1)
    z = NormalDist().inv_cdf(0.95)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    student_t = z + first / freedom + second / freedom**2 + third / freedom**3
    apart = student_t * stdev(logs) * math.sqrt(1.0 + 1.0 / count)
    return math.exp(middle - apart), math.exp(middle + apart)


def _run(
    variant: QuoteVariant, template: TrialTemplate, make_curve: MakeCurve, assumed: Assumptions, seed: Seed
) -> JointResult:
    cluster = _cluster(variant.spec, assumed, seed)
    tune = variant.tune
    # Draws how long a trial takes to start in this run, within what is known of it.
    factor = math.exp(seed.derive("quote.start").gauss(0.0, assumed.start_sigma))
    costs = assumed.costs
    asked = SimulatedExperiment(
        curve=make_curve(seed),
        space=template.param_space,
        metric=tune.metric if isinstance(tune.metric, str) else "",
        mode=tune.mode if isinstance(tune.mode, str) else "min",
        num_samples=tune.num_samples,
        make_scheduler=lambda: deepcopy(tune.scheduler),
        make_search=None if tune.search_alg is None else lambda: _search(tune.search_alg),
        max_concurrent=tune.max_concurrent_trials or 0,
        resources=size_of(template),
        costs=replace(costs, start_s=costs.start_s * factor, first_s=costs.first_s * factor),
        max_failures=-1,
        seed=seed.derive("quote.search").randrange(2**31),
        given_template=template,
    )
    joint = JointExperiment(name="quote", experiment=asked, knows_limit=True)
    tick_s = cluster.options.tick_s
    interval = TickInterval(tick_s, _QUIET_TICKS * tick_s)
    speeds = {known.name: known.speed for known in variant.spec.node_types}
    return JointRun(cluster, [joint], speed_of=speeds.__getitem__, interval=interval).run()


def _search(given: Any) -> Any:  # noqa: ANN401 - the user's searcher, by object or by name
    from muster.tune.search import create_searcher

    return create_searcher(given) if isinstance(given, str) else deepcopy(given)


def _cluster(spec: ClusterSpec, assumed: Assumptions, seed: Seed) -> JointCluster:
    sells = catalogue_for(spec)
    sells.reports_offers, sells.shutdown_s, sells.api_s = True, assumed.end_s, assumed.request_s
    tick_s = min(max(assumed.boot.expected_s / _BOOT_TICKS, _LEAST_TICK_S), _MOST_TICK_S)
    cluster = JointCluster(seed, RunOptions(spec=spec, catalogue=sells, tick_s=tick_s), Faults.none())
    cluster.cloud.boot_time = assumed.boot
    cluster.cloud.open_pools(seed, _pools(spec, assumed, seed))
    return cluster


def _pools(spec: ClusterSpec, assumed: Assumptions, seed: Seed) -> list[SpotPool]:
    """Every spot pool sells and takes back at random, each by itself."""
    found = []
    for known in spec.node_types:
        for offer in known.offers:
            if offer.market == SPOT:
                key = health_key(known.name, offer.name)
                draw = seed.derive(f"quote.spot.{key}")
                runs = []
                for _ in range(_SPANS):
                    runs.append((_MACHINES, max(1, round(draw.expovariate(1.0 / assumed.spot_up_s) / 60.0))))
                    runs.append((0, max(1, round(draw.expovariate(1.0 / assumed.spot_down_s) / 60.0))))
                found.append(SpotPool(key, SpotSeries(60.0, tuple(runs)), draw.uniform(0.0, 36_000.0)))
    return found


def size_of(template: TrialTemplate) -> PlacementGroupFactory:
    """Return what a trial needs; a ConfigError where that depends on its config."""
    if not isinstance(template.resources, PlacementGroupFactory):
        raise ConfigError("trials whose resources depend on their config cannot be quoted: give one size")
    return template.resources


def checked_spec(spec: ClusterSpec, template: TrialTemplate) -> ClusterSpec:
    """Return the spec; a ConfigError names a type without a price, or trials that fit nowhere."""
    workers = [
        known for known in spec.node_types if known.max_nodes > 0 and known.name != spec.head_node_type
    ]
    unpriced = [known.name for known in workers if not known.is_priced]
    if unpriced or not workers:
        lacking = f"{', '.join(unpriced[:3])} has no price"
        what = lacking if unpriced else "the cluster file has no worker types"
        raise ConfigError(f"a quote needs the price of every node type, and {what}: give price_per_hour")
    bundles = [Resources.of(bundle) for bundle in size_of(template).bundles]
    if not any(all(map(known.resources.holds, bundles)) for known in workers):
        raise ConfigError(
            f"no node type holds a trial, which needs {size_of(template).required_resources}",
            fix=("add one, or ask for less with tune.with_resources"),
        )
    return spec
