"""Build the scenario of `bench economy`: machine types, prices, spot pools, trials, and the peer.

Every number is a parameter; the defaults are those that the published figures are for. One start is one seed:
of the search, of the trials' times, of the boots, and of where the recorded spot series begin.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.budget_policy import Consolidation, ForecastPolicy
from muster.cluster.model import (
    ClusterSpec,
    LaunchLimits,
    NodeType,
    Objective,
    Offer,
    Timeouts,
    health_key,
)
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue
from muster.sim.cluster.options import HEAD_TYPE, RunOptions, head_type
from muster.sim.joint.cloud import BootTime, JointCluster, SpotModel, SpotPool, SpotSeries
from muster.sim.joint.run import JointResult, JointRun
from muster.sim.joint.tuner import JointExperiment
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS
from muster.sim.tune.trial import Config, Curve, Metrics
from muster.trials.placement_group import PlacementGroupFactory
from muster.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining
from muster.tune.search.space import loguniform, uniform

DATA = Path(__file__).parent / "data" / "economy"
HEAD = "m7i.xlarge"
_PROBLEM = PROBLEMS["power_law"]
_NORMAL = NormalDist()


def assign_pools(
    keys: Sequence[str], series: Sequence[SpotSeries], assignment: Seed, start: Seed
) -> list[SpotPool]:
    """Give each pool a series, always the same for one `assignment`, and a start drawn from `start`."""
    chosen, begun = assignment.derive("spot.assignment"), start.derive("spot.start")
    pools = []
    for key in keys:
        one = chosen.choice(series)
        pools.append(SpotPool(key, one, begun.uniform(0.0, one.length_s)))
    return pools


@dataclass(frozen=True)
class Switches:
    """The features of ours that the benchmark turns off one by one."""

    price_aware: bool = True  # types and offers by their price, not by utilisation
    removes: bool = True  # what nothing will need goes at once; what is needed again soon stays
    buys_ahead: bool = True  # for a rung that is about to open, one boot time ahead
    not_too_late: bool = True  # nothing is launched that comes too late or is not worth its boot
    spot: bool = True
    consolidates: bool = True

    @property
    def uses_forecasts(self) -> bool:
        return self.removes or self.buys_ahead or self.not_too_late


PEER = Switches(*(False,) * 6)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Every number of the benchmark."""

    speeds: Mapping[str, float] = field(
        default_factory=lambda: {
            "g4dn.xlarge": 1.0,
            "g6.xlarge": 1.5,
            "g5.xlarge": 1.8,
            "g6.2xlarge": 1.5,
            "g5.2xlarge": 1.8,
            "g6.12xlarge": 1.5,
            "g5.12xlarge": 1.8,
        }
    )  # in the order in which a peer without prices sees them
    most_nodes: int = 256  # as many as there are trials: no limit
    tick_s: float = 10.0
    publish_s: float = 10.0
    idle_timeout_s: float = 300.0
    drain_deadline_s: float = 60.0
    upscaling_speed: float = 1.0
    max_concurrent: int = 10
    billing_minimum_s: float = 60.0
    boot: BootTime = field(default_factory=BootTime)
    spot: SpotModel = field(default_factory=SpotModel)
    single_series_machines: int = 32  # of a series of 0 and 1
    series_factor: int = 2  # of a series of n
    assignment_seed: int = 0
    trials: int = 256
    step_s: float = 60.0
    step_sigma: float = 0.4
    max_t: int = 81
    grace: int = 1
    eta: int = 3
    members: int = 32
    pbt_steps: int = 60
    perturbation: int = 5
    save_s: float = 5.0
    restore_s: float = 20.0
    mixed_trials: int = 64
    mixed_apart_s: float = 1200.0
    mixed_shapes: tuple[Mapping[str, float], ...] = (
        {"GPU": 1, "CPU": 4},
        {"GPU": 1, "CPU": 8},
        {"CPU": 8},
        {"GPU": 4},
    )

    # -- machines ---------------------------------------------------------------------------------

    def spec(self, switches: Switches) -> ClusterSpec:
        """Return the cluster file of one side."""
        types = tuple(self._node_type(name, switches) for name in self.speeds)
        head = _replaced(head_type(4), price_per_hour=self.head_price())
        usual = ForecastPolicy()
        policy = ForecastPolicy(
            is_used=switches.uses_forecasts,
            boot_s=self.boot.expected_s,
            keep_s=usual.keep_s if switches.removes else self.idle_timeout_s,
            least_probability=usual.least_probability
            if switches.buys_ahead
            else 2.0,  # nothing is that likely
            most_boot_share=usual.most_boot_share if switches.not_too_late else 1e6,
            first_slots=usual.first_slots if switches.not_too_late else 1_000_000,
        )
        return ClusterSpec(
            cluster_name="economy",
            head_node_type=HEAD_TYPE,
            node_types=(head, *types),
            max_nodes=self.most_nodes + 1,
            idle_timeout_s=self.idle_timeout_s,
            objective=Objective.COST if switches.price_aware else Objective.UTILIZATION,
            limits=LaunchLimits(upscaling_speed=self.upscaling_speed, max_concurrent=self.max_concurrent),
            forecasts=policy,
            timeouts=Timeouts(drain_deadline_s=self.drain_deadline_s),
            consolidation=Consolidation.CONSERVATIVE if switches.consolidates else Consolidation.OFF,
        )

    def _node_type(self, name: str, switches: Switches) -> NodeType:
        rows = prices()[name]
        amounts = {"CPU": float(rows[0]["cpus"]), "GPU": float(rows[0]["gpus"])}
        amounts["memory"] = float(rows[0]["memory_gib"]) * 2**30
        offers = [Offer(price_per_hour=float(rows[0]["on_demand"]), billing_minimum_s=self.billing_minimum_s)]
        if switches.spot:
            offers += [
                Offer(
                    zone=row["zone"],
                    market="spot",
                    price_per_hour=float(row["spot"]),
                    billing_minimum_s=self.billing_minimum_s,
                )
                for row in rows
            ]
        return NodeType(
            name=name,
            resources=Resources.of(amounts),
            max_nodes=self.most_nodes,
            price_per_hour=float(rows[0]["on_demand"]),
            speed=self.speeds[name] if switches.price_aware else 1.0,
            machine_type=name,
            launch_hash=name,
            offers=tuple(offers),
        )

    def cluster(self, switches: Switches, seed: int) -> JointCluster:
        """Return the world of one start, before anything has begun."""
        spec = self.spec(switches)
        charged = {t.name: t.price_per_hour or 0.0 for t in spec.node_types}
        charged |= {
            health_key(t.name, o.name): o.price_per_hour or 0.0 for t in spec.node_types for o in t.offers
        }
        sells = Catalogue(types={t.name: t for t in spec.node_types}, prices=charged, reports_offers=True)
        options = RunOptions(spec=spec, catalogue=sells, tick_s=self.tick_s)
        cluster = JointCluster(Seed(seed), options, Faults.none())
        cluster.cloud.boot_time, cluster.cloud.model = self.boot, self.spot
        keys = [health_key(t.name, o.name) for t in spec.node_types for o in t.offers if o.market == "spot"]
        pools = assign_pools(keys, self.series(), Seed(self.assignment_seed), Seed(seed))
        cluster.cloud.open_pools(Seed(seed), pools)
        return cluster

    def series(self) -> list[SpotSeries]:
        """Return the recorded series as numbers of machines."""
        return [
            SpotSeries(
                one["step_s"],
                tuple((self._machines(number, one["nodes"]), steps) for number, steps in one["runs"]),
            )
            for one in recorded()
        ]

    def _machines(self, number: int, asked: int) -> int:
        return number * (self.single_series_machines if asked == 1 else self.series_factor)

    # -- trials -----------------------------------------------------------------------------------

    def experiments(self, workload: str, seed: int) -> list[JointExperiment]:
        """Return the experiments of a workload: asha, hyperband, pbt or mixed."""
        one_gpu = {"GPU": 1, "CPU": 1}
        if workload == "mixed":
            return [
                JointExperiment(
                    name=f"mixed-{number}",
                    experiment=self._asha(self.mixed_trials, shape, seed * 10 + number),
                    start_s=number * self.mixed_apart_s,
                )
                for number, shape in enumerate(self.mixed_shapes)
            ]
        made = {
            "asha": lambda: self._asha(self.trials, one_gpu, seed),
            "hyperband": lambda: self._experiment(
                self.trials,
                one_gpu,
                seed,
                lambda: HyperBandScheduler(max_t=self.max_t, reduction_factor=self.eta),
            ),
            "pbt": lambda: self._pbt(one_gpu, seed),
        }[workload]()
        return [JointExperiment(name=workload, experiment=made)]

    def _asha(self, trials: int, shape: Mapping[str, float], seed: int) -> SimulatedExperiment:
        def scheduler() -> ASHAScheduler:
            return ASHAScheduler(max_t=self.max_t, grace_period=self.grace, reduction_factor=self.eta)

        return self._experiment(trials, shape, seed, scheduler)

    def _pbt(self, shape: Mapping[str, float], seed: int) -> SimulatedExperiment:
        def scheduler() -> PopulationBasedTraining:
            mutations = {"lr": loguniform(1e-4, 1.0), "momentum": uniform(0.0, 1.0)}
            return PopulationBasedTraining(
                "training_iteration",
                perturbation_interval=self.perturbation,
                hyperparam_mutations=mutations,
                seed=seed,
            )

        made = self._experiment(self.members, shape, seed, scheduler)
        return replace(made, max_t=self.pbt_steps)

    def _experiment(
        self, trials: int, shape: Mapping[str, float], seed: int, scheduler: Callable[[], object]
    ) -> SimulatedExperiment:
        return SimulatedExperiment(
            curve=PacedCurve(_PROBLEM.curve(seed), self.step_s, self.step_sigma, seed),
            space=_PROBLEM.space(),
            metric=_PROBLEM.metric,
            mode=_PROBLEM.mode,
            num_samples=trials,
            make_scheduler=scheduler,
            resources=PlacementGroupFactory([dict(shape)]),
            costs=Costs(save_s=self.save_s, restore_s=self.restore_s, checkpoint_every=1),
            max_failures=-1,
            seed=seed,
        )

    def run(self, workload: str, switches: Switches, seed: int) -> JointResult:
        """Run one start of a workload on one side."""
        cluster = self.cluster(switches, seed)
        asked = [
            replace(one, publishes=switches.uses_forecasts or switches.consolidates)
            for one in self.experiments(workload, seed)
        ]
        joint = JointRun(cluster, asked, speed_of=self.speeds.__getitem__, publish_s=self.publish_s)
        return joint.run()

    def best_price(self, switches: Switches) -> float:
        """Return the least $ for an hour of one trial on a machine of speed 1."""
        return min(
            (offer.price_per_hour or 0.0) / (known.resources.to_floats()["GPU"] * self.speeds[known.name])
            for known in self.spec(switches).node_types
            if known.name in self.speeds
            for offer in known.offers
        )

    def head_price(self) -> float:
        return float(prices()[HEAD][0]["on_demand"])

    def value_range(self) -> float:
        """Return the range of final values over the search space: what 0.2 % of the range means."""
        worst = max(
            _PROBLEM.loss({"lr": lr, "momentum": momentum}, float(self.max_t))
            for lr in (1e-4, 1.0)
            for momentum in (0.0, 1.0)
        )
        return worst - _PROBLEM.optimum


@dataclass(frozen=True)
class PacedCurve(Curve):
    """A curve whose steps take a time of their own for every config."""

    inner: Curve
    step_s: float
    sigma: float
    seed: int

    def seconds(self, config: Config, iteration: int) -> float:
        return self.step_s * math.exp(self.sigma * _normal(f"{self.seed}/{sorted(config.items())!r}"))

    def metrics(self, config: Config, iteration: int) -> Metrics:
        return self.inner.metrics(config, iteration)


@cache
def _normal(text: str) -> float:
    drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return _NORMAL.inv_cdf((drawn + 0.5) / 2.0**64)


def _replaced(node_type: NodeType, **changes: object) -> NodeType:
    from msgspec.structs import replace as struct_replace

    return struct_replace(node_type, **changes)


@cache
def prices() -> dict[str, list[dict[str, str]]]:
    """Return the rows of prices by machine type, in the order of the zones."""
    found: dict[str, list[dict[str, str]]] = {}
    with (DATA / "prices.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["type"], []).append(row)
    return found


@cache
def recorded() -> list[dict[str, object]]:
    return json.loads((DATA / "spot.json").read_text(encoding="utf-8"))["series"]
