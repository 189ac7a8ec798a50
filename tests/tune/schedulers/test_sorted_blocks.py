from __future__ import annotations

import random
from bisect import bisect_left, insort

import pytest

from muster.tune.schedulers import sorted_blocks
from muster.tune.schedulers.sorted_blocks import SortedBlocks


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(sorted_blocks, "_MOST", 4)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_sorted_list_whatever_comes_and_goes(seed):
    draw = random.Random(seed)
    plain = sorted(draw.randrange(40) for _ in range(draw.randrange(30)))
    blocks = SortedBlocks(reversed(plain))
    for _ in range(300):
        value = draw.randrange(40)
        if plain and draw.random() < 0.5:
            gone = draw.choice(plain)
            plain.remove(gone)
            blocks.remove(gone)
        else:
            insort(plain, value)
            blocks.add(value)
        assert list(blocks) == plain
        assert len(blocks) == len(plain)
        assert blocks.place(value) == bisect_left(plain, value)
        assert [blocks[place] for place in range(len(plain))] == plain
        assert max(map(len, blocks._blocks), default=0) <= 4


def test_what_is_not_there_is_neither_found_nor_removed():
    blocks = SortedBlocks([1, 3])
    for value in (0, 2, 4):
        with pytest.raises(ValueError, match=f"{value} is not among them"):
            blocks.remove(value)
    with pytest.raises(IndexError):
        blocks[2]
    assert (list(blocks), SortedBlocks([]).place(5)) == ([1, 3], 0)
