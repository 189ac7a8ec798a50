"""Where fresh ids come from."""

from __future__ import annotations

from muster.base.ids import CountingIds, RandomIds


def test_counting_ids_are_predictable_and_sorted():
    ids = CountingIds()
    assert [ids.fresh("t"), ids.fresh("t"), ids.fresh("x")] == ["t-0.000001", "t-0.000002", "x-0.000003"]


def test_an_epoch_keeps_restarted_processes_apart():
    assert CountingIds(epoch=2).fresh("t") == "t-2.000001"
    assert CountingIds(epoch=1).fresh("t") != CountingIds(epoch=2).fresh("t")


def test_random_ids_do_not_repeat():
    ids = RandomIds()
    made = {ids.fresh("t") for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(each.startswith("t-") and len(each) == 14 for each in made)
