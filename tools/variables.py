"""Writes the table of docs/variables.md from the code: `python tools/variables.py`."""

from __future__ import annotations

import re
from pathlib import Path

from muster.tune.constants import VARIABLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "variables.md"


def written() -> str:
    """Returns the page with the table as the code has it."""
    rows = [f"| `{name}` | {default} | {effect} |" for name, (default, effect) in VARIABLES.items()]
    table = "\n".join(["| variable | default | effect |", "|---|---|---|", *rows])
    return re.sub(
        r"(?s)(<!-- variables: written by \S+ -->\n).*(<!-- variables: end -->)",
        lambda found: f"{found[1]}{table}\n{found[2]}",
        PAGE.read_text(encoding="utf-8"),
    )


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
