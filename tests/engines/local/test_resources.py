from __future__ import annotations

import pytest

from muster.engines.local.resources import ResourcePool
from muster.trials.placement_group import PlacementGroupFactory as Pgf


def budget(gpu_ids=("4", "7"), **capacity):
    return ResourcePool({"CPU": 2, "GPU": 2, "memory": 1000, **capacity}, gpu_ids)


@pytest.mark.conformance("C-265")
def test_fractions_end_at_exactly_nothing_and_come_back_exactly():
    there = budget()
    grants = [there.take(Pgf([{"CPU": 0.1}])) for _ in range(20)]
    assert None not in grants
    assert there.free_units()["CPU"] == 0
    assert there.take(Pgf([{"CPU": 0.1}])) is None
    for grant in grants:
        there.free(grant)
    assert there.free_units() == {"CPU": 20_000, "GPU": 20_000, "memory": 10_000_000}


def test_all_bundles_are_taken_together_or_none():
    there = budget()
    assert there.take(Pgf([{"CPU": 1}, {"CPU": 2}])) is None
    assert there.free_units()["CPU"] == 20_000
    assert there.take(Pgf([{}, {"CPU": 1}, {"CPU": 1}])).units == {"CPU": 20_000}


def test_whole_gpus_are_given_by_id():
    there = budget()
    first, second = there.take(Pgf([{"GPU": 1}])), there.take(Pgf([{"GPU": 1}]))
    assert (first.gpu_ids, second.gpu_ids, there.take(Pgf([{"GPU": 1}]))) == (("4",), ("7",), None)
    there.free(first)
    assert there.take(Pgf([{"GPU": 1}])).gpu_ids == ("4",)


def test_fractions_share_a_gpu_before_they_open_another():
    there = budget()
    ids = [there.take(Pgf([{"GPU": 0.4}])).gpu_ids for _ in range(4)]
    assert ids == [("4",), ("4",), ("7",), ("7",)]
    assert there.take(Pgf([{"GPU": 0.4}])) is None  # 0.2 are left on each: no GPU holds 0.4


def test_a_whole_gpu_is_an_empty_one():
    there = budget()
    there.take(Pgf([{"GPU": 0.5}]))
    assert there.take(Pgf([{"GPU": 1}])).gpu_ids == ("7",)
    assert there.take(Pgf([{"GPU": 1}])) is None


def test_a_reused_process_keeps_its_gpu():
    assert budget().take(Pgf([{"GPU": 1}]), prefer=("7",)).gpu_ids == ("7",)


@pytest.mark.conformance("C-267")
@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Pgf([{"CPU": 2}]), None),
        (Pgf([{"CPU": 1}, {"CPU": 1.5}]), "requested CPU: 2.5; this machine offers CPU: 2"),
        (Pgf([{"TPU": 1}]), "requested TPU: 1; this machine offers TPU: 0"),
        (Pgf([{"GPU": 0.6}, {"GPU": 0.6}, {"GPU": 0.6}]), "requested GPU: 1.8; this machine offers GPU: 2"),
        (
            Pgf([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD"),
            "STRICT_SPREAD wants 2 machines; this engine has one",
        ),
        (Pgf([{"CPU": 1}, {"CPU": 1}], "STRICT_PACK"), None),
    ],
)
def test_what_can_never_be_is_told_from_what_must_wait(request_, why):
    assert budget().why_never(request_) == why


def test_custom_resources_count_too():
    there = budget(license=1)
    assert there.take(Pgf([{"license": 1}])) is not None
    assert there.take(Pgf([{"license": 0.5}])) is None
