"""Compare a rendered view with the text of it that was reviewed and kept in `views/NAME.txt`.

`assert_view` compares a whole view, `assert_line` one line of many, kept in `views/lines/NAME.txt`.
`MUSTER_WRITE_VIEWS=1 pytest FILE` writes the texts again after a deliberate change; review the diff.
Replace what differs between runs (paths, times, process ids) before the comparison.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("views")


def assert_view(name: str, text: str) -> None:
    """Assert that `text` is the kept view `name`; spaces at line ends and the last newline are ignored."""
    file = FOLDER / f"{name}.txt"
    shown = "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n") + "\n"
    if os.environ.get("MUSTER_WRITE_VIEWS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def assert_line(name: str, row: str, text: str) -> None:
    """Assert that `text` is the line that `lines/NAME.txt` keeps for `row`."""
    file = FOLDER / "lines" / f"{name}.txt"
    if os.environ.get("MUSTER_WRITE_VIEWS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        lines = [line for line in lines if not line.startswith(f"{row}: ")]
        file.write_text("\n".join(sorted([*lines, f"{row}: {text}"])) + "\n", encoding="utf-8")
    kept = dict(line.split(": ", 1) for line in file.read_text(encoding="utf-8").splitlines())
    assert text == kept[row]
