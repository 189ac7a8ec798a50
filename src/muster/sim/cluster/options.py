"""Hold the options of a simulated run, and the node types that its cloud sells."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec, NodeType, health_key
from muster.sim.cluster.machines import Catalogue

GIB = 2**30
HEAD_TYPE = "head"


def _worker(name: str, price: float, resources: dict[str, float], **labels: str) -> NodeType:
    market = labels.get("market", "on-demand")
    return NodeType(
        name=name,
        resources=Resources.of(resources),
        price_per_hour=price,
        market=market,
        labels={"market": market, **labels},
        machine_type=f"sim.{name}",
        launch_hash=f"{name}/1",
    )


WORKER_TYPES = (
    _worker("cpu-4", 0.20, {"CPU": 4, "memory": 16 * GIB}, zone="a"),
    _worker("cpu-16", 0.74, {"CPU": 16, "memory": 64 * GIB}, zone="a"),
    _worker("cpu-16-spot", 0.26, {"CPU": 16, "memory": 64 * GIB}, zone="b", market="spot"),
    _worker("mem-8", 0.60, {"CPU": 8, "memory": 128 * GIB}, zone="b"),
    _worker("gpu-1", 1.20, {"CPU": 8, "memory": 32 * GIB, "GPU": 1}, zone="a"),
    _worker("gpu-4", 4.40, {"CPU": 32, "memory": 128 * GIB, "GPU": 4}, zone="b"),
)


@dataclass
class RunOptions:
    """The config, what the cloud sells, and the durations of one run."""

    spec: ClusterSpec
    catalogue: Catalogue
    tick_s: float = 5.0
    faulty_ticks: int = 90
    calm_s: float = 1500.0  # how long the cluster has to come to rest once the faults stop
    min_calm_s: float = 240.0  # how long calm is watched at least: most work ends and idle machines leave
    waves: int = 6  # bursts of work during the faulty part
    dead_kept_s: float = 60.0  # how long the runtime lists dead nodes
    install_s: float = 10.0
    broken_setup: str = ""  # the type, or the offer by `health_key`, whose set-ups may fail each time
    runtime_ends_drains: bool = True
    head_late_s: float = 0.0
    shown: dict[str, object] = field(default_factory=dict)  # every drawn option, for the header


def head_type(cpus: int = 0) -> NodeType:
    """Return the node type of the head."""
    return NodeType(
        name=HEAD_TYPE,
        resources=Resources.of({"CPU": cpus, "memory": 8 * GIB}),
        max_nodes=1,
        price_per_hour=0.10,
        labels={"market": "on-demand", "zone": "a"},
        machine_type="sim.head",
        launch_hash="head/1",
    )


def catalogue_for(spec: ClusterSpec) -> Catalogue:
    """Return a catalogue of everything that the config names, and of all other types."""
    types = {t.name: t for t in (*WORKER_TYPES, *spec.node_types)}
    prices = {t.name: t.price_per_hour or 0.0 for t in types.values()}
    prices |= {health_key(t.name, o.name): o.price_per_hour or 0.0 for t in types.values() for o in t.offers}
    return Catalogue(types=types, prices=prices)
