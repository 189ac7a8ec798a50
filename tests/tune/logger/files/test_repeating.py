"""What one writer had begun to write is cut off before another writes it again."""

from __future__ import annotations

import pytest

from muster.tune.logger.files.csv_rows import Table
from muster.tune.logger.files.log_files import cut_repeated_records, cut_repeated_rows

ROWS = [{"n": n, "x": float("nan")} for n in (1, 2, 1, 2, 3)]


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ([0, 1], []),
        ([4, 0, 1, 2], [4]),
        ([0, 1, 4, 0, 1], [0, 1, 4]),  # only the last two are what was begun
        ([4, 4], [4, 4]),
        ([], []),
    ],
)
def test_only_what_ends_the_file_and_begins_the_rows_is_cut(tmp_path, there, left):
    lines = [b'{"n": %d, "x": NaN}\n' % row["n"] for row in ROWS]
    records = [b"%d,nan\r\n" % row["n"] for row in ROWS]
    result, table = tmp_path / "result.json", tmp_path / "progress.csv"
    result.write_bytes(b"".join(lines[n] for n in there))
    table.write_bytes(b"n,x\r\n" + b"".join(records[n] for n in there))
    cut_repeated_rows(str(result), ROWS)
    cut_repeated_records(str(table), Table(["n", "x"]), ROWS)
    assert result.read_bytes() == b"".join(lines[n] for n in left)
    assert table.read_bytes() == b"n,x\r\n" + b"".join(records[n] for n in left)


def test_files_that_are_not_there_are_fine(tmp_path):
    cut_repeated_rows(str(tmp_path / "result.json"), ROWS)
    cut_repeated_records(str(tmp_path / "progress.csv"), Table(), ROWS)
    assert list(tmp_path.iterdir()) == []
