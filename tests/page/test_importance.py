"""The dashboard's importance of parameters has the numbers of the plots; needs node."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from importlib import resources

import numpy as np
import pytest

from muster.tune.plots.axes import parameter_axis
from muster.tune.plots.data import ranked

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node here")
CODE = """
import { readFileSync } from "node:fs";
import { importanceOf } from "./selection.mjs";
const { metric, mode, params } = JSON.parse(readFileSync(0, "utf8").replaceAll("NaN", "null"));
const numbers = (values) => Float32Array.from(values, (value) => value ?? NaN);
const codes = (values) => Uint16Array.from(values, (value) => value ?? 65535);
const columns = params.map(({ key, kind, values }) => (
  { key, name: key, kind, values: kind === "word" ? codes(values) : numbers(values) }
));
const all = { "metric/m": { kind: "number", values: numbers(metric) } };
const ones = metric.map(() => 1);
const table = {
  rows: metric.length, params: columns, column: (key) => all[key], trial: () => ({ values: ones }),
};
const found = importanceOf(table, "metric/m", ones, mode);
console.log(JSON.stringify(found.map((each) => [each.name, each.share])));
"""


def in_browser(tmp_path, metric, mode, params):
    page = resources.files("muster.page") / "static" / "selection.js"
    (tmp_path / "selection.mjs").write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "ask.mjs").write_text(CODE, encoding="utf-8")
    given = json.dumps({"metric": list(metric), "mode": mode, "params": params})
    done = subprocess.run(
        [str(NODE), "ask.mjs"],
        cwd=tmp_path,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("count", "mode", "seed"), [(9, "min", 0), (40, "max", 1), (97, "min", 2), (400, "max", 3)]
)
def test_shares_are_those_of_the_plots(tmp_path, count, mode, seed):
    rng = np.random.default_rng(seed)
    lr, width = 10 ** rng.uniform(-5, 0, count), rng.choice([32, 64, 128, 256], count)
    act = rng.choice(["relu", "tanh", "gelu"], count)
    drop = np.where(rng.random(count) < 0.3, math.nan, rng.random(count))  # not set in some trials
    metric = (np.log10(lr) + 3) ** 2 + 0.3 * (act == "relu") + 0.2 * rng.standard_normal(count)
    metric[0], metric[1] = math.nan, math.nan  # reported, and the worst
    words = ["relu", "tanh", "gelu"]
    axes = {
        "lr": list(lr),
        "width": [int(each) for each in width],
        "act": list(act),
        "drop": [None if math.isnan(each) else each for each in drop],
    }
    made = [parameter_axis(name, values, object()) for name, values in axes.items()]
    wanted = {entry.name: entry.share for entry in ranked(made, metric, mode).entries}
    params = [
        {"key": name, "kind": "word", "values": [words.index(each) for each in values]}
        if name == "act"
        else {"key": name, "kind": "number", "values": values}
        for name, values in axes.items()
    ]
    found = in_browser(tmp_path, metric, mode, params)
    assert found == pytest.approx(wanted, abs=1e-9)
