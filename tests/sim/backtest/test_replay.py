"""A history replayed: the same settings give the same bill, others another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.mistakes.views import assert_line, assert_view
from tests.sim.backtest.recorded import RecordedCluster, spec, with_offers

from muster.base.rng import Seed
from muster.cluster.model import Objective, Offer
from muster.config.prices import parse_prices
from muster.errors import ConfigError, StoreError
from muster.sim.backtest.compare import backtest
from muster.sim.backtest.recording import read_recording
from muster.sim.backtest.replay import Replay, SpotPools, Variant
from muster.sim.backtest.variants import VariantOptions, only_market, read_spot, variants_of, with_prices
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import RunOptions, catalogue_for
from muster.sim.joint.cloud import JointCluster, SpotSeries
from muster.sim.joint.run import JointRun
from muster.sim.joint.tuner import JointExperiment
from muster.sim.tune.experiment import SimulatedExperiment
from muster.stores.history.files import HistoryWriter
from muster.trials.placement_group import PlacementGroupFactory
from muster.tune.search.space import uniform


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighty minutes with bursts of work, and an end at which everything is done."""
    cluster = RecordedCluster(tmp_path_factory.mktemp("recorded") / "history", spec(), seed=2)
    cluster.busy(3600.0, 150.0)
    cluster.run(1200.0)
    cluster.end()
    return cluster.folder


@pytest.fixture(scope="module")
def recording(folder):
    return read_recording(folder)


@pytest.mark.slow  # it makes the recording
def test_the_recording_has_the_work_and_says_what_is_inferred(recording):
    kinds = [kind for kind, _ in recording.provenance()]
    assert recording.cluster == "recorded"
    assert len(recording.work.works) > 50
    assert set(kinds) == {"observed", "inferred"}


@pytest.mark.slow
def test_the_same_settings_cost_what_it_cost_within_five_percent(folder, recording):
    report = backtest(folder, variants_of(recording.specs, VariantOptions()), starts=3, jobs=1, tick_s=5.0)
    (same,) = report.variants
    assert same.cost.median == pytest.approx(report.recorded.cost, rel=0.05)
    assert same.node_hours.median == pytest.approx(report.recorded.node_hours, rel=0.1)
    assert same.cost.low <= same.cost.median <= same.cost.high
    assert same.wait_p95_s.median == pytest.approx(report.recorded.wait_p95_s, rel=0.5)
    assert (same.unfinished, same.done.median > 0.99) == (0, True)


