"""Parameters and metrics whose names are not texts, or which UTF-8 cannot hold."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from muster import tune
from muster.cli.main import cli

pytestmark = pytest.mark.slow
HALF = "\udc80"  # half of a surrogate pair


def train(config):
    tune.report({"loss": 1.0, "text": HALF, f"key{HALF}": 1, None: 2, 5: 3, ("a", 1): 4})


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    place = tmp_path_factory.mktemp("odd")
    space = {f"lr{HALF}": tune.uniform(0, 1), 7: tune.uniform(0, 1), "kind": tune.choice([f"a{HALF}", "b"])}
    config = tune.TuneConfig(metric="loss", mode="min", num_samples=3)
    run = tune.RunConfig(name="e", storage_path=str(place), verbose=2, stop={"missing": 1})
    assert tune.Tuner(train, param_space=space, tune_config=config, run_config=run).fit().num_errors == 0
    return place / "e"


def test_the_names_of_metrics_are_listed_with_them(odd):
    grid = tune.Tuner.restore(str(odd)).get_results()
    with pytest.raises(RuntimeError, match="None, 5"):
        grid.get_best_result("missing", "min")


@pytest.mark.parametrize("words", [["show"], ["ls"], ["best"]])
def test_commands_print_them(odd, words):
    assert CliRunner().invoke(cli, ["tune", *words, str(odd)]).exit_code == 0


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "parquet", "pkl"])
def test_exports_hold_them(odd, tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    assert CliRunner().invoke(cli, ["tune", "export", str(odd), "-o", str(file)]).exit_code == 0
    assert b"udc80" in file.read_bytes()
    if kind == "json":
        assert [row["text"] for row in json.loads(file.read_text())] == ["\\udc80"] * 3


@pytest.mark.parametrize("kind", ["png", "html"])
def test_pictures_show_them(odd, tmp_path, kind):
    file = tmp_path / f"picture.{kind}"
    assert CliRunner().invoke(cli, ["tune", "plot", str(odd), "-o", str(file)]).exit_code == 0
    assert file.stat().st_size > 1000


def test_the_dashboard_exports_them(odd, tmp_path):
    file = tmp_path / "page.html"
    assert CliRunner().invoke(cli, ["dashboard", "export", str(odd), "-o", str(file)]).exit_code == 0
    assert "lr" in file.read_text()
