"""The real controller in drawn worlds: a sample here, a thousand in `make series`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.series import length
from tests.strangers.draw import FAULTS, draw_faults
from tests.strangers.run import Story

PER_TEST = 10  # worlds
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Worlds make the controller warn thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, length(40, 1000), PER_TEST))
def test_nothing_forbidden_happens_in_any_world(start: int, tmp_path: Path) -> None:
    stories = (Story(seed, (), tmp_path).run() for seed in range(start, start + PER_TEST))
    assert [(each.seed, each.violations) for each in stories if each.violations] == []


FOUND = {
    10083: "a lowered limit cancels a launch that waits, not a machine on which an unknown node may work",
    10220: "an unknown node is not on a machine that lists have lacked for minutes",
    10337: "a report that lacks other nodes may also lack the one that came after a dead one",
    10915: "a machine without its type tag, of a request that an older ledger does not know",
    10987: "a record whose machine leaves gives a cloned node to the machine that has its ip",
    7200066: "a machine that waits for its launch is withdrawn when nothing needs it any more",
    7200069: "an unanswered request is not repeated when nothing needs it any more",
    7200153: "a new process ignores a report older than the one its ledger follows",
    7201163: "a machine that is held past its set-up has no free room, and lets the next one be tried",
    7201570: "the minimum counts no node that is to be drained, whether the drain arrives or not",
    7201572: "a second node on a listed machine gets no record of its own, whatever machine it names",
    7201724: "no request is repeated by a tick without a report, which does not show what is needed",
    7201735: "reports that leave out now these nodes and now those end no machine",
    7201979: "a node with the ip of a machine without a type tag is on it, as another type of its request",
    7203067: "a budget reckons with a launch whose answer is lost",
    7203220: "the report that first shows a death may lack the node that came after it",
    7203253: "a budget reckons with a machine that is gone and still listed",
    7203455: "a head that names another machine is not taken to run on that one, tagged or not",
    7200328: "no machine times out by the first report after a time in which nobody looked",
    9300160: "a node is on the machine that has its ip now, not on the terminated one that had it",
    470000148: "a report that lacks a node which had died lacks the node that came after it, too",
    8200054: "a listed machine that a node of another type had named swaps its type with its request",
    8200253: "without a list, a node with a cloned id is placed by the ip of a machine that was listed last",
}


@pytest.mark.parametrize("seed", FOUND)
def test_a_world_that_once_showed_a_violation_shows_none(seed: int, tmp_path: Path) -> None:
    assert Story(seed, (), tmp_path).run().violations == ()


@pytest.mark.parametrize("start", range(2000, 2000 + length(10, 100), PER_TEST))
def test_nothing_forbidden_happens_without_faults(start: int) -> None:
    stories = (Story(seed, tuple(FAULTS)).run() for seed in range(start, start + PER_TEST))
    assert [(each.seed, each.violations) for each in stories if each.violations] == []


def test_a_world_is_the_same_each_time() -> None:
    assert Story(7).run() == Story(7).run()


def test_every_fault_strikes_in_some_world() -> None:
    drawn = {name for seed in range(40) for name in draw_faults(seed)}
    assert drawn == set(FAULTS)
