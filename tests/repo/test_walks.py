"""A reader who follows one operation opens few files: tools/walks.py counts them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_no_operation_walks_through_more_files_than_its_limit(root):
    run = subprocess.run(
        [sys.executable, root / "tools" / "walks.py"], capture_output=True, text=True, check=True
    )
    counts = re.findall(r"^(.+?) +(\d+) files, at most (\d+)$", run.stdout, re.MULTILINE)
    assert [name for name, *_ in counts] == ["one report", "whole fit", "muster plan", "one tick"]
    assert [name for name, count, limit in counts if int(count) > int(limit)] == []
