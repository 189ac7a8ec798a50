"""The fronts that the page shows are those of the library."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from importlib import resources

import pytest

from muster.tune.pareto import fronts

NODE = shutil.which("node")
CODE = """
import { frontsOf } from "./selection.mjs";
const given = JSON.parse(await new Response(process.stdin).text());
const goals = (rows) => rows[0].map((_, at) => [rows.map((row) => row[at]), at % 2 ? -1 : 1]);
console.log(JSON.stringify(given.map((rows) => frontsOf(goals(rows), rows.map((_, at) => at)))));
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_fronts_are_those_of_the_library(tmp_path):
    stream = random.Random(3)
    tables = [
        [
            [stream.choice([0, 1, 2, stream.random()]) for _ in range(objectives)]
            for _ in range(stream.randint(1, 40))
        ]
        for objectives in (2, 3, 4)
        for _ in range(30)
    ]
    page = resources.files("muster.page") / "static" / "selection.js"
    (tmp_path / "selection.mjs").write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "ask.mjs").write_text(CODE, encoding="utf-8")
    done = subprocess.run(
        [str(NODE), "ask.mjs"],
        cwd=tmp_path,
        input=json.dumps(tables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    signed = [
        [[-value if at % 2 else value for at, value in enumerate(row)] for row in rows] for rows in tables
    ]
    assert json.loads(done.stdout) == [fronts(rows) for rows in signed]
