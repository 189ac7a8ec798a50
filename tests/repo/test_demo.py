from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.backtest.recorded import RecordedCluster, spec

from muster.base.text import shortened
from muster.errors import StoreError
from muster.host.processes import table, was_started_with
from muster.providers.kind import load_config


@pytest.fixture
def picture(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(root / "examples" / "demo"))
    import picture

    yield picture
    sys.modules.pop("picture")


def test_the_clusters_of_the_examples_are_of_this_computer_and_have_prices(root: Path):
    for file in ("laptop.yaml", "demo/cluster.yaml"):
        config = load_config(root / "examples" / file)
        assert config.provider.type == "process"
        workers = {name: entry for name, entry in config.available_node_types.items() if name != "head"}
        assert all(entry.price_per_hour for entry in workers.values())


def test_the_plot_is_drawn_from_the_history_and_the_trials(picture, tmp_path: Path):
    recorded = RecordedCluster(tmp_path, spec())
    recorded.submit(4, 30.0, CPU=2)
    recorded.run(120.0)
    points = picture.read_points(recorded.folder)
    assert any(point.demand for point in points)
    assert any(point.starting for point in points)
    assert max(sum(point.types.values()) for point in points) > 1
    assert points[-1].spent > 0
    trials = tmp_path / "trials.jsonl"
    events = [
        ("start", "a", 1),
        ("start", "b", 2),
        ("complete", "b", 6),
        ("error", "a", 7),
        ("start", "c", 8),
    ]
    lines = [json.dumps({"event": what, "trial": trial, "at": at}) for what, trial, at in events]
    trials.write_text("\n".join(lines), encoding="utf-8")
    assert picture.trial_spans(trials) == [(1, 7, "error", ""), (2, 6, "complete", "")]
    picture.draw(recorded.folder, trials, tmp_path / "out.png", title="three looks")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_monitor_that_recorded_nothing_gives_no_empty_plot(picture, tmp_path: Path):
    with pytest.raises(StoreError):
        picture.draw(tmp_path, tmp_path / "none.jsonl", tmp_path / "out.png", title="")
    assert not (tmp_path / "out.png").exists()


# The demo as it is, but for its head: it starts a separate process, and never says that it is ready.
SLOW_HEAD = """
import runpy, sys
from muster.providers.process import launch_queue

script = "touch $TMPDIR/began; sleep 300 & wait"
head = launch_queue.NodeProgram(command=lambda record, ports: ["/bin/sh", "-c", script], ready=b"ready")
launch_queue.ray_head = lambda: head
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_demo_that_is_out_of_time_reports_it_and_leaves_no_process(root: Path, tmp_path: Path):
    folder = root / "examples" / "demo"
    given = [str(folder / "run.py"), "--deadline", "10", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", SLOW_HEAD, *given],
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert (tmp_path / "began").exists()
    assert done.stderr.startswith("demo failed: the deadline passed\n")
    homes = list(tmp_path.glob("muster-demo-*"))
    assert len(homes) == 1
    left = [one for one in table() if one.is_alive and was_started_with(one.pid, f"MUSTER_HOME={homes[0]}")]
    assert left == []


def test_the_lines_of_the_demo_fit_eighty_columns(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(root / "examples" / "demo"))
    line = runpy.run_path(str(root / "examples" / "demo" / "run.py"))["LINE"]
    sys.modules.pop("picture", None)
    machines = shortened("1 head, 1 requested, 1 setting up, 1 terminating", 44)
    for row in (
        ("time", "waiting", "machines", "trials", "spend"),
        ("239 s", "10", machines, "10 of 10", "$0.0123"),
    ):
        assert len(line.format(*row)) <= 80
