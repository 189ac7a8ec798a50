from __future__ import annotations

import doctest

import pytest
from rich.text import Text
from tests.mistakes.views import assert_view

from muster.cli import grid as module
from muster.cli.grid import PageSize, TableGrid, folded


def lines(grid: TableGrid, width: int, *, wrap: bool = True) -> list[str]:
    shown = grid.section("T", PageSize(width=width, wrap=wrap), of=1)
    return [part.plain for part in shown if isinstance(part, Text)][1:]


@pytest.fixture
def grid() -> TableGrid:
    made = TableGrid("id", "~name", ">n", "~in use", "~")
    made.add(
        "i-0123456789", "a-long-name-of-a-type", "12", ("CPU 1/2", "memory 1/20 GB"), "because it is busy"
    )
    made.add("i-1", "b", "3", (), "")
    return made


def test_the_examples_of_the_module_do_what_they_say():
    found = doctest.testmod(module)
    assert (found.failed, found.attempted) == (0, 1)


def test_what_fits_is_not_folded(grid):
    assert_view("cli/grid_wide", "\n".join(lines(grid, 90)))


def test_a_name_is_broken_behind_a_sign_and_the_parts_of_a_list_stay_whole(grid):
    assert_view("cli/grid_folded", "\n".join(lines(grid, 60)))


def test_a_text_without_room_for_a_column_stands_below_its_row(grid):
    assert_view("cli/grid_below", "\n".join(lines(grid, 45)))


def test_a_row_of_one_line_is_cut_but_its_id_is_not(grid):
    assert_view("cli/grid_cut", "\n".join(lines(grid, 45, wrap=False)))
    assert lines(grid, 20, wrap=False) == ["  id", "  i-0123456789", "  i-1"]


def test_an_empty_column_takes_no_room():
    made = TableGrid("id", "state", "~")
    made.add("a", "", "why")
    assert lines(made, 80) == ["  id", "  a   why"]


@pytest.mark.parametrize(
    ("words", "width", "shown"),
    [
        (["one", "two"], 7, ["one two"]),
        (["one", "two"], 6, ["one", "two"]),
        (["abcdefgh"], 3, ["abc", "def", "gh"]),
        (["x", "abcdefgh"], 4, ["x", "abcd", "efgh"]),
        (["a-b.c/d"], 4, ["a-b.", "c/d"]),
        ([], 4, [""]),
    ],
)
def test_words_are_broken_only_where_they_must_be(words, width, shown):
    assert folded(words, width) == shown
