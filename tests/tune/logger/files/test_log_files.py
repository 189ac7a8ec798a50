"""Files after a crash: cut at any byte they are whole again; rows beyond a number of them go."""

from __future__ import annotations

import json

import pytest

from muster.tune.logger.files.log_files import (
    csv_columns,
    last_iteration,
    truncate_after,
)

ROWS = [{"s": 'a,"b"\n', "training_iteration": n} for n in range(1, 5)]
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]
HEADER = b"s,training_iteration\r\n"
RECORDS = [b'"a,""b""\n",%d\r\n' % n for n in range(1, 5)]


@pytest.fixture
def files(tmp_path):
    class Files:
        json, csv = tmp_path / "result.json", tmp_path / "progress.csv"

        def write(self, json_bytes, csv_bytes):
            self.json.write_bytes(json_bytes)
            self.csv.write_bytes(csv_bytes)

        def read(self):
            return self.json.read_bytes(), self.csv.read_bytes()

        def cut(self, rows):
            truncate_after(str(tmp_path), rows)

    return Files()


@pytest.mark.parametrize("rows", [0, 2, 4, 9])
def test_rows_beyond_the_number_go(files, rows):
    files.write(b"".join(LINES), HEADER + b"".join(RECORDS))
    files.cut(rows)
    assert files.read() == (b"".join(LINES[:rows]), HEADER + b"".join(RECORDS[:rows]))


def test_iterations_that_go_back_do_not_matter(files):
    lines, records = [*LINES, *LINES[1:]], [*RECORDS, *RECORDS[1:]]
    files.write(b"".join(lines), HEADER + b"".join(records))
    files.cut(6)
    assert files.read() == (b"".join(lines[:6]), HEADER + b"".join(records[:6]))


def test_a_json_file_torn_at_any_byte_keeps_every_whole_row(files):
    whole = b"".join(LINES)
    for size in range(len(whole) + 1):
        files.write(whole[:size], HEADER)
        files.cut(None)
        kept = sum(len(b"".join(LINES[: n + 1])) - 1 <= size for n in range(4))  # the line end may be missing
        assert files.read()[0] == b"".join(LINES[:kept])


def test_a_csv_file_torn_at_any_byte_keeps_every_whole_row(files):
    whole = HEADER + b"".join(RECORDS)
    for size in range(len(whole) + 1):
        files.write(b"", whole[:size])
        files.cut(None)
        kept = [r for n, r in enumerate(RECORDS) if len(HEADER + b"".join(RECORDS[: n + 1])) <= size]
        assert files.read()[1] == (HEADER if size >= len(HEADER) else b"") + b"".join(kept)


def test_a_torn_end_and_rows_beyond_go_together(files):
    files.write(b"".join(LINES) + b'{"training_it', HEADER + b"".join(RECORDS) + b'"a')
    files.cut(3)
    assert files.read() == (b"".join(LINES[:3]), HEADER + b"".join(RECORDS[:3]))


def test_a_long_file_with_a_good_end_is_left_alone(files):
    lines = [b'{"training_iteration":%d,"pad":"%s"}\n' % (n, b"x" * 900) for n in range(1, 200)]
    files.write(b"".join(lines), b"")
    files.cut(199)
    assert files.read()[0] == b"".join(lines)
    files.cut(100)
    assert files.read()[0] == b"".join(lines[:100])


def test_files_that_are_not_there_are_fine(tmp_path):
    truncate_after(str(tmp_path), 3)
    assert list(tmp_path.iterdir()) == []


def test_the_last_iteration(files):
    files.write(b"".join(LINES[:2]), HEADER + b"".join(RECORDS[:3]))
    assert (last_iteration(str(files.json)), last_iteration(str(files.csv))) == (2, 3)
    assert csv_columns(str(files.csv)) == ["s", "training_iteration"]
