from __future__ import annotations

import pytest

from muster.tune.reporting.tables import ASCII, BOX, frame_for, framed, listed


def test_a_table_has_numbers_right_and_text_left():
    table = framed(("Trial name", "x"), [("a", "1.5"), ("bb", "10"), ("c", "")])
    assert table == "\n".join(
        [
            "╭────────────────────╮",
            "│ Trial name       x │",
            "├────────────────────┤",
            "│ a              1.5 │",
            "│ bb              10 │",
            "│ c                  │",
            "╰────────────────────╯",
        ]
    )


def test_a_header_of_two_lines_stands_on_the_second():
    table = framed(("a", "long\nname"), [("1", "2")], ASCII)
    assert table == "\n".join(
        [
            "+------------+",
            "|       long |",
            "| a     name |",
            "+------------+",
            "| 1        2 |",
            "+------------+",
        ]
    )


def test_a_list_has_a_title_over_names_and_values():
    assert listed(("Trial x config",), [("lr", "0.1"), ("layers", "12")]) == "\n".join(
        [
            "╭────────────────╮",
            "│ Trial x config │",
            "├────────────────┤",
            "│ lr         0.1 │",
            "│ layers      12 │",
            "╰────────────────╯",
        ]
    )


@pytest.mark.parametrize(
    ("encoding", "frame"),
    [("utf-8", BOX), ("ascii", ASCII), (None, ASCII), ("latin-1", ASCII), ("?", ASCII)],
)
def test_box_lines_only_where_the_stream_can_show_them(encoding, frame):
    assert frame_for(encoding) is frame
