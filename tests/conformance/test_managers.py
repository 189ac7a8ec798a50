"""Check how the embedded engine gives out processes and resources."""

from __future__ import annotations

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.support.trainables import counts

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine, ResourcePool
from muster.engines.local.worker_pool import LocalOptions
from muster.trials.events import StopTrial, TrialExited, TrialReported, TrialStarted
from muster.tune import PlacementGroupFactory as Pgf


@pytest.fixture
def driver(tmp_path):
    engine = LocalEngine(
        clock=SystemClock(),
        trainables={"counts": cloudpickle.dumps(counts)},
        capacity={"CPU": 4},
        options=LocalOptions(quiet=True),
    )
    with engine:
        yield Driver(engine, tmp_path)


def those(driver, kind):
    return sorted(event.trial_id for event in driver.events if isinstance(event, kind))


@pytest.mark.conformance("C-260", "C-261")
def test_those_that_fit_start_in_order_and_each_end_lets_another_one_start(driver):
    names = [f"t{number}" for number in range(10)]
    for name in names:
        driver.start(name, "counts")
    driver.poll_until(lambda: len(those(driver, TrialReported)) == 4, answer=False)
    driver.quiet_for(0.1)
    assert those(driver, TrialStarted) == names[:4]
    for name in ("t0", "t2"):
        driver.engine.submit(StopTrial(trial_id=name))
    driver.poll_until(lambda: len(those(driver, TrialReported)) == 6, answer=False)
    assert (those(driver, TrialStarted), those(driver, TrialExited)) == (names[:6], ["t0", "t2"])
    for name in reversed(names):
        driver.engine.submit(StopTrial(trial_id=name))
    driver.poll_until(lambda: len(those(driver, TrialExited)) == 10, answer=False)
    assert (those(driver, TrialStarted), those(driver, TrialExited)) == (names[:6], names)
    assert driver.engine._resources.free_units()["CPU"] == 40_000


@pytest.mark.conformance("C-266")
def test_an_empty_first_bundle_is_nothing_for_the_trainable_itself():
    needs = Pgf([{}, {"CPU": 1}, {"CPU": 2}])
    assert (needs.head_cpus, needs.head_bundle_is_empty, needs.bundles) == (
        0.0,
        True,
        [{"CPU": 1.0}, {"CPU": 2.0}],
    )
    there = ResourcePool({"CPU": 4})
    assert there.take(needs).units == {"CPU": 30_000}
    assert Pgf([{"CPU": 1}, {"CPU": 2}]) != needs


@pytest.mark.conformance("C-269")
def test_requests_are_equal_without_their_zeros_and_differ_by_strategy():
    one = Pgf([{"CPU": 1, "GPU": 0}, {"CPU": 2}])
    assert one == Pgf([{"CPU": 1}, {"CPU": 2.0, "memory": 0}])
    assert hash(one) == hash(Pgf([{"CPU": 1.0}, {"CPU": 2}]))
    assert one != Pgf([{"CPU": 1}, {"CPU": 2}], strategy="SPREAD")
    assert one != Pgf([{"CPU": 2}, {"CPU": 1}])