def tuned(folder: Path, *, publishes: bool) -> Path:
    """Record two machines that a tuner's trials use, and ten minutes after their end."""
    wanted = spec("cpu-4", most=2, idle_timeout_s=300.0)
    cluster = JointCluster(Seed(1), RunOptions(spec=wanted, catalogue=catalogue_for(wanted)), Faults.none())
    asked = SimulatedExperiment(
        curve=lambda config, step: {"loss": config["x"] / step},
        space={"x": uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        num_samples=4,
        max_t=9,
        resources=PlacementGroupFactory([{"CPU": 2}]),
    )
    run = JointRun(cluster, [JointExperiment(name="e", experiment=asked, publishes=publishes)])
    writer = HistoryWriter(folder)

    def record() -> None:
        result = cluster.result
        writer.record(result)

    run.after_tick = record
    run.run()
    until = cluster.world.time + 600.0
    while cluster.world.time < until:
        run.step(until + 60.0)
    writer.close(cluster.world.now())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("publishes", [True, False])
def test_a_recording_with_forecasts_says_that_its_replay_costs_more(tmp_path, publishes):
    folder = tuned(tmp_path / "history", publishes=publishes)
    recording = read_recording(folder)
    report = backtest(folder, variants_of(recording.specs, VariantOptions()), starts=1, jobs=1, tick_s=5.0)
    is_dearer = report.variants[0].cost.median > 1.2 * report.recorded.cost
    assert (any("forecasts" in text for _, text in recording.provenance()), is_dearer) == (publishes,) * 2


@pytest.mark.slow
def test_a_replay_is_the_same_every_time_and_another_start_is_another_one(recording):
    variant = Variant(name="same", specs=tuple(recording.specs))
    first, again, shifted = (Replay(recording, variant, start, 20.0).run() for start in (0, 0, 1))
    assert first == again
    assert shifted != first


@pytest.mark.slow
def test_machines_that_are_kept_longer_cost_more(recording):
    long = [(at, replace(each, idle_timeout_s=1200.0)) for at, each in recording.specs]
    variants = [Variant(name="x", specs=tuple(specs)) for specs in (recording.specs, long)]
    short_cost, long_cost = (Replay(recording, each, 0, 20.0).run().cost for each in variants)
    assert long_cost > 1.1 * short_cost


@pytest.mark.slow
def test_spot_machines_are_taken_when_their_series_falls_and_refused_when_there_are_none(recording):
    offered = with_offers(
        recording.specs[0][1],
        Offer(zone="a", price_per_hour=1.0),
        Offer(zone="a", market="spot", price_per_hour=0.1),
    )
    specs = ((recording.since, offered),)
    never = SpotSeries(1.0, ((0, 600),))
    flaky = SpotSeries(1.0, ((32, 900), (0, 300)))
    variants = [Variant(name="x", specs=specs, spot=(series,)) for series in (never, flaky)]
    none, some = (Replay(recording, each, 0, 20.0).run() for each in variants)
    assert none.interruptions == 0
    assert some.interruptions > 0
    assert some.cost < none.cost


def test_machines_that_were_there_at_the_start_are_there_again(tmp_path):
    cluster = RecordedCluster(tmp_path / "h", spec("cpu-4"))
    cluster.submit(4, 4000.0, CPU=3)
    cluster.run(300.0)
    for path in cluster.folder.iterdir():
        path.unlink()
    cluster.writer.__init__(cluster.folder)
    cluster.run(600.0)
    cluster.end()
    recording = read_recording(cluster.folder)
    result = Replay(recording, Variant(name="x", specs=tuple(recording.specs)), 0).run()
    assert len(recording.there_at_start()) == 4
    assert result.machines == 0
    assert result.cost == pytest.approx(recording.cost, rel=0.05)


def test_an_empty_history_says_so(tmp_path):
    cluster = RecordedCluster(tmp_path / "h")
    cluster.run(0.5)
    with pytest.raises(StoreError) as refused:
        read_recording(cluster.folder)
    assert_line("sim", "empty history", str(refused.value).replace(str(tmp_path), "TMP"))


# -- variants -------------------------------------------------------------------------------------------


def test_every_combination_is_a_variant_and_the_recorded_one_is_the_first():
    options = VariantOptions(
        objectives=(Objective.COST, Objective.UTILIZATION), idle_timeouts_s=(60.0, 600.0)
    )
    names = [each.name for each in variants_of([(0.0, spec())], options)]
    assert_view("cli/backtest_variants", "\n".join(names))


PRICES = "type,zone,on_demand,spot\nsim.cpu-4,a,0.4,0.1\nsim.cpu-4,b,0.3,\n"


def test_a_price_file_gives_offers_to_types_without_and_prices_to_those_with():
    table = parse_prices(PRICES, "p.csv")
    priced = with_prices(spec("cpu-4"), table).node_types[1]
    assert [(one.name, one.price_per_hour) for one in priced.offers] == [
        ("a/on-demand", 0.4),
        ("a/spot", 0.1),
        ("b/on-demand", 0.3),
    ]
    offered = with_offers(
        spec("cpu-4"), Offer(zone="b", price_per_hour=9.0), Offer(zone="x", price_per_hour=8.0)
    )
    assert [one.price_per_hour for one in with_prices(offered, table).node_types[1].offers] == [0.3, 8.0]
    more = with_prices(offered, table, ["spot"]).node_types[1].offers
    assert [one.name for one in more] == ["b/on-demand", "x/on-demand", "a/spot"]
    with pytest.raises(ConfigError) as refused:
        with_prices(spec("gpu-1"), table)
    assert_line("sim", "price file of other types", str(refused.value))


def test_one_market_leaves_the_others_out():
    offered = with_offers(spec("cpu-4"), Offer(zone="a"), Offer(zone="a", market="spot"))
    assert [one.market for one in only_market(offered, "spot").node_types[1].offers] == ["spot"]
    with pytest.raises(ConfigError, match="--market"):
        only_market(spec("cpu-4"), "spot")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", 'has no "series"'),
        ('{"series": [{"step_s": -1, "runs": [[1, 1]]}]}', "step_s is not a number"),
        ('{"series": [{"step_s": 1, "runs": [[1, NaN]]}]}', "runs is not a list"),
        ('{"series": [{"step_s": 1, "runs": [[-1, 5]]}]}', "runs is not a list"),
        ('{"series": [{"step_s": 1, "runs": []}]}', "runs is not a list"),
    ],
)
def test_a_file_of_spot_series_that_is_wrong_is_named(tmp_path, text, said):
    file = tmp_path / "spot.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_spot(file)


def test_a_series_begins_again_at_its_end_and_pools_have_their_own(tmp_path):
    file = tmp_path / "spot.json"
    file.write_text(
        json.dumps({"series": [{"step_s": 60, "runs": [[1, 2], [0, 1]]}, {"step_s": 60, "runs": [[4, 9]]}]})
    )
    some, many = read_spot(file)
    assert [some.at(at) for at in (0.0, 130.0, 180.0)] == [(32, 120.0), (0, 50.0), (32, 120.0)]
    assert many.at(1.0)[0] == 8
    pools = SpotPools((some, many), Seed(1))
    assert pools.level("a", 50.0) == pools.level("a", 50.0)
    assert len({pools.level(f"type {zone}/spot", 0.0) for zone in range(20)}) > 2
