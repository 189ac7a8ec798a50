"""The kept lines: another text or an unknown row fails, and every kept row is asserted by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.mistakes import views

CALL = re.compile(r'assert_line\(\s*"([^"]+)",\s*f?"([^"]+)"')


def kept_rows() -> set[tuple[str, str]]:
    files = sorted((views.FOLDER / "lines").glob("*.txt"))
    return {(file.stem, line.partition(": ")[0]) for file in files for line in file.read_text().splitlines()}


def asserted_rows(tests: Path) -> list[tuple[str, re.Pattern[str]]]:
    """Return the rows that tests name; a field of an f-string stands for any text."""
    calls = {call for file in tests.rglob("*.py") for call in CALL.findall(file.read_text(encoding="utf-8"))}
    return [(name, re.compile(".+".join(map(re.escape, re.split(r"\{.*?\}", row))))) for name, row in calls]


def test_another_text_and_an_unknown_row_fail(tmp_path, monkeypatch):
    monkeypatch.delenv("MUSTER_WRITE_VIEWS", raising=False)
    monkeypatch.setattr(views, "FOLDER", tmp_path)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("row: text: more\n", encoding="utf-8")
    views.assert_line("a", "row", "text: more")
    with pytest.raises(AssertionError):
        views.assert_line("a", "row", "text: less")
    with pytest.raises(KeyError):
        views.assert_line("a", "other", "text: more")


def test_every_kept_row_is_asserted_by_a_test():
    asserted = asserted_rows(views.FOLDER.parents[1])
    unused = [
        (name, row)
        for name, row in sorted(kept_rows())
        if not any(file == name and pattern.fullmatch(row) for file, pattern in asserted)
    ]
    assert unused == []
