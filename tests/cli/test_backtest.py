"""`muster backtest`: a table, JSON, a picture, and one line about every mistake."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.mistakes.views import assert_view
from tests.sim.backtest.recorded import RecordedCluster, spec

from muster.cli.main import cli
from muster.sim.backtest.variants import AS_RECORDED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cluster = RecordedCluster(tmp_path_factory.mktemp("backtest") / "history", spec("cpu-4"))
    cluster.submit(5, 200.0, CPU=2)
    cluster.run(600.0)
    cluster.end()
    return cluster.folder


def run(*words: object, **environment: str):
    return CliRunner().invoke(cli, ["backtest", *map(str, words)], env=environment)


QUICK = ("--starts", "2", "--jobs", "1", "--tick", "5")


def test_the_table_has_a_row_per_variant_and_says_what_is_inferred(folder):
    done = run(folder, *QUICK, "--idle-timeout", "0.2", COLUMNS="100")
    assert done.exit_code == 0, done.output
    rows = [line.split("  ")[1].strip() for line in done.output.splitlines() if "$" in line]
    assert rows == ["recorded", AS_RECORDED, f"{AS_RECORDED}, idle 12 s"]
    assert_view("cli/backtest_inferred", done.output[done.output.index("What the recording knows") :])


def test_json_has_every_figure_with_its_spread(folder):
    done = run(folder, *QUICK, "--json")
    report = json.loads(done.output)
    (same,) = report["variants"]
    assert (report["cluster"], same["name"], same["starts"]) == ("recorded", AS_RECORDED, 2)
    assert set(same["cost"]) == {"median", "low", "high"}
    assert abs(same["cost"]["median"] / report["recorded"]["cost"] - 1) < 0.1


@pytest.mark.slow
def test_a_picture_is_written(folder, tmp_path):
    pytest.importorskip("matplotlib")
    done = run(folder, "--starts", "1", "--jobs", "1", "--tick", "5", "-o", tmp_path / "costs.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


def test_a_cluster_is_found_by_its_name(folder, tmp_path):
    home = tmp_path / "clusters" / "laptop"
    home.mkdir(parents=True)
    (home / "ledger.db").touch()
    done = run("laptop", MUSTER_HOME=str(tmp_path))
    assert (done.exit_code, " laptop " in done.output) == (2, True)
    os.symlink(folder, home / "history")
    done = run("laptop", "--starts", "1", "--jobs", "1", "--tick", "5", MUSTER_HOME=str(tmp_path))
    assert done.exit_code == 0, done.output


OTHER = """\
cluster_name: other
max_workers: 4
provider: {type: process}
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, price_per_hour: 0.1}
  large: {resources: {CPU: 16}, max_workers: 2, price_per_hour: 0.5}
"""


def test_another_file_is_compared(folder, tmp_path):
    file = tmp_path / "other.yaml"
    file.write_text(OTHER, encoding="utf-8")
    done = run(folder, *QUICK, "--cluster-file", file, "--json")
    names = [each["name"] for each in json.loads(done.output)["variants"]]
    assert names == [AS_RECORDED, "other.yaml"]


def mistakes(folder: Path, here: Path) -> dict[str, tuple[list[object], str]]:
    (here / "text.txt").write_text("nothing of ours", encoding="utf-8")
    (here / "newer.history").write_bytes(b"muster history 99\n")
    (here / "columns.csv").write_text("type,zone,price\ncpu-4,a,1\n", encoding="utf-8")
    (here / "negative.csv").write_text("type,zone,on_demand,spot\ncpu-4,a,-1,\n", encoding="utf-8")
    (here / "nan.csv").write_text("type,zone,on_demand,spot\ncpu-4,a,nan,\n", encoding="utf-8")
    (here / "others.csv").write_text("type,zone,on_demand,spot\nm5.large,a,1,\n", encoding="utf-8")
    (here / "spot.json").write_text('{"series": []}', encoding="utf-8")
    (here / "empty").mkdir()
    return {
        "not a history": ([here / "text.txt"], "text.txt: not a history of a cluster"),
        "newer": ([here / "newer.history"], "format 99, this muster reads up to 1; upgrade muster"),
        "empty": ([here / "empty"], "no history in it"),
        "no such path": ([here / "none" / "x"], "no such file or directory"),
        "no such cluster": (["nosuch"], "no cluster 'nosuch'"),
        "columns": ([folder, "--prices", here / "columns.csv"], "columns.csv:1: has no column 'on_demand'"),
        "negative": ([folder, "--prices", here / "negative.csv"], "on_demand '-1' is not a price"),
        "nan": ([folder, "--prices", here / "nan.csv"], "on_demand 'nan' is not a price"),
        "other types": ([folder, "--prices", here / "others.csv"], "has no row for any node type"),
        "no prices": ([folder, "--prices", here / "none.csv"], "none.csv"),
        "spot": ([folder, "--spot", here / "spot.json"], 'has no "series"'),
        "no spot": ([folder, "--spot", here / "none.json"], "cannot be read"),
        "market": ([folder, "--market", "spot"], "no node type is available there"),
        "cluster": ([folder, "--cluster-file", here / "none.yaml"], "none.yaml"),
    }


def test_every_mistake_is_one_line(folder, tmp_path):
    for name, (words, said) in mistakes(folder, tmp_path).items():
        done = run(*words, MUSTER_HOME=str(tmp_path))
        lines = done.output.strip().splitlines()
        assert (name, done.exit_code, len(lines)) == (name, 2, 1), done.output
        assert said in lines[0], (name, lines[0])


def test_a_damaged_part_is_named_and_the_rest_replayed_or_refused(folder, tmp_path):
    damaged = tmp_path / "history"
    damaged.mkdir()
    (damaged / "00000001.history").write_bytes(b"muster history 1\n" + b"\x05\0\0\0\1\2\3\4hello")
    done = run(damaged)
    assert (done.exit_code, len(done.output.strip().splitlines())) == (2, 1)
    assert " 17 " in done.output
    (damaged / "tail.jsonl").write_bytes(
        b"".join(path.read_bytes() for path in sorted(folder.glob("tail.jsonl")))
    )
    done = run(damaged, "--starts", "1", "--jobs", "1", "--tick", "5")
    assert (done.exit_code, "not known" in done.output) == (0, True)
