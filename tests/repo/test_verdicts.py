"""The page about verdicts lists all of them, and nothing else."""

from __future__ import annotations

import re

from muster.cluster.plan import Reason


def test_the_page_has_one_row_per_verdict(root):
    text = (root / "docs" / "verdicts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(reason.value for reason in Reason)
