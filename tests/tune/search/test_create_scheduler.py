import logging
import re

import pytest

from muster.tune.schedulers import (
    SCHEDULER_IMPORT,
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    create_scheduler,
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fifo", FIFOScheduler),
        ("async_hyperband", ASHAScheduler),
        ("AsyncHyperBand", ASHAScheduler),
        ("hyperband", HyperBandScheduler),
        ("HB_BOHB", HyperBandForBOHB),
        ("median_stopping_rule", MedianStoppingRule),
        ("MedianStopping", MedianStoppingRule),
    ],
)
def test_a_name_in_any_case_gives_its_scheduler(name, kind):
    assert type(create_scheduler(name)) is kind


@pytest.mark.conformance("C-101")
def test_arguments_are_passed_on_and_those_of_other_schedulers_left_out_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        scheduler = create_scheduler("async_hyperband", metric="loss", mode="min", max_t=9, synch=True)
    assert scheduler.save_state() == ASHAScheduler(metric="loss", mode="min", max_t=9).save_state()
    (record,) = caplog.records
    assert re.search(r"AsyncHyperBandScheduler\b.*\bsynch,", record.getMessage())


def test_an_argument_that_no_scheduler_takes_is_left_out_with_a_warning_that_names_the_nearest_one(caplog):
    with caplog.at_level(logging.WARNING):
        scheduler = create_scheduler("async_hyperband", max_tt=9, max_t=8)
    assert scheduler.save_state() == ASHAScheduler(max_t=8).save_state()
    assert "max_tt" in caplog.text and "'max_t'" in caplog.text


@pytest.mark.conformance("C-101")
def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(
        ValueError,
        match=r"asho.*asha",
    ):
        create_scheduler("asho")


def test_rays_table_of_schedulers_has_the_classes():
    assert SCHEDULER_IMPORT["asynchyperband"] is AsyncHyperBandScheduler
    assert {name: kind.__name__ for name, kind in SCHEDULER_IMPORT.items()}["pb2"] == "PB2"
    assert (len(SCHEDULER_IMPORT), "nonsense" in SCHEDULER_IMPORT) == (11, False)
